"""Evidence that two graphs compute the same, cheapest and strongest first.

What has the same operators, attributes, constants and producers is equal by construction (`value_numbers`).
What was tiled is proved site by site (`site_proof`). What is left, the changed regions, is run alone
(`region_runs`), and the whole models once (`whole_run`). A mean squared error alone proves nothing: one of
9,216 tiles dropped gives 7.5e-9; nor does a run alone: a zeroed recurrence is equal bit for bit on a sequence
of one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from explorer.base.errors import BadModel, Cancelled, Misuse
from explorer.engine.graph.model import Model
from explorer.engine.proof.lengths import Dims, Sizes, choose
from explorer.engine.proof.outputs import run
from explorer.engine.proof.outputs.whole_run import (
    Pairing,
    Runs,
    TorchRun,
    compare_torch,
    compare_whole,
    compare_within,
    run_ahead,
)
from explorer.engine.proof.regions.correspondence import Correspondence
from explorer.engine.proof.regions.runs import settle
from explorer.engine.proof.sites.evidence import Grounds, verdict_of, verdict_within
from explorer.engine.proof.sites.proof import SiteProof, key_of
from explorer.engine.proof.sites.recovery import recover_plan
from explorer.engine.proof.sites.run import chain_length
from explorer.engine.runtime.input_files import InputArrays
from explorer.engine.runtime.random_inputs import (
    Drawn,
    InputShapes,
    check_names,
    draw,
    fixed_shapes,
    given_inputs,
    plan_inputs,
    sizes_of,
)
from explorer.engine.runtime.reference import NOTE, has_bfloat16
from explorer.engine.shapes import Inference
from explorer.facts import Plan, Progress, TensorInfo, Verification
from explorer.facts.verification import Tolerance
from explorer.host.gc_pause import uncollected

__all__ = ["verify"]

OnProgress = Callable[[Progress], None] | None
Cancel = Callable[[], bool] | None


def verify(
    before: Model,
    after: Model,
    *,
    plan: Plan | None = None,
    draws: int = 1,
    seed: int = 0,
    dims: Dims | None = None,
    input_shapes: InputShapes | None = None,
    torch_run: TorchRun | None = None,
    given: InputArrays | None = None,
    tolerance: Tolerance | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Verification:
    """Evidence that `after` computes what `before` computes.

    Args:
        before: The original.
        after: The other model.
        plan: What was tiled; None: as the tiled file itself says, if it does.
        draws: How many random inputs the whole models are run on.
        seed: Of the first draw; draw i has seed + i.
        dims: Sizes of symbolic dimensions.
        input_shapes: Shapes and types in place of the declared ones.
        torch_run: The torch model that `before` was exported from: inputs to outputs, both in the order of
            the graph.
        given: Inputs from a file; then nothing is drawn but what regions and sites see besides.
        tolerance: By how much the outputs may differ: then the models are run, and nothing is proved.
        on_progress: Told where the proof stands.
        cancel: Asked now and then.

    Returns:
        The evidence. That the models differ is a result, not an error.

    Raises:
        Misuse: An option does not fit the model, or no input can be drawn.
        BadModel: onnxruntime cannot load or run one of the models, and what they are does not decide it.
        Cancelled: `cancel` said so.
    """
    started = time.perf_counter()
    if draws < 1:
        raise Misuse(f"{draws} draws prove nothing", where="--draws", hint="give 1 or more")
    dims, input_shapes = dict(dims or {}), dict(input_shapes or {})
    if plan is None and torch_run is None:
        check_names(before, dims, input_shapes)
    try:
        names, ends = run.pair_inputs(before, after), run.pair_outputs(before, after)
    except run.Mismatch as why:
        return _unlike(before, after, str(why), time.perf_counter() - started)
    plan = plan if plan is not None else recover_plan(after)
    declared = fixed_shapes(before, after, names, input_shapes)
    if given is not None:
        tried = [given_inputs(before, given, declared)]
        each = [sizes_of(before, tried[0])]
        sizes = Sizes(tuple(each))
    else:
        sizes = choose(before, plan, dims, declared)
        each = list(sizes.tried)
        tried = [plan_inputs(before, size, declared) for size in each]
    drawn, all_tried = tried[0], list(tried)
    tell = _teller(on_progress, cancel)
    seeds = tuple(seed + i for i in range(draws if given is None else 1))
    if tolerance is not None:
        count = max(draws, len(tried)) if given is None else 1
        feeds = [draw(tried[i % len(tried)], seed + i) for i in range(count)]
        pairing = Pairing(before, before, after, names, feeds, drawn, None, {}, {}, None, 1.0)
        outs = compare_within(Runs(pairing, tell, cancel), tolerance)
        return Verification(
            **verdict_within(outs, tolerance, count),
            before=before.path,
            after=after.path,
            seeds=tuple(seed + i for i in range(count)) if given is None else (),
            inputs=tuple(d.text() for d in drawn),
            sites=(),
            sizes=tuple(each) if len(each) > 1 else (),
            outputs=outs,
            tolerance=tolerance,
            seconds=time.perf_counter() - started,
        )
    halfway = _taken_apart(before, plan, each[0], declared)
    sites = SiteProof(halfway, after, tried, seed, tell, cancel)
    first = {names[name]: value for name, value in draw(tried[0], seed).items()}
    with (
        uncollected(),  # a walk makes a hundred thousand objects without a circle
        run_ahead(after, plan if len(seeds) == 1 else None, first) as ahead,
    ):
        found = sites.originals(plan)
        proofs = sites.sites(plan, found) if plan is not None else ()
        failed = {one.name for one in proofs if not one.passed}
        planned = {key_of(s): s.name for s in plan.sites} if plan is not None else {}
        tell("matching the graphs", 0, 1)

        def types() -> tuple[Mapping[str, TensorInfo], Mapping[str, TensorInfo]]:
            theirs = {names[d.name]: (d.dtype, d.shape) for d in drawn}
            mine = {d.name: (d.dtype, d.shape) for d in drawn}
            return Inference(before, {}, mine).main.values, Inference(after, {}, theirs).main.values

        trusted = {key: one for key, one in found.items() if planned[key] not in failed}
        matched = Correspondence(before, after, names, ends, trusted, types, cancel)
        feeds = [draw(tried[i % len(tried)], s) for i, s in enumerate(seeds)]
        pairing = Pairing(
            before,
            halfway,
            after,
            names,
            feeds,
            drawn,
            plan,
            found,
            sites.seen,
            sites.outputs if halfway is before else None,
            _growth(plan),
        )
        runs = Runs(pairing, tell, cancel, ahead)
        sites.forget()
        grounds = Grounds(
            sites=proofs,
            draws=draws,
            planned=len(planned),
            nodes=matched.nodes - sum(key == found[key].output for key in matched.met),
            structural=not matched.unequal,
        )
        grounds = _ran(grounds, matched, runs, tried, seed)
        if torch_run is not None and grounds.whole:
            inputs = [d.name for d in drawn]
            grounds = replace(grounds, torch=compare_torch(runs, torch_run, inputs))
    refused = [size for size, d in zip(sizes.tried, all_tried, strict=True) if all(d is not t for t in tried)]
    each = [size for size in each if size not in refused]
    said = verdict_of(grounds)
    if said["passed"]:
        more = replace(sizes, refused=(*sizes.refused, *refused)).remarks()
        said["verdict"] = "; ".join((said["verdict"], *more))
    if has_bfloat16(before):
        said["verdict"] += f"; {NOTE}"
    return Verification(
        **said,
        before=before.path,
        after=after.path,
        seeds=seeds if given is None else (),
        inputs=tuple(d.text() for d in drawn),
        sites=proofs,
        regions=grounds.regions,
        nodes=grounds.nodes,
        sizes=tuple(each) if len(each) > 1 else (),
        outputs=grounds.whole,
        torch=grounds.torch,
        seconds=time.perf_counter() - started,
    )


def _ran(
    grounds: Grounds,
    matched: Correspondence,
    runs: Runs,
    tries: Sequence[tuple[Drawn, ...]],
    seed: int,
) -> Grounds:
    """What running the whole models and the changed regions adds to what is known."""
    proved = grounds.structural and all(one.passed for one in grounds.sites)
    try:
        whole, remarks = compare_whole(runs, proved=proved)
    except BadModel as why:
        if any(not one.passed for one in grounds.sites):
            return grounds  # the site that is wrong says more than that the model does not run
        if not proved or grounds.sites:
            raise
        return replace(grounds, not_run=str(why))
    grounds = replace(grounds, whole=whole, remarks=remarks)
    if proved or not all(one.passed for one in grounds.sites) or not all(one.passed for one in whole):
        return grounds
    regions = settle(matched, tries, seed, partial(runs.tell, "running changed regions"), runs.cancel)
    nodes = (grounds.nodes or 0) - len({at for one in regions for at in one.positions})
    return replace(grounds, regions=tuple(one.evidence for one in regions), nodes=nodes)


def _teller(on_progress: OnProgress, cancel: Cancel) -> Callable[[str, int, int], None]:
    """Reports progress, if there is any, and stops there if the user wants to stop."""
    last: list[Progress] = []

    def tell(phase: str, done: int, total: int) -> None:
        if cancel is not None and cancel():
            raise Cancelled
        progress = Progress(phase, done, total)
        if on_progress is not None and phase and [progress] != last:
            last[:] = [progress]
            on_progress(progress)

    return tell


def _unlike(before: Model, after: Model, why: str, seconds: float) -> Verification:
    return Verification(
        passed=False,
        verdict_kind="different",
        verdict=f"different: {why}",
        before=before.path,
        after=after.path,
        seeds=(),
        inputs=(),
        sites=(),
        outputs=(),
        seconds=seconds,
    )


def _taken_apart(before: Model, plan: Plan | None, sizes: Mapping[str, int], given: InputShapes) -> Model:
    """The original with the operators taken apart that the plan names."""
    if plan is None or not plan.decomposed:
        return before
    from explorer.engine.tiling.decompose import decompose

    own = {d for v in before.graph.feeds for d in v.shape or () if isinstance(d, str)}
    here = {name: size for name, size in sizes.items() if name in own}
    fixed = {name: size for name, size in here.items() if name not in plan.free}
    shapes = Inference(before, here, _bound(given, here)).main.values
    declared = Inference(before, fixed, _bound(given, fixed)).main.values if plan.free else None
    return decompose(before, shapes, declared, plan.decomposed)[0]


def _bound(given: InputShapes, sizes: Mapping[str, int]) -> InputShapes:
    """InputArrays shapes with the dimensions in them that have a size: what is given goes before `sizes`."""
    return {
        name: (dtype, tuple(sizes.get(d, d) if isinstance(d, str) else d for d in shape))
        for name, (dtype, shape) in given.items()
    }


def _growth(plan: Plan | None) -> float:
    """How much more rounding there may be in the longest sum of the plan than in the original's.

    A runtime's own kernel adds a few hundred terms in a row; roundings grow with the square root. Small
    tiles of deep products make longer rows: 1,024 of them for K = 4,096 in tiles 4 deep.
    """
    chains = [chain_length(s) for s in plan.sites] if plan is not None else []
    return max(1.0, math.sqrt(max(chains, default=0) / 256))
