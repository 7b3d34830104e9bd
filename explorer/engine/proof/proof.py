"""Proves that two graphs compute the same, starting with the cheapest and strongest evidence.

1. Nodes with equal operators, attributes, constants and producers are equal by construction
   (`structure.value_numbers`).
2. Tiled nodes are proved site by site (`sites.proof`).
3. The remaining nodes, the changed regions, run alone (`regions.changed_regions`).
4. The complete models run (`outputs.whole_run`).

A small mean squared error alone proves nothing: one dropped tile of 9,216 gives 7.5e-9. One run alone proves
nothing either: a model with a zeroed recurrence gives equal bits for a sequence of length one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import BadModel, Misuse
from explorer.base.units import printable
from explorer.engine.graph.model import Model
from explorer.engine.progress import Cancel, OnProgress, stop_if
from explorer.engine.proof.dynamic_sizes import Dims, Sizes, choose_sizes
from explorer.engine.proof.meanings import Original
from explorer.engine.proof.outputs import run, whole_run
from explorer.engine.proof.outputs.nonfinite_inputs import NonfiniteDifference, compare_nonfinite
from explorer.engine.proof.regions.changed_regions import prove_regions
from explorer.engine.proof.regions.computed_constants import store_computed_constants
from explorer.engine.proof.regions.correspondence import Correspondence
from explorer.engine.proof.regions.deciding_numbers import find_one_sided
from explorer.engine.proof.regions.verdicts import RegionResult
from explorer.engine.proof.sites.proof import SiteProof, make_site_key
from explorer.engine.proof.sites.recovery import recover_plan
from explorer.engine.proof.sites.rounding import count_additions
from explorer.engine.proof.structure.probes import Pair
from explorer.engine.proof.verdict import Grounds, decide_verdict, decide_verdict_within
from explorer.engine.runtime import random_inputs
from explorer.engine.runtime.input_files import InputArrays
from explorer.engine.runtime.parallel import start_in_background, wait_until_done
from explorer.engine.runtime.plain_form import build_plain_form
from explorer.engine.runtime.reference import NOTE, has_bfloat16
from explorer.engine.shapes import Inference
from explorer.engine.tiling.decompose import decompose
from explorer.facts import Plan, Progress, SiteEvidence, TensorInfo, Verification
from explorer.facts.verification import Tolerance
from explorer.host.gc_pause import pause_garbage_collector


def verify(
    before: Model,
    after: Model,
    *,
    plan: Plan | None = None,
    draws: int = 1,
    seed: int = 0,
    dims: Dims | None = None,
    input_shapes: random_inputs.InputShapes | None = None,
    torch_run: whole_run.TorchRun | None = None,
    arrays: InputArrays | None = None,
    tolerance: Tolerance | None = None,
    meanwhile: Callable[[], None] | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Verification:
    """Collects the evidence that `after` computes the same as `before`.

    Args:
        before: The original model.
        after: The other model.
        plan: Tiling plan, or None to read it from the metadata of `after`, if any.
        draws: Number of random inputs on which the complete models run.
        seed: Seed of the first draw; draw i has seed + i.
        dims: Sizes of symbolic dimensions.
        input_shapes: Shapes and types that replace the declared shapes and types.
        torch_run: Function that runs the torch model from which `before` was exported. It takes the inputs
            and returns the outputs, both in the order of the graph.
        arrays: Inputs from a file for the complete models. Regions and sites still get random inputs.
        tolerance: Allowed difference of the outputs. If it is given, the models only run, without a proof.
        meanwhile: Callback that runs in its own thread during the proof of matmuls if a processor is free.
            Its exceptions are ignored here.
        on_progress: Receives the phase and the progress of the proof.
        cancel: Callback between steps; the proof stops when it returns True.

    Returns:
        The evidence. A difference between the models is a result, not an error.

    Raises:
        Misuse: An option does not fit the model, or no input can be drawn.
        BadModel: onnxruntime cannot load or run one of the models, and their structure alone proves nothing.
        Cancelled: `cancel` returned True.
    """
    started = time.perf_counter()
    if draws < 1:
        raise Misuse(f"{draws} draws prove nothing", where="--draws", hint="give 1 or more")
    before, after = build_plain_form(before), build_plain_form(after)
    dims, input_shapes = dict(dims or {}), dict(input_shapes or {})
    if plan is None and torch_run is None:
        random_inputs.check_names(before, dims, input_shapes)
    try:
        run.check_interface(before, after)
        names, output_pairs = run.pair_inputs(before, after), run.pair_outputs(before, after)
    except run.InputMismatch as why:
        return _report_mismatch(before, after, str(why), time.perf_counter() - started)
    plan = plan if plan is not None else recover_plan(after)
    report_progress = _build_reporter(on_progress, cancel)
    task = ProofTask(
        before, after, names, output_pairs, plan, draws, seed, torch_run, meanwhile, report_progress, cancel
    )
    inputs = _choose_inputs(task, dims, input_shapes, arrays)
    evidence = _prove(task, inputs) if tolerance is None else _verify_within(task, inputs, tolerance)
    return replace(evidence, seconds=time.perf_counter() - started)


def check_inputs(
    before: Model,
    after: Model,
    interchangeable: Collection[str] = (),
    *,
    are_modules: tuple[bool, bool] = (False, False),
    where: str = "",
) -> None:
    """Checks that two models can run on the same inputs.

    Args:
        before: The first model.
        after: The second model.
        interchangeable: Element types that may replace each other.
        are_modules: Whether each model is the export of a module, whose input shapes `--input-shape` sets.
        where: Name of the second model in the message; by default the path of its graph.

    Raises:
        Misuse: The number, types or shapes of the inputs differ.
    """
    try:
        run.pair_inputs(before, after, interchangeable)
    except run.InputMismatch as why:
        hint = _suggest_shape(why, are_modules) or "explorer compare shows figures of any models side by side"
        message = f"the two cannot be run on the same inputs: {why}"
        raise Misuse(message, where=where or after.path, hint=hint) from None


def _suggest_shape(why: run.InputMismatch, are_modules: tuple[bool, bool]) -> str:
    """Returns the option that gives a module the input shape of the other model, or '' if there is none."""
    if why.mismatched_inputs is None or are_modules[0] == are_modules[1]:
        return ""
    module_input, needed_input = why.mismatched_inputs if are_modules[0] else why.mismatched_inputs[::-1]
    sizes = needed_input.shape or ()
    if not sizes or not all(isinstance(size, int) for size in sizes):
        return ""
    return f"add --input-shape {printable(module_input.name)}:{','.join(map(str, sizes))}"


_MAX_LIMIT = 1 << 14
"""Largest limit for which sizes are tried. A limit is a number that only one model contains, such as the end
of a Slice. Two models may differ only at sizes beyond it, so sizes below and above it are tried."""


class ProofTask(Struct, frozen=True):
    """Two graphs with paired inputs and outputs, and the arguments of `verify`.

    Attributes:
        names: Input names of `after` by input name of `before`.
        output_pairs: Names of the outputs of both models.
        report_progress: Callback with the phase of the proof, the number of completed steps and of all steps.
    """

    before: Model
    after: Model
    names: Mapping[str, str]
    output_pairs: Sequence[Pair]
    plan: Plan | None
    draws: int
    seed: int
    torch_run: whole_run.TorchRun | None
    meanwhile: Callable[[], None] | None
    report_progress: Callable[[str, int, int], None]
    cancel: Cancel


class ProofInputs(Struct, frozen=True):
    """Inputs for the runs of the models.

    Attributes:
        declared: Shapes and types by input name, from the user or from the models.
        sizes: Sizes of the open (symbolic) dimensions to try.
        tried: Inputs for each of these sizes, from a file or planned at random. The complete models run at
            the first.
        is_random: Whether the inputs are random.
    """

    declared: random_inputs.InputShapes
    sizes: Sizes
    tried: tuple[tuple[random_inputs.RandomInput, ...], ...]
    is_random: bool

    def build_evidence_fields(
        self, seeds: Sequence[int], sizes: Sequence[Mapping[str, int]]
    ) -> dict[str, Any]:
        """Returns the fields of the evidence that describe the inputs."""
        return {
            "seeds": tuple(seeds) if self.is_random else (),
            "inputs": tuple(random_input.text() for random_input in self.tried[0]),
            "sizes": tuple(sizes) if len(sizes) > 1 else (),
        }


def _choose_inputs(
    task: ProofTask, dims: Dims, input_shapes: random_inputs.InputShapes, arrays: InputArrays | None
) -> ProofInputs:
    """Takes the inputs from a file, or plans random inputs for the sizes to try."""
    declared = random_inputs.fill_open_sizes(task.before, task.after, task.names, input_shapes)
    if arrays is not None:
        values = random_inputs.read_given_inputs(task.before, arrays, declared)
        return ProofInputs(
            declared, Sizes((random_inputs.get_symbol_sizes(task.before, values),)), (values,), False
        )

    def find_limits() -> set[int]:
        before, after = map(store_computed_constants, (task.before, task.after))
        limits = [limit for side in find_one_sided(before, after) for n in side for limit in n.limits]
        # the effect of a limit of a million is not tested, because runs of this size would take too long
        return {round(value) for value in limits if 1 < value <= _MAX_LIMIT}

    sizes = choose_sizes(task.before, task.plan, dims, declared, find_limits)
    tried = tuple(random_inputs.plan_inputs(task.before, size, declared) for size in sizes.tried)
    return ProofInputs(declared, sizes, tried, True)


def _verify_within(task: ProofTask, inputs: ProofInputs, tolerance: Tolerance) -> Verification:
    """Runs the models and checks whether the outputs stay within the tolerance."""
    before, tried = task.before, inputs.tried
    seeds = [task.seed + i for i in range(max(task.draws, len(tried)) if inputs.is_random else 1)]
    feeds = [random_inputs.draw(tried[i % len(tried)], seed) for i, seed in enumerate(seeds)]
    pairing = whole_run.Pairing(
        before, before, task.after, task.names, feeds, tried[0], None, {}, {}, None, 1.0
    )
    outputs = whole_run.compare_within(whole_run.Runs(pairing, task.report_progress, task.cancel), tolerance)
    return Verification(
        **decide_verdict_within(outputs, tolerance, len(seeds)),
        **inputs.build_evidence_fields(seeds, inputs.sizes.tried),
        before=before.path,
        after=task.after.path,
        sites=(),
        outputs=outputs,
        tolerance=tolerance,
        seconds=0.0,
    )


def _prove(task: ProofTask, inputs: ProofInputs) -> Verification:
    """Proves the sites, compares the structure, runs the models, and returns the evidence and the verdict."""
    seeds = [task.seed + i for i in range(task.draws if inputs.is_random else 1)]
    plan = task.plan
    tried = list(inputs.tried)  # the proof of sites removes inputs on which the original fails
    decomposed = _decompose_original(task.before, plan, inputs.sizes.tried[0], inputs.declared)
    sites = SiteProof(decomposed, task.after, tried, task.seed, task.report_progress, task.cancel)
    first_feed = {task.names[name]: value for name, value in random_inputs.draw(tried[0], task.seed).items()}
    with (
        pause_garbage_collector(),  # symbolic execution creates 100,000 objects without reference cycles
        whole_run.run_in_background(
            task.after, plan if len(seeds) == 1 else None, first_feed
        ) as background_run,
    ):
        originals = sites.find_originals(plan)
        with start_in_background(task.meanwhile) as background_task:
            proofs = sites.prove_sites(plan, originals, background_run) if plan is not None else ()
        correspondence = _match(task, inputs, originals, proofs)
        pairing = whole_run.Pairing(
            task.before,
            decomposed,
            task.after,
            task.names,
            [random_inputs.draw(tried[i % len(tried)], seed) for i, seed in enumerate(seeds)],
            inputs.tried[0],
            plan,
            originals,
            sites.observed,
            sites.outputs if decomposed is task.before else None,
            _compute_rounding_growth(plan),
        )
        runs = whole_run.Runs(pairing, task.report_progress, task.cancel, background_run)
        sites.release_weights()
        grounds = Grounds(
            sites=proofs,
            draws=task.draws,
            has_loops=plan is not None and any(site.calls != 1 for site in plan.sites),
            size_count=len(tried),
            planned=len({make_site_key(site) for site in plan.sites}) if plan is not None else 0,
            nodes=correspondence.count_certain_nodes(correspondence.used_sites),
            is_structural=not correspondence.unequal,
        )
        grounds = _add_runs(grounds, correspondence, runs, tried, task.seed)
        if task.torch_run is not None and grounds.model_outputs:
            names = [random_input.name for random_input in inputs.tried[0]]
            grounds = replace(grounds, torch_outputs=whole_run.compare_torch(runs, task.torch_run, names))
        if background_task is not None:
            wait_until_done(background_task, task.cancel)
    return _build_verification(task, inputs, grounds, seeds, tried)


def _match(
    task: ProofTask, inputs: ProofInputs, originals: Mapping[str, Original], proofs: Sequence[SiteEvidence]
) -> Correspondence:
    """Matches the values of both graphs; a proved site counts as the product that it replaces."""
    task.report_progress("matching the graphs", 0, 1)

    def infer_types() -> tuple[Mapping[str, TensorInfo], Mapping[str, TensorInfo]]:
        types_before = {value.name: (value.dtype, value.shape) for value in inputs.tried[0]}
        types_after = {task.names[name]: value_type for name, value_type in types_before.items()}
        return Inference(task.before, {}, types_before).main.values, Inference(
            task.after, {}, types_after
        ).main.values

    failed = {site.name for site in proofs if not site.passed}
    failed_keys = (
        {make_site_key(site) for site in task.plan.sites if site.name in failed} if task.plan else set()
    )
    trusted = {key: original for key, original in originals.items() if key not in failed_keys}
    return Correspondence(
        task.before, task.after, task.names, task.output_pairs, trusted, infer_types, task.cancel
    )


def _build_verification(
    task: ProofTask,
    inputs: ProofInputs,
    grounds: Grounds,
    seeds: Sequence[int],
    tried: Sequence[tuple[random_inputs.RandomInput, ...]],
) -> Verification:
    """Builds the verification from its grounds.

    `tried` are the inputs on which the original ran. The verdict names the sizes on which it failed.
    """
    pairs = list(zip(inputs.sizes.tried, inputs.tried, strict=True))
    refused = [size for size, planned in pairs if all(planned is not attempt for attempt in tried)]
    verdict = decide_verdict(grounds)
    if verdict["passed"]:
        remarks = replace(inputs.sizes, refused=(*inputs.sizes.refused, *refused)).list_remarks()
        size_remarks = run.list_size_remarks(task.before, task.after, task.names)
        verdict["verdict"] = "; ".join((verdict["verdict"], *remarks, *size_remarks))
    if has_bfloat16(task.before):
        verdict["verdict"] += f"; {NOTE}"
    tested_sizes = [size for size in inputs.sizes.tried if size not in refused]
    if not grounds.sites and not grounds.regions:
        tested_sizes = tested_sizes[:1]  # only the complete models ran, at the first size
    return Verification(
        **verdict,
        **inputs.build_evidence_fields(seeds, tested_sizes),
        before=task.before.path,
        after=task.after.path,
        sites=tuple(grounds.sites),
        regions=grounds.regions,
        nodes=grounds.nodes,
        outputs=grounds.model_outputs,
        torch=grounds.torch_outputs,
        seconds=0.0,
    )


def _add_runs(
    grounds: Grounds,
    correspondence: Correspondence,
    runs: whole_run.Runs,
    tried_inputs: Sequence[tuple[random_inputs.RandomInput, ...]],
    seed: int,
) -> Grounds:
    """Runs the complete models and the changed regions, and adds the results to the grounds.

    The regions do not run if the models are proved already, if a site fails, or if an output fails although
    its results are reproducible.

    Raises:
        BadModel: A model does not run, and neither a failed site nor the structure decides the verdict.
    """
    is_proved = grounds.is_structural and all(site.passed for site in grounds.sites)
    try:
        outputs, remarks = whole_run.compare_whole(runs, is_proved=is_proved)
    except BadModel as why:
        if any(not site.passed for site in grounds.sites):
            return grounds  # a failed site is more informative than the failed run
        if not is_proved or grounds.sites:
            raise
        return replace(grounds, not_run=str(why))
    grounds = replace(grounds, model_outputs=outputs, remarks=remarks)
    relaxed_outputs = whole_run.judge_by_stored_numbers(outputs, runs.pairing)
    if (
        is_proved
        or not all(site.passed for site in grounds.sites)
        or not all(output.passed or output.irreproducible for output in relaxed_outputs)
    ):
        return grounds
    report_regions = partial(runs.report_progress, "running changed regions")
    regions = prove_regions(correspondence, tried_inputs, seed, report_regions, runs.cancel)
    rounded = max((region.rounded for region in regions), default=0.0)
    if relaxed_outputs != outputs and not (rounded and all(region.passed for region in regions)):
        return grounds
    nodes, nonfinite = grounds.nodes, []
    if all(region.passed for region in regions):
        nonfinite = _find_nonfinite_differences(runs.pairing, correspondence.outputs, regions, seed)
        # nodes that follow regions with equal results are equal by construction as well
        changed = {index for region in regions for index in region.positions}
        nodes = (
            correspondence.nodes
            - len(correspondence.find_product_indices(correspondence.used_sites))
            - len(changed)
        )
    return replace(
        grounds,
        model_outputs=relaxed_outputs,
        regions=tuple(region.evidence for region in regions),
        nodes=nodes,
        nonfinite=next((str(d) for d in nonfinite if d.is_defined), ""),
        remarks=(*remarks, *_list_limitations(regions, rounded), *map(str, nonfinite)),
    )


def _find_nonfinite_differences(
    pairing: whole_run.Pairing, output_pairs: Sequence[Pair], regions: Sequence[RegionResult], seed: int
) -> list[NonfiniteDifference]:
    """Finds outputs that differ for those kinds of NaN and infinity for which a changed region differs."""
    differing_kinds = dict.fromkeys(kind for region in regions for kind in region.nonfinite)
    models = pairing.before, pairing.after
    pairs = [(pair.before, pair.after) for pair in output_pairs]
    return list(compare_nonfinite(models, pairing.names, pairs, pairing.feeds[0], differing_kinds, seed))


def _list_limitations(regions: Sequence[RegionResult], rounded: float) -> Iterator[str]:
    """Yields remarks on differences in stored numbers that a run cannot reveal."""
    if not all(region.passed for region in regions):
        return
    if rounded:
        difference = f"by up to {rounded:.1e} (relative)"
        yield f"stored numbers differ {difference}, because they were computed in another order"
    if any(region.folded for region in regions):
        yield "folded weights are correct within eight roundings"
    if hidden_difference := max((region.hidden_difference for region in regions), default=0.0):
        yield (
            "the runs cannot tell rounding from an error of a changed region below"
            f" {hidden_difference:.1e} of its output"
        )


def _build_reporter(on_progress: OnProgress, cancel: Cancel) -> Callable[[str, int, int], None]:
    """Returns a function that reports progress and raises Cancelled if the user asked to stop."""
    last_progress: list[Progress] = []

    def report_progress(phase: str, completed: int, total: int) -> None:
        stop_if(cancel)
        progress = Progress(phase, completed, total)
        if on_progress is not None and phase and [progress] != last_progress:
            last_progress[:] = [progress]
            on_progress(progress)

    return report_progress


def _report_mismatch(before: Model, after: Model, reason: str, seconds: float) -> Verification:
    """Returns the result for two models whose inputs or outputs do not match."""
    return Verification(
        passed=False,
        verdict_kind="different",
        verdict=f"different: {reason}",
        before=before.path,
        after=after.path,
        seeds=(),
        inputs=(),
        sites=(),
        outputs=(),
        seconds=seconds,
    )


def _decompose_original(
    before: Model, plan: Plan | None, sizes: Mapping[str, int], input_shapes: random_inputs.InputShapes
) -> Model:
    """Decomposes the operators of the original that the plan lists as decomposed."""
    if plan is None or not plan.decomposed:
        return before
    symbols = {d for v in before.graph.required_inputs for d in v.shape or () if isinstance(d, str)}
    sizes_before = {name: size for name, size in sizes.items() if name in symbols}
    fixed_sizes = {name: size for name, size in sizes_before.items() if name not in plan.free}
    shapes = Inference(before, sizes_before, _bind_sizes(input_shapes, sizes_before)).main.values
    declared = None
    if plan.free:
        declared = Inference(before, fixed_sizes, _bind_sizes(input_shapes, fixed_sizes)).main.values
    return decompose(before, shapes, declared, plan.decomposed)[0]


def _bind_sizes(
    input_shapes: random_inputs.InputShapes, sizes: Mapping[str, int]
) -> random_inputs.InputShapes:
    """Replaces symbolic dimensions in input shapes by their sizes, where known."""
    return {
        name: (dtype, tuple(sizes.get(d, d) if isinstance(d, str) else d for d in shape))
        for name, (dtype, shape) in input_shapes.items()
    }


def _compute_rounding_growth(plan: Plan | None) -> float:
    """Returns the factor by which the longest sum in the plan may have larger rounding errors.

    Rounding errors of a sum grow with the square root of the number of terms that are added one by one. In a
    kernel of the runtime, these are about 256. Small tiles of a deep product give more: 1,024 terms for
    K = 4,096 with tiles of depth 4.
    """
    chains = [count_additions(s) for s in plan.sites] if plan is not None else []
    return max(1.0, math.sqrt(max(chains, default=0) / 256))
