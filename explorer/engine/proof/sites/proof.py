"""Planned sites, proved: every product of a plan is walked, and run by itself (layers 1 and 2 of the proof).

The walk (`structure`) is exact and sees everything but a wrong operator body; the run (`sites`) sees the
bodies, on the original's own activations and on dense random ones. Where sizes are open, both are done at
several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.base.units import printable
from explorer.engine.graph.dtypes import element_type
from explorer.engine.graph.interpreter import Wiring
from explorer.engine.graph.model import DTYPES, Model, sources
from explorer.engine.progress import Cancel
from explorer.engine.proof.meanings import MEANINGS, NodeReader, Original, ProductSpec
from explorer.engine.proof.sites.parts import run_in_pieces, run_part
from explorer.engine.proof.sites.runner import Sessions
from explorer.engine.proof.sites.task import SiteSubject, SiteTask, both, site_evidence
from explorer.engine.proof.symbolic.blocks import NotTiled
from explorer.engine.runtime.batching import batches
from explorer.engine.runtime.onnxruntime import Array
from explorer.engine.runtime.parallel import ThreadShare, ended, streamed
from explorer.engine.runtime.random_inputs import RandomInput, any_values, draw
from explorer.engine.shapes import Inference
from explorer.engine.shapes.subgraphs import SubgraphView, places, view
from explorer.facts import Plan, SiteEvidence, SitePlan, TensorInfo
from explorer.host.heaps import give_back

_EXPOSED = 1 << 25
"""Bytes of activations that the original hands out at a time."""

_TOGETHER = 5 << 27
"""Bytes of activations of what is run and walked side by side."""

_HELD = 3 << 28
"""Bytes of memory from which on what was freed is given back before more is handed out."""

LARGE = 1 << 26
"""Bytes of matrices of sites up to which they are proved while the whole model runs."""


class SiteProof:
    """The sites of one plan.

    Args:
        before: The original with what the plan takes apart taken apart: in it stand the sites.
        after: The tiled model.
        tried: How the inputs are drawn, for each of the sizes that are tried; those that the original does
            not take are removed.
        seed: Of the draws.
        tell: Told how far it is: phase, done, total.
        cancel: Asked now and then.

    Attributes:
        unresolved: Planned products whose weight the original does not give, and why.
        outputs: Of the original on the first draw; None where no site stands in the main graph.
        seen: Shapes of what goes into the sites of the main graph and comes out of them.
    """

    def __init__(
        self,
        before: Model,
        after: Model,
        tried: list[tuple[RandomInput, ...]],
        seed: int,
        tell: Callable[[str, int, int], None],
        cancel: Cancel,
    ) -> None:
        self.before, self.after, self.tried, self.seed = before, after, tried, seed
        self.drawn = tried[0]
        self.tell, self.cancel = tell, cancel
        self.unresolved: dict[str, str] = {}
        self.outputs: dict[str, Array] | None = None
        self.seen: dict[str, TensorInfo] = {}
        self._wirings: dict[tuple[str, ...], Wiring | None] = {}
        self._known_places: dict[int, list[SubgraphView]] = {}
        self._sessions: dict[str, Sessions] = {}
        """Of sites of open sizes, which are run at several."""
        self._files = sources((*before.graph.initializers.values(), *after.graph.initializers.values()))

    def forget(self) -> None:
        """Lets the kernel take back the weights that were read, which count as memory; runs map them anew."""
        for file in self._files:
            file.forget()

    def originals(self, plan: Plan | None) -> dict[str, Original]:
        """The planned products as the original has them, by output name.

        A site that the original does not have as a product is no subject of layers 1 and 2: the plan was
        made for another model, such as the one before an earlier tiling.
        """
        if plan is None:
            return {}
        originals = {}
        wiring = Wiring.of(self.before.graph)
        for site in plan.sites:
            try:
                body_model = view(self.before, site.place)
                shared_wiring = None if site.place else wiring
                original = (
                    find_original(body_model, site.output, site, shared_wiring)
                    if body_model is not None
                    else None
                )
            except NotTiled as why:
                self.unresolved[key_of(site)] = printable(str(why))
                continue
            if original is not None and self._stands(site, original):
                originals[key_of(site)] = original
        return originals

    def _stands(self, site: SitePlan, original: Original) -> bool:
        """Whether the other model makes a site of what it multiplies: another tool may have renamed that.

        Or it may have joined what sites have in common with what lies before them: the sizes of a value.
        """
        if site.place not in self._wirings:
            body_model = view(self.after, site.place)
            self._wirings[site.place] = None if body_model is None else Wiring.of(body_model.graph)
        wiring = self._wirings[site.place]
        if wiring is None or wiring.maker(site.output) is None:
            return False
        ends = wiring.needed([site.output], stop=original.inputs)[1]
        return ends <= set(original.inputs) and all(
            name in ends or wiring.maker(name) for name in original.inputs
        )

    def sites(
        self, plan: Plan, originals: Mapping[str, Original], ahead: Future[Any] | None = None
    ) -> tuple[SiteEvidence, ...]:
        """Layers 1 and 2 for every site of the plan that the original has; no large one beside `ahead`."""
        planned = [s for s in plan.sites if key_of(s) in originals]
        evidence_by_site: dict[str, SiteEvidence] = {}
        done, total = 0, len(planned) * len(self.tried)
        for drawn in list(self.tried):
            moved = planned if drawn is self.drawn else [s for s in planned if s.dynamic]
            begun: list[SiteTask] = []

            def tick(more: int, before: int = done) -> None:
                self.tell("proving matmuls", before + more // 2, total)

            coming = self._coming(moved, originals, drawn, begun, ahead)
            works = streamed(
                coming, _TOGETHER, tick=tick, cancel=self.cancel, count=2 * len(moved), beside=ahead
            )
            for task in begun:
                key, evidence = key_of(task.site), task.evidence()
                earlier = evidence_by_site.get(key)
                evidence_by_site[key] = evidence if earlier is None else both(earlier, evidence)
            done += len(works) // 2
        failed = (s for s in plan.sites if key_of(s) in self.unresolved)
        return (
            *(evidence_by_site[key] for key in (key_of(s) for s in planned) if key in evidence_by_site),
            *(site_evidence(s, 0, self.unresolved[key_of(s)], None, "") for s in failed),
        )

    def _coming(
        self,
        moved: Sequence[SitePlan],
        originals: Mapping[str, Original],
        drawn: tuple[RandomInput, ...],
        begun: list[SiteTask],
        ahead: Future[Any] | None,
    ) -> Iterator[tuple[Callable[[ThreadShare], None], int]]:
        """Runs and walks of sites at one of the sizes, and the bytes that each takes; `begun` gets the sites.

        The original is run as far as they need it. What they hold is let go of before more is made.
        """
        wiring = self._wirings.get(()) or Wiring.of(self.after.graph)
        sizes = {key_of(s): _activations(s, originals[key_of(s)]) for s in moved}
        # a large one is handed out by itself, and takes more than what goes into it
        large = {key_of(s): matrices(s) for s in moved if matrices(s) > LARGE}
        groups = list(
            batches(moved, lambda s: max(sizes[key_of(s)], _EXPOSED * (key_of(s) in large)), _EXPOSED)
        )
        runs = self._observed([[originals[key_of(s)] for s in g if not s.place] for g in groups], drawn)
        for group in groups:
            give_back(_HELD)
            try:
                values = next(runs)
            except BadModel:
                if drawn is self.drawn:
                    raise
                # longer than a table of positions, say: the original does not take this size
                self.tried.remove(drawn)
                return
            if drawn is self.drawn:
                for name, value in values.items():
                    self.seen[name] = TensorInfo(name, element_type(value), tuple(value.shape), "observed")
            if any(site.place for site in group):
                self._places(drawn)  # once for all of them
            if any(key_of(site) in large for site in group):
                if ahead is not None:
                    ended(ahead, self.cancel)
                give_back()
            # the longest first: the last to end has the others waiting for it
            for site in sorted(group, key=lambda s: -s.products):
                key = key_of(site)
                prepare = partial(self._subject, site, originals[key], values, drawn, wiring)
                sessions = self._sessions.setdefault(key, {}) if site.dynamic else None
                task = SiteTask(site, originals[key], prepare, self.seed, sessions)
                begun.append(task)
                for work in (task.run, task.walk):
                    yield partial(self._done, work), large.get(key, sizes[key])
                del prepare, task, work
            del values
        give_back(_HELD)
        if drawn is self.drawn and self.seen:
            last = next(runs)
            self.outputs = {v.name: last[v.name] for v in self.before.graph.outputs}

    def _done(self, work: Callable[[ThreadShare], None], share: ThreadShare) -> None:
        """Does a work, and lets go of what it has read."""
        work(share)
        self.forget()

    def _observed(
        self, groups: Sequence[Sequence[Original]], drawn: tuple[RandomInput, ...]
    ) -> Iterator[dict[str, Array]]:
        """What goes into and comes out of the sites in one run of the original, portion by portion."""
        portions = [list(dict.fromkeys(n for o in some for n in (*o.inputs, o.output))) for some in groups]
        if drawn is self.drawn and any(portions):
            portions.append([v.name for v in self.before.graph.outputs])
        return run_in_pieces(self.before, draw(drawn, self.seed), portions, "the original")

    def _subject(
        self,
        site: SitePlan,
        original: Original,
        values: Mapping[str, Array],
        drawn: tuple[RandomInput, ...],
        wiring: Wiring,
        threads: int,
    ) -> SiteSubject:
        """A site with its values; those of one in a body or a function are made here."""
        after: Model | None = self.after
        if site.place:
            after = view(self.after, site.place)
            values = self._within(site, original, drawn, threads)
        if after is None:
            raise NotTiled("there is no such place in the other model")
        if site.place:
            wiring = Wiring.of(after.graph)
        inputs, y = [values[name] for name in original.inputs], values[original.output]
        meaning = original.at([x.shape for x in inputs], y.shape)
        return SiteSubject(after, wiring, _sized(site, meaning), meaning, inputs, y)

    def _within(
        self, site: SitePlan, original: Original, drawn: tuple[RandomInput, ...], threads: int
    ) -> dict[str, Array]:
        """Drawn inputs of a site in a body or a function, which no run shows, and its own output for them."""
        examples = next((p.example for p in self._places(drawn) if p.path == site.place), {})
        generator = np.random.default_rng((self.seed, 3))
        values: dict[str, Array] = {}
        for name in original.inputs:
            info = examples.get(name)
            if info is None or info.shape is None or info.dtype is None:
                raise NotTiled(f"the shape of '{name}' is not known before a run")
            # a size that the data decides may be any
            shape = tuple(d if isinstance(d, int) else 3 for d in info.shape)
            values[name] = any_values(generator, info.dtype, shape)
        body_model = view(self.before, site.place)
        assert body_model is not None
        label = f"'{site.name}' of the original"
        values.update(run_part(body_model, [original.output], values, label, threads))
        return values

    def _places(self, drawn: tuple[RandomInput, ...]) -> list[SubgraphView]:
        """Every graph of the original, with shapes at the sizes of these inputs."""
        if id(drawn) not in self._known_places:
            shapes = {d.name: (d.dtype, d.shape) for d in drawn}
            inference = Inference(self.before, {}, shapes)
            self._known_places[id(drawn)] = list(places(self.before, inference))
        return self._known_places[id(drawn)]


def find_original(
    model: Model, output: str, planned: SitePlan | None = None, wiring: Wiring | None = None
) -> Original | None:
    """The operator of the original that makes `output`, and what it multiplies.

    Args:
        model: The original.
        output: Value name.
        planned: What the plan says of it.
        wiring: Of the original, if it is known.

    Returns:
        None if `output` is not made by a product.

    Raises:
        NotTiled: It is, but not one of its operands comes from the data.
    """
    wiring = wiring or Wiring.of(model.graph)
    node = wiring.maker(output)
    mean = MEANINGS.get((node.domain, node.op)) if node is not None else None
    return mean(node, NodeReader(model, planned, wiring)) if node is not None and mean is not None else None


def key_of(site: SitePlan) -> str:
    """What tells a site from others: value names are unique in one graph only."""
    return "/".join((*site.place, site.output))


def _sized(site: SitePlan, meaning: ProductSpec) -> SitePlan:
    """The site at the sizes of a run: those that are open are what they are, the others stay as planned."""
    axes = {"batch": meaning.batch, "M": meaning.M, "K": meaning.K, "N": meaning.N}
    sizes = {axis: axes[axis] for axis in site.dynamic if axis in axes}
    if not sizes:
        return site
    site = replace(site, **sizes)
    grid = tuple(-(-s // t) for s, t in zip((site.M, site.K, site.N), site.tile, strict=True))
    return replace(site, grid=grid, products=site.batch * math.prod(grid))


_WIDTHS = {d.name: d.bits for d in DTYPES.values()}


def matrices(site: SitePlan) -> int:
    """Bytes of the matrices of a site: at least those of the activations that a run hands out."""
    elements = site.batch * (site.M * site.K + site.M * site.N + (0 if site.weight else site.K * site.N))
    return elements * _WIDTHS.get(site.dtype, 64) // 8


def _activations(site: SitePlan, original: Original) -> int:
    """Bytes of the activations of a site that a run hands out."""
    attributes = original.node.attributes
    # a convolution meets every element of its input with each of its taps, but for those that it strides over
    taps = math.prod(attributes.get("kernel_shape") or ()) / math.prod(attributes.get("strides") or ())
    width = _WIDTHS.get(site.dtype, 64) // 8
    return matrices(site) - int(site.batch * site.M * site.K * (1 - 1 / max(taps, 1))) * width
