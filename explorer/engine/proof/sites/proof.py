"""Proof of planned sites: every product of a plan is walked, and run alone (layers 1 and 2 of the proof).

The walk (`structure`) is exact and sees everything except a wrong operator body. The run (`sites`) sees the
bodies, on the original's own activations and on dense random ones. Open sizes are tested at several
sizes.
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
from explorer.engine.runtime.parallel import ThreadShare, streamed, wait_until_done
from explorer.engine.runtime.random_inputs import RandomInput, any_values, draw
from explorer.engine.shapes import Inference
from explorer.engine.shapes.subgraphs import SubgraphView, places, view
from explorer.facts import Plan, SiteEvidence, SitePlan, TensorInfo
from explorer.host.heaps import give_back

_EXPOSED = 1 << 25
"""Bytes of activations that one run of the original returns."""

_TOGETHER = 5 << 27
"""Bytes of activations of the sites that run and are walked in parallel."""

_HELD = 3 << 28
"""Bytes of freed memory from which on it is given back to the system."""

LARGE = 1 << 26
"""Bytes of matrices of sites up to which they are proved while the whole model runs."""


class SiteProof:
    """The sites of one plan.

    Args:
        before: The original, with the operators decomposed that the plan names.
        after: The tiled model.
        tried: How the inputs are drawn, for each set of sizes. Sizes that the original does not accept are
            removed.
        seed: Of the draws.
        tell: Receives the progress: phase, done, total.
        cancel: Asked now and then.

    Attributes:
        unresolved: Planned products whose weight the original does not have, and why.
        outputs: The original's outputs on the first draw; None if the main graph has no site.
        seen: Shapes of the inputs and outputs of the main graph's sites.
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
        """Sessions of sites with open sizes, which run at several sizes."""
        self._files = sources((*before.graph.initializers.values(), *after.graph.initializers.values()))

    def forget(self) -> None:
        """Lets the system take back the memory of mapped weights; later runs map them again."""
        for file in self._files:
            file.forget()

    def originals(self, plan: Plan | None) -> dict[str, Original]:
        """The planned products as the original has them, by output name.

        Layers 1 and 2 skip a site that the original does not have as a product: the plan was made for
        another model, such as the model before an earlier tiling.
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
            if original is not None and self._has_site(site, original):
                originals[key_of(site)] = original
        return originals

    def _has_site(self, site: SitePlan, original: Original) -> bool:
        """Whether the other model has the site with the original's inputs.

        Another tool may have renamed them, or joined the site with nodes before it, such as sizes of a value.
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
        """Layers 1 and 2 for the plan's sites that the original has; no large site runs beside `ahead`."""
        planned = [s for s in plan.sites if key_of(s) in originals]
        evidence_by_site: dict[str, SiteEvidence] = {}
        done, total = 0, len(planned) * len(self.tried)
        for drawn in list(self.tried):
            moved = planned if drawn is self.drawn else [s for s in planned if s.dynamic]
            begun: list[SiteTask] = []

            def tick(more: int, before: int = done) -> None:
                self.tell("proving matmuls", before + more // 2, total)

            coming = self._works(moved, originals, drawn, begun, ahead)
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

    def _works(
        self,
        moved: Sequence[SitePlan],
        originals: Mapping[str, Original],
        drawn: tuple[RandomInput, ...],
        begun: list[SiteTask],
        ahead: Future[Any] | None,
    ) -> Iterator[tuple[Callable[[ThreadShare], None], int]]:
        """Runs and walks of sites at one set of sizes, with the bytes of each; adds the sites to `begun`.

        The original runs as far as each group needs. The values of a group are freed before the next group.
        """
        wiring = self._wirings.get(()) or Wiring.of(self.after.graph)
        sizes = {key_of(s): _activations(s, originals[key_of(s)]) for s in moved}
        # a large site is a group of its own, and takes more memory than its inputs
        large = {key_of(s): matrices(s) for s in moved if matrices(s) > LARGE}
        groups = list(
            batches(moved, lambda s: max(sizes[key_of(s)], _EXPOSED * (key_of(s) in large)), _EXPOSED)
        )
        runs = self._run_original([[originals[key_of(s)] for s in g if not s.place] for g in groups], drawn)
        for group in groups:
            give_back(_HELD)
            try:
                values = next(runs)
            except BadModel:
                if drawn is self.drawn:
                    raise
                # the original does not accept this size, for instance because of a table of positions
                self.tried.remove(drawn)
                return
            if drawn is self.drawn:
                for name, value in values.items():
                    self.seen[name] = TensorInfo(name, element_type(value), tuple(value.shape), "observed")
            if any(site.place for site in group):
                self._places(drawn)  # once for all sites of the group
            if any(key_of(site) in large for site in group):
                if ahead is not None:
                    wait_until_done(ahead, self.cancel)
                give_back()
            # the longest site first: the last one to end would keep the others waiting
            for site in sorted(group, key=lambda s: -s.products):
                key = key_of(site)
                prepare = partial(self._make_subject, site, originals[key], values, drawn, wiring)
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
        """Does a piece of work, then frees the memory that it read."""
        work(share)
        self.forget()

    def _run_original(
        self, groups: Sequence[Sequence[Original]], drawn: tuple[RandomInput, ...]
    ) -> Iterator[dict[str, Array]]:
        """The inputs and outputs of the sites in one run of the original, portion by portion."""
        portions = [list(dict.fromkeys(n for o in some for n in (*o.inputs, o.output))) for some in groups]
        if drawn is self.drawn and any(portions):
            portions.append([v.name for v in self.before.graph.outputs])
        return run_in_pieces(self.before, draw(drawn, self.seed), portions, "the original")

    def _make_subject(
        self,
        site: SitePlan,
        original: Original,
        values: Mapping[str, Array],
        drawn: tuple[RandomInput, ...],
        wiring: Wiring,
        threads: int,
    ) -> SiteSubject:
        """A site with its values; for a site in a body or a function, random values."""
        after: Model | None = self.after
        if site.place:
            after = view(self.after, site.place)
            values = self._draw_inner_inputs(site, original, drawn, threads)
        if after is None:
            raise NotTiled("there is no such place in the other model")
        if site.place:
            wiring = Wiring.of(after.graph)
        inputs, y = [values[name] for name in original.inputs], values[original.output]
        meaning = original.spec_for([x.shape for x in inputs], y.shape)
        return SiteSubject(after, wiring, _at_run_sizes(site, meaning), meaning, inputs, y)

    def _draw_inner_inputs(
        self, site: SitePlan, original: Original, drawn: tuple[RandomInput, ...], threads: int
    ) -> dict[str, Array]:
        """Random inputs of a site in a body or a function, and the original's output for them."""
        examples = next((p.example for p in self._places(drawn) if p.path == site.place), {})
        generator = np.random.default_rng((self.seed, 3))
        values: dict[str, Array] = {}
        for name in original.inputs:
            info = examples.get(name)
            if info is None or info.shape is None or info.dtype is None:
                raise NotTiled(f"the shape of '{name}' is not known before a run")
            # a data-dependent size may be any
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
    """The operator of the original that makes `output`, and its operands.

    Args:
        model: The original.
        output: Value name.
        planned: The plan of the site.
        wiring: Of the original, if it is known.

    Returns:
        None if no product makes `output`.

    Raises:
        NotTiled: A product makes it, but no operand depends on data.
    """
    wiring = wiring or Wiring.of(model.graph)
    node = wiring.maker(output)
    mean = MEANINGS.get((node.domain, node.op)) if node is not None else None
    return mean(node, NodeReader(model, planned, wiring)) if node is not None and mean is not None else None


def key_of(site: SitePlan) -> str:
    """A key that is unique in the model: value names are unique in one graph only."""
    return "/".join((*site.place, site.output))


def _at_run_sizes(site: SitePlan, meaning: ProductSpec) -> SitePlan:
    """The site at the sizes of a run: open sizes as they are there, the others as planned."""
    axes = {"batch": meaning.batch, "M": meaning.M, "K": meaning.K, "N": meaning.N}
    sizes = {axis: axes[axis] for axis in site.dynamic if axis in axes}
    if not sizes:
        return site
    site = replace(site, **sizes)
    grid = tuple(-(-s // t) for s, t in zip((site.M, site.K, site.N), site.tile, strict=True))
    return replace(site, grid=grid, products=site.batch * math.prod(grid))


_WIDTHS = {d.name: d.bits for d in DTYPES.values()}


def matrices(site: SitePlan) -> int:
    """Bytes of the matrices of a site: at least those of its activations."""
    elements = site.batch * (site.M * site.K + site.M * site.N + (0 if site.weight else site.K * site.N))
    return elements * _WIDTHS.get(site.dtype, 64) // 8


def _activations(site: SitePlan, original: Original) -> int:
    """Bytes of the activations of a site that a run returns."""
    attributes = original.node.attributes
    # a convolution reads each element of its input with each of its taps, except elements that it skips
    taps = math.prod(attributes.get("kernel_shape") or ()) / math.prod(attributes.get("strides") or ())
    width = _WIDTHS.get(site.dtype, 64) // 8
    return matrices(site) - int(site.batch * site.M * site.K * (1 - 1 / max(taps, 1))) * width
