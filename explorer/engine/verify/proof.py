"""Evidence that two graphs compute the same, put together from the three layers.

Why three: the walk (`structure`) is exact and sees everything but a wrong operator body; the sites
(`sites`) run the bodies but only on some numbers; the whole model (`outputs`) shows what the user will
see. A mean squared error alone proves nothing: one of 9,216 tiles dropped gives 7.5e-9.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from explorer import scratch
from explorer.engine.analysis.shapes import Inference
from explorer.engine.collecting import uncollected
from explorer.engine.graph import DTYPES, Model
from explorer.engine.parallel import Share, side_by_side
from explorer.engine.places import Place, places, view
from explorer.engine.portions import portions
from explorer.engine.verify import outputs
from explorer.engine.verify.around import branches, difference
from explorer.engine.verify.blocks import NotTiled
from explorer.engine.verify.evaluator import NOTE, has_bfloat16
from explorer.engine.verify.evidence import both, site_evidence, verdict_of
from explorer.engine.verify.independence import independent
from explorer.engine.verify.inputs import Drawn, InputShapes, any_values, check_names, draw, plan_inputs
from explorer.engine.verify.interpret import Wiring
from explorer.engine.verify.lengths import Dims, bindings
from explorer.engine.verify.meanings import Meaning, Original
from explorer.engine.verify.original import find_original
from explorer.engine.verify.recovery import recover_plan
from explorer.engine.verify.runtime import Array, Session, expose
from explorer.engine.verify.sites import Sessions, SiteRun, chain_length, run_part, run_site
from explorer.engine.verify.structure import walk
from explorer.errors import BadModel, Cancelled, Misuse
from explorer.facts import OutputEvidence, Plan, Progress, SiteEvidence, SitePlan, TensorInfo, Verification
from explorer.units import exact_text, printable

__all__ = ["verify"]

OnProgress = Callable[[Progress], None] | None
Cancel = Callable[[], bool] | None

_EXPOSED = 1 << 28
"""Bytes of activations that one run of the original hands out."""

_TOGETHER = 1 << 27
"""Bytes of activations of the sites that are proved side by side."""

_WEIGHTS = 1 << 30
"""Bytes of weights of the whole models that are run side by side: each session holds its own."""

_MANY_NODES = 2048
"""Unrolled products above which a session of the whole model takes longer than the proof should."""


def verify(
    before: Model,
    after: Model,
    *,
    plan: Plan | None = None,
    draws: int = 3,
    seed: int = 0,
    dims: Dims | None = None,
    input_shapes: InputShapes | None = None,
    torch_run: Callable[[Sequence[Array]], Sequence[Array]] | None = None,
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
        dims: Sizes of symbolic dimensions; one that neither this nor `after` fixes is 1.
        input_shapes: Shapes and types in place of the declared ones.
        torch_run: The torch model that `before` was exported from: inputs to outputs, both in the order of
            the graph.
        on_progress: Told where the proof stands.
        cancel: Asked now and then.

    Returns:
        The evidence. That the models differ is a result, not an error.

    Raises:
        Misuse: An option does not fit the model, or no input can be drawn.
        BadModel: onnxruntime cannot load or run one of the models.
        Cancelled: `cancel` said so.
    """
    started = time.perf_counter()
    if draws < 1:
        raise Misuse(f"{draws} draws prove nothing", where="--draws", hint="give 1 or more")
    dims, input_shapes = dict(dims or {}), dict(input_shapes or {})
    if plan is None and torch_run is None:
        check_names(before, dims, input_shapes)
    seeds = tuple(seed + i for i in range(draws))
    try:
        names = outputs.pair_inputs(before, after)
    except outputs.Mismatch as why:
        return Verification(
            passed=False,
            verdict=f"different: {why}",
            before=before.path,
            after=after.path,
            seeds=(),
            inputs=(),
            sites=(),
            outputs=(),
            seconds=time.perf_counter() - started,
        )
    plan = plan if plan is not None else recover_plan(after)
    declared = _sizes(before, after, names, input_shapes)
    each = bindings(before, plan, dims, declared)
    tried = [plan_inputs(before, sizes, declared) for sizes in each]
    halfway = _taken_apart(before, plan, each[0], declared)
    job = _Job(before, halfway, after, tried, seed, on_progress, cancel)
    whole: tuple[OutputEvidence, ...] = ()
    torch: tuple[OutputEvidence, ...] = ()
    with uncollected():  # a walk makes a hundred thousand objects without a circle
        found = job.originals(plan)
        sites = job.sites(plan, found) if plan is not None else ()
        try:
            whole, torch = job.whole(plan, found, seeds, names, torch_run)
        except BadModel:
            if all(e.passed for e in sites):
                raise
            # the site that is wrong says more than that the model does not run
    passed = all(e.passed for e in sites) and all(e.passed for e in (*whole, *torch))
    verdict = verdict_of(sites, whole, torch, draws, 0 if plan is None else len(plan.sites))
    if passed and found and branches(halfway) and (strange := difference(halfway, after, found)):
        # a run shows only the branches that it takes
        passed, verdict = False, f"not proved: outside of the sites {strange}"
    return Verification(
        passed=passed,
        verdict=verdict + (f"; {NOTE}" if has_bfloat16(before) else ""),
        before=before.path,
        after=after.path,
        seeds=seeds,
        inputs=tuple(d.text() for d in job.drawn),
        sites=sites,
        outputs=whole,
        torch=torch,
        seconds=time.perf_counter() - started,
    )


def _sizes(
    before: Model, after: Model, names: Mapping[str, str], given: InputShapes
) -> dict[str, tuple[str | None, tuple[int | str | None, ...]]]:
    """Input shapes: as given, else as declared, with sizes that only the tiled model has fixed."""
    other = {v.name: v for v in after.graph.feeds}
    sizes = dict(given)
    for value in before.graph.feeds:
        twin = other[names[value.name]]
        if value.name in sizes or value.shape is None or twin.shape is None:
            continue
        if len(value.shape) == len(twin.shape):
            merged = tuple(
                b if isinstance(b, int) and not isinstance(a, int) else a
                for a, b in zip(value.shape, twin.shape, strict=True)
            )
            sizes[value.name] = (None, merged)
    return sizes


class _Job:
    """One proof: what its layers share."""

    def __init__(
        self,
        whole: Model,
        before: Model,
        after: Model,
        tried: list[tuple[Drawn, ...]],
        seed: int,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> None:
        self.original = whole
        self.before = before
        """The original with what the plan takes apart taken apart: in it stand the sites."""
        self.after = after
        self.tried = tried
        """How the inputs are drawn, for each of the sizes that are tried where sizes are open."""
        self.drawn = tried[0]
        self.seed = seed
        self.on_progress = on_progress
        self.cancel = cancel
        self.unresolved: dict[str, str] = {}
        """Planned products whose weight the original does not give, and why."""
        self._told: Progress | None = None
        self._known_places: dict[int, list[Place]] = {}
        self._sessions: dict[str, Sessions] = {}
        """Of sites of open sizes, which are run at several."""

    def tell(self, phase: str, done: int, total: int) -> None:
        """Reports progress, if there is any, and stops here if the user wants to stop."""
        if self.cancel is not None and self.cancel():
            raise Cancelled
        progress = Progress(phase, done, total)
        if self.on_progress is not None and phase and progress != self._told:
            self._told = progress
            self.on_progress(progress)

    # layers 1 and 2

    def originals(self, plan: Plan | None) -> dict[str, Original]:
        """The planned products as the original has them, by output name.

        A site that the original does not have as a product is no subject of layers 1 and 2: the plan was
        made for another model, such as the one before an earlier tiling.
        """
        if plan is None:
            return {}
        found = {}
        wiring = Wiring.of(self.before.graph)
        for site in plan.sites:
            try:
                seen = view(self.before, site.place)
                known = None if site.place else wiring
                original = find_original(seen, site.output, site, known) if seen is not None else None
            except NotTiled as why:
                self.unresolved[_key(site)] = printable(str(why))
                continue
            if original is not None:
                found[_key(site)] = original
        return found

    def sites(self, plan: Plan, found: Mapping[str, Original]) -> tuple[SiteEvidence, ...]:
        """Layers 1 and 2 for every site of the plan that the original has."""
        planned = [s for s in plan.sites if _key(s) in found]
        made: dict[str, SiteEvidence] = {}
        done, total = 0, len(planned) * len(self.tried)
        wiring = Wiring.of(self.after.graph)

        def tick(more: int) -> None:
            self.tell("proving sites", done + more, total)

        for drawn in list(self.tried):
            moved = planned if drawn is self.drawn else [s for s in planned if s.dynamic]
            for group in portions(moved, _exposed, _EXPOSED):
                shown = [found[_key(s)] for s in group if not s.place]
                try:
                    values = self._observed(shown, drawn) if shown else {}
                except BadModel:
                    if drawn is self.drawn:
                        raise
                    # longer than a table of positions, say: the original does not take this size
                    self.tried.remove(drawn)
                    break
                if any(site.place for site in group):
                    self._places(drawn)  # once for all of them
                proved = side_by_side(
                    [partial(self._site, site, found[_key(site)], values, drawn, wiring) for site in group],
                    [_exposed(site) for site in group],
                    _TOGETHER,
                    tick=tick,
                    cancel=self.cancel,
                )
                for site, evidence in zip(group, proved, strict=True):
                    known = made.get(_key(site))
                    made[_key(site)] = evidence if known is None else both(known, evidence)
                done += len(group)
        failed = (s for s in plan.sites if _key(s) in self.unresolved)
        return (
            *made.values(),
            *(site_evidence(s, 0, self.unresolved[_key(s)], None, "") for s in failed),
        )

    def _observed(self, originals: Sequence[Original], drawn: tuple[Drawn, ...]) -> dict[str, Array]:
        """One run of the original with what goes into and comes out of the sites."""
        feeds = draw(drawn, self.seed)
        names = [name for o in originals for name in (*o.inputs, o.output)]
        wanted = [n for n in dict.fromkeys(names) if n not in feeds]
        session = Session(expose(self.before, wanted), what="the original", optimise=False)
        return {**feeds, **session.run(feeds)}

    def _site(
        self,
        site: SitePlan,
        original: Original,
        values: Mapping[str, Array],
        drawn: tuple[Drawn, ...],
        wiring: Wiring,
        share: Share,
    ) -> SiteEvidence:
        after: Model | None = self.after
        try:
            if site.place:
                after = view(self.after, site.place)
                values = self._within(site, original, drawn, share.threads)
            if after is None:
                raise NotTiled("there is no such place in the other model")
            if site.place:
                wiring = Wiring.of(after.graph)
        except (BadModel, NotTiled) as why:
            return site_evidence(site, 0, printable(str(why)), None, "")
        inputs, y = [values[name] for name in original.inputs], values[original.output]
        shapes = [x.shape for x in inputs]
        meaning = original.at(shapes, y.shape)
        site = _sized(site, meaning)
        structure, tiles = "", 0
        try:
            dtype = original.dtype or str(inputs[0].dtype)
            tiles = walk(after, site, original, meaning, shapes, dtype, wiring=wiring, cancel=share.stopped)
        except NotTiled as fault:
            structure = printable(str(fault))
        ran: SiteRun | None = None
        unrunnable = ""
        sessions = self._sessions.setdefault(_key(site), {}) if site.dynamic else None
        try:
            ran = run_site(after, site, original, meaning, inputs, y, self.seed, share, wiring, sessions)
        except BadModel as error:
            unrunnable = str(error)
        return site_evidence(site, tiles, structure, ran, unrunnable)

    def _within(
        self, site: SitePlan, original: Original, drawn: tuple[Drawn, ...], threads: int
    ) -> dict[str, Array]:
        """Drawn inputs of a site in a body or a function, which no run shows, and its own output for them."""
        known = next((p.example for p in self._places(drawn) if p.path == site.place), {})
        generator = np.random.default_rng((self.seed, 3))
        values: dict[str, Array] = {}
        for name in original.inputs:
            info = known.get(name)
            if info is None or info.shape is None or info.dtype is None:
                raise NotTiled(f"the shape of '{name}' is not known before a run")
            # a size that the data decides may be any
            shape = tuple(d if isinstance(d, int) else 3 for d in info.shape)
            values[name] = any_values(generator, info.dtype, shape)
        seen = view(self.before, site.place)
        assert seen is not None
        what = f"'{site.name}' of the original"
        values.update(run_part(seen, [original.output], values, what, threads))
        return values

    def _places(self, drawn: tuple[Drawn, ...]) -> list[Place]:
        """Every graph of the original, with shapes at the sizes of these inputs."""
        if id(drawn) not in self._known_places:
            shapes = {d.name: (d.dtype, d.shape) for d in drawn}
            inference = Inference(self.before, {}, shapes)
            self._known_places[id(drawn)] = list(places(self.before, inference))
        return self._known_places[id(drawn)]

    # layer 3

    def whole(
        self,
        plan: Plan | None,
        found: Mapping[str, Original],
        seeds: Sequence[int],
        names: Mapping[str, str],
        torch_run: Callable[[Sequence[Array]], Sequence[Array]] | None,
    ) -> tuple[tuple[OutputEvidence, ...], tuple[OutputEvidence, ...]]:
        """Layer 3, and the torch model's own outputs beside the tiled ones."""
        feeds = [draw(self.tried[i % len(self.tried)], s) for i, s in enumerate(seeds)]
        total = 2 * len(feeds) + 1 + (len(feeds) if torch_run is not None else 0)
        steps: list[None] = []

        def step(share: Share | None = None) -> None:
            if share is not None and share.stopped():
                raise Cancelled
            steps.append(None)

        def old(share: Share) -> outputs.Run:
            # of a model that quantises it is always wanted, of another hardly ever
            shake = outputs.quantises(self.original)
            run = partial(outputs.run_all, step=partial(step, share), shake=shake, threads=share.threads)
            return run(self.original, feeds, "the original")

        def new(share: Share) -> tuple[outputs.Run, str]:
            what = "the other model" if plan is None else "the tiled model"
            renamed = [{names[k]: v for k, v in f.items()} for f in feeds]
            with self._runnable(plan, found, share) as (model, note):
                run = partial(outputs.run_all, step=partial(step, share), threads=share.threads)
                return run(model, renamed, what), note

        def true(one: Mapping[str, Array], share: Share) -> tuple[list[dict[str, Array]], str]:
            return outputs.reference(self.before, [one], share.stopped, partial(step, share))

        def together(works: Sequence[Callable[[Share], Any]]) -> list[Any]:
            weights = sum(t.nbytes for t in self.original.graph.initializers.values())
            phase = "running the whole model"
            return side_by_side(
                works,
                [weights] * len(works),
                _WEIGHTS,
                tick=lambda done: self.tell(phase if steps else "", min(len(steps), total), total),
                cancel=self.cancel,
            )

        # a graph of many small operators takes onnxruntime minutes to load, and it says nothing meanwhile
        self.tell("loading the models", 0, total)
        before, (after, note), (known, text) = together([old, new, partial(true, feeds[0])])
        noise = outputs.Noise(text, outputs.depth_of(self.before), _growth(plan))

        def judged(one: outputs.Run, noise: outputs.Noise) -> tuple[OutputEvidence, ...]:
            """Evidence of every output, by as many more runs as it takes to be sure."""
            nonlocal before, known
            found = outputs.compare(one, after, known, noise, note)
            if known and len(known) < len(feeds) and not all(map(_sure, found)):
                more = together([partial(true, feed) for feed in feeds[1:]])
                known = known + [values[0] for values, _ in more if values]
                found = outputs.compare(one, after, known, noise, note)
            if not before.sensitivity and not all(map(_sure, found)):
                # what a rounding of its inputs makes of its outputs
                moved = outputs.run_all(self.original, feeds[:1], "the original", step, shake=True)
                before = replace(before, sensitivity=moved.sensitivity)
                one = replace(one, sensitivity=moved.sensitivity)
                found = outputs.compare(one, after, known, noise, note)
            if not all(e.passed for e in found):
                # few numbers may stand behind many elements: by chance the original's have hardly an error
                noise = replace(noise, independent=independent(self.original, self.drawn))
                found = outputs.compare(one, after, known, noise, note)
            return found

        whole = judged(before, noise)
        if torch_run is None:
            return whole, ()
        theirs = []
        for one in feeds:
            self.tell("running the whole model", min(len(steps), total), total)
            step()
            given = torch_run([one[d.name] for d in self.drawn])
            outputs.check_torch(given, len(before.names))
            theirs.append(tuple(np.asarray(v) for v in given))
        beside = outputs.Run(before.names, tuple(theirs), before.sensitivity)
        return whole, judged(beside, replace(noise, both=True))

    @contextlib.contextmanager
    def _runnable(
        self, plan: Plan | None, found: Mapping[str, Original], share: Share
    ) -> Iterator[tuple[Model, str]]:
        """The tiled model, or, where it has too many nodes for a session, its stand-in (`stand_in`)."""
        model: Model | None = None
        sites = [s for s in plan.sites if s.form in ("unrolled", "lab")] if plan is not None else []
        if plan is not None and sum(s.products for s in sites) > _MANY_NODES and self.before.opset >= 9:
            from explorer.engine.verify.stand_in import scan_stand_in

            model = scan_stand_in(self.before, self.after, plan, found, self._shapes(found))
        if model is None or plan is None:
            yield self.after, ""
            return
        from explorer.engine.formats import onnx_reader, onnx_writer

        with scratch.folder() as folder:
            path = os.path.join(folder, "scan.onnx")
            onnx_writer.write(model, path, cancel=share.stopped)
            many = exact_text(plan.products)
            note = f"in scan form ({many} products side by side take a runtime minutes to load): "
            yield onnx_reader.read(path), note

    def _shapes(self, found: Mapping[str, Original]) -> dict[str, TensorInfo]:
        """Shapes of what goes into and comes out of the sites, as seen in a run."""
        values = self._observed([o for key, o in found.items() if key == o.output], self.drawn)
        return {n: TensorInfo(n, str(v.dtype), tuple(v.shape), "observed") for n, v in values.items()}


def _taken_apart(before: Model, plan: Plan | None, sizes: Mapping[str, int], given: InputShapes) -> Model:
    """The original with the operators taken apart that the plan names."""
    if plan is None or not plan.decomposed:
        return before
    from explorer.engine.transforms.decompose import decompose

    own = {d for v in before.graph.feeds for d in v.shape or () if isinstance(d, str)}
    here = {name: size for name, size in sizes.items() if name in own}
    fixed = {name: size for name, size in here.items() if name not in plan.free}
    shapes = Inference(before, here, _bound(given, here)).main.values
    declared = Inference(before, fixed, _bound(given, fixed)).main.values if plan.free else None
    return decompose(before, shapes, declared, plan.decomposed)[0]


def _bound(given: InputShapes, sizes: Mapping[str, int]) -> InputShapes:
    """Given shapes with the dimensions in them that have a size: what is given goes before `sizes`."""
    return {
        name: (dtype, tuple(sizes.get(d, d) if isinstance(d, str) else d for d in shape))
        for name, (dtype, shape) in given.items()
    }


def _sure(evidence: OutputEvidence) -> bool:
    """Whether more runs would not change it."""
    return evidence.equal or (evidence.passed and evidence.rms_after is not None)


def _key(site: SitePlan) -> str:
    """What tells a site from others: value names are unique in one graph only."""
    return "/".join((*site.place, site.output))


def _sized(site: SitePlan, meaning: Meaning) -> SitePlan:
    """The site at the sizes of a run: those that are open are what they are, the others stay as planned."""
    axes = {"batch": meaning.batch, "M": meaning.M, "K": meaning.K, "N": meaning.N}
    sizes = {axis: axes[axis] for axis in site.dynamic if axis in axes}
    if not sizes:
        return site
    site = replace(site, **sizes)
    grid = tuple(-(-s // t) for s, t in zip((site.M, site.K, site.N), site.tile, strict=True))
    return replace(site, grid=grid, products=site.batch * math.prod(grid))


_WIDTHS = {d.name: d.bits for d in DTYPES.values()}


def _exposed(site: SitePlan) -> int:
    """Bytes of the activations of a site that a run hands out."""
    elements = site.batch * (site.M * site.K + site.M * site.N + (0 if site.weight else site.K * site.N))
    return elements * _WIDTHS.get(site.dtype, 64) // 8


def _growth(plan: Plan | None) -> float:
    """How much more rounding there may be in the longest sum of the plan than in the original's.

    A runtime's own kernel adds a few hundred terms in a row; roundings grow with the square root. Small
    tiles of deep products make longer rows: 1,024 of them for K = 4,096 in tiles 4 deep.
    """
    chains = [chain_length(s) for s in plan.sites] if plan is not None else []
    return max(1.0, math.sqrt(max(chains, default=0) / 256))
