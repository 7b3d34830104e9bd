"""Proves the sites of a tile plan in two layers (step 2 of `proof.proof`). A site is one planned matmul.

Layer 1 runs the graph of the site on symbols (`structure.walk`). This is exact, but it does not show how a
runtime implements an operator. Layer 2 runs the site alone on the original's activations and on dense random
inputs, and so detects a wrong implementation. Sites with open sizes are proved at several sizes.
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
from explorer.engine.graph.dtypes import get_element_type
from explorer.engine.graph.interpreter import Wiring
from explorer.engine.graph.model import DTYPES, Model, list_sources
from explorer.engine.progress import Cancel
from explorer.engine.proof.meanings import MEANINGS, NodeReader, Original, ProductSpec
from explorer.engine.proof.sites.parts import run_in_pieces, run_part
from explorer.engine.proof.sites.runner import Sessions
from explorer.engine.proof.sites.task import SiteSubject, SiteTask, build_site_evidence, merge_evidence
from explorer.engine.proof.symbolic.blocks import NotTiled
from explorer.engine.runtime.batching import split_into_batches
from explorer.engine.runtime.onnxruntime import Array
from explorer.engine.runtime.parallel import ThreadShare, stream_results, wait_until_done
from explorer.engine.runtime.random_inputs import RandomInput, draw, draw_any_values
from explorer.engine.shapes import Inference
from explorer.engine.shapes.subgraphs import SubgraphView, find_view, list_subgraphs
from explorer.facts import Plan, SiteEvidence, SitePlan, TensorInfo
from explorer.host.heaps import give_back

_MAX_RUN_BYTES = 1 << 25
"""Bytes of activations that one run of the original may return."""

_MAX_PARALLEL_BYTES = 5 << 27
"""Bytes of activations of the sites that are proved in parallel."""

_MAX_FREED_BYTES = 3 << 28
"""Bytes of freed memory above which the process returns memory to the operating system."""

LARGE_SITE_BYTES = 1 << 26
"""Bytes of a site's matrices above which its proof waits until the run of the whole model has ended."""


_MIN_BATCH_COUNTS = 3
"""Number of different batch counts (products in a batch) that prove a site with open sizes."""


class SiteProof:
    """Proves the sites of one plan.

    Args:
        before: Original model, in which the operators named by the plan are decomposed.
        after: Tiled model.
        tried: Random inputs, one tuple for each set of sizes. `prove_sites` removes tuples that the original
            rejects.
        seed: Seed of the random inputs.
        report_progress: Callback for progress, with the phase, the completed count and the total count.
        cancel: Function that returns True to cancel the proof, or None.

    Attributes:
        unresolved: Reason why a planned product of the original cannot be specified, by site key: no operand
            depends on data, or it is used in an unsupported way.
        outputs: Outputs of the original for the first set of inputs. None before `prove_sites`, and if the
            main graph has no site.
        observed: Shapes and types of the inputs and outputs of the sites in the main graph.
    """

    def __init__(
        self,
        before: Model,
        after: Model,
        tried: list[tuple[RandomInput, ...]],
        seed: int,
        report_progress: Callable[[str, int, int], None],
        cancel: Cancel,
    ) -> None:
        self.before, self.after, self.tried, self.seed = before, after, tried, seed
        self.drawn = tried[0]
        self.report_progress, self.cancel = report_progress, cancel
        self.unresolved: dict[str, str] = {}
        self.outputs: dict[str, Array] | None = None
        self.observed: dict[str, TensorInfo] = {}
        self._wirings: dict[tuple[str, ...], Wiring | None] = {}
        self._graphs_by_inputs: dict[int, list[SubgraphView]] = {}
        self._sessions: dict[str, Sessions] = {}
        """Sessions of each site with open sizes, by site key: such a site runs at several sizes."""
        self._batches_by_sizes: dict[str, dict[tuple[int, int, int], set[int]]] = {}
        """Batch counts at which a site was proved, by site key and by M, K and N."""
        self._files = list_sources((*before.graph.initializers.values(), *after.graph.initializers.values()))

    def release_weights(self) -> None:
        """Lets the operating system reclaim the memory of mapped weights. Later runs map them again."""
        for file in self._files:
            file.release()

    def find_originals(self, plan: Plan | None) -> dict[str, Original]:
        """Finds the original's product for each site of a plan, by site key.

        A plan may come from another model, such as the model before an earlier tiling. So the result lacks
        sites whose product the original or the tiled model does not contain.
        """
        if plan is None:
            return {}
        originals = {}
        wiring = Wiring.from_graph(self.before.graph)
        for site in plan.sites:
            try:
                body_model = find_view(self.before, site.place)
                shared_wiring = None if site.is_in_body else wiring
                original = None
                if body_model is not None:
                    original = find_original(body_model, site.output, site, shared_wiring)
            except NotTiled as error:
                self.unresolved[make_site_key(site)] = printable(str(error))
                continue
            if original is not None and self._has_site(site, original):
                originals[make_site_key(site)] = original
        return originals

    def _has_site(self, site: SitePlan, original: Original) -> bool:
        """Whether the tiled model computes the site's output from the same inputs as the original.

        Another tool may have renamed the inputs, or merged the site with nodes before it, such as a Shape
        node.
        """
        if site.place not in self._wirings:
            body_model = find_view(self.after, site.place)
            self._wirings[site.place] = None if body_model is None else Wiring.from_graph(body_model.graph)
        wiring = self._wirings[site.place]
        if wiring is None or wiring.find_producer(site.output) is None:
            return False
        boundary = wiring.find_needed_nodes([site.output], stop=original.inputs)[1]
        return boundary <= set(original.inputs) and all(
            name in boundary or wiring.find_producer(name) for name in original.inputs
        )

    def prove_sites(
        self, plan: Plan, originals: Mapping[str, Original], background_run: Future[Any] | None = None
    ) -> tuple[SiteEvidence, ...]:
        """Proves the plan's sites that the original contains (layers 1 and 2).

        Args:
            plan: Plan of the tiled model.
            originals: The original's product for each site, by site key.
            background_run: Work that runs at the same time. Large sites wait until it ends, to save memory.

        Returns:
            The evidence for each site, and for the sites in `unresolved`.

        Raises:
            BadModel: The original does not run on its first inputs.
            Cancelled: The user canceled.
        """
        planned = [s for s in plan.sites if make_site_key(s) in originals]
        evidence_by_site: dict[str, SiteEvidence] = {}
        completed, total = 0, len(planned) * len(self.tried)
        for drawn in list(self.tried):
            tested_sites = planned if drawn is self.drawn else [s for s in planned if s.dynamic]
            tasks: list[SiteTask] = []

            # each site has two jobs
            def report_site(completed_jobs: int, before: int = completed) -> None:
                self.report_progress("proving matmuls", before + completed_jobs // 2, total)

            pending_jobs = self._yield_jobs(tested_sites, originals, drawn, tasks, background_run)
            jobs = stream_results(
                pending_jobs,
                _MAX_PARALLEL_BYTES,
                tick=report_site,
                cancel=self.cancel,
                count=2 * len(tested_sites),
                beside=background_run,
            )
            for task in tasks:
                key, evidence = make_site_key(task.site), task.build_evidence()
                earlier = evidence_by_site.get(key)
                evidence_by_site[key] = evidence if earlier is None else merge_evidence(earlier, evidence)
            completed += len(jobs) // 2
        unresolved_sites = (s for s in plan.sites if make_site_key(s) in self.unresolved)
        return (
            *(
                evidence_by_site[key]
                for key in (make_site_key(s) for s in planned)
                if key in evidence_by_site
            ),
            *(
                build_site_evidence(s, 0, self.unresolved[make_site_key(s)], None, "")
                for s in unresolved_sites
            ),
        )

    def _yield_jobs(
        self,
        tested_sites: Sequence[SitePlan],
        originals: Mapping[str, Original],
        drawn: tuple[RandomInput, ...],
        tasks: list[SiteTask],
        background_run: Future[Any] | None,
    ) -> Iterator[tuple[Callable[[ThreadShare], None], int]]:
        """Yields two jobs for each site at one set of sizes, on numbers and on symbols, with their bytes.

        The original runs group by group, only as far as each group of sites needs. The values of a group are
        freed before the next group starts. Each site's task is appended to `tasks`.
        """
        wiring = self._wirings.get(()) or Wiring.from_graph(self.after.graph)
        sizes = {
            make_site_key(s): _estimate_activation_bytes(s, originals[make_site_key(s)]) for s in tested_sites
        }
        # a large site is a group of its own, and takes more memory than its inputs
        large_site_bytes = {
            make_site_key(s): estimate_matrix_bytes(s)
            for s in tested_sites
            if estimate_matrix_bytes(s) > LARGE_SITE_BYTES
        }
        groups = list(
            split_into_batches(
                tested_sites,
                lambda s: max(
                    sizes[make_site_key(s)], _MAX_RUN_BYTES * (make_site_key(s) in large_site_bytes)
                ),
                _MAX_RUN_BYTES,
            )
        )
        runs = self._run_original(
            [[originals[make_site_key(s)] for s in g if not s.is_in_body] for g in groups], drawn
        )
        for group in groups:
            give_back(_MAX_FREED_BYTES)
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
                    self.observed[name] = TensorInfo(
                        name, get_element_type(value), tuple(value.shape), "observed"
                    )
            if any(site.is_in_body for site in group):
                self._list_graphs(drawn)  # computed here once for all sites of the group
            if any(make_site_key(site) in large_site_bytes for site in group):
                if background_run is not None:
                    wait_until_done(background_run, self.cancel)
                give_back()
            # the longest site starts first, so that no long site runs alone at the end
            for site in sorted(group, key=lambda s: -s.products):
                key = make_site_key(site)
                if site.dynamic and not site.is_in_body and self._is_proved(site, originals[key], values):
                    continue
                prepare = partial(self._build_subject, site, originals[key], values, drawn, wiring)
                sessions = self._sessions.setdefault(key, {}) if site.dynamic else None
                task = SiteTask(site, originals[key], prepare, self.seed, sessions)
                tasks.append(task)
                for job in (task.run, task.walk):
                    yield partial(self._run_job, job), large_site_bytes.get(key, sizes[key])
                del prepare, task, job
            del values
        give_back(_MAX_FREED_BYTES)
        if drawn is self.drawn and self.observed:
            final_values = next(runs)
            self.outputs = {v.name: final_values[v.name] for v in self.before.graph.outputs}

    def _is_proved(self, site: SitePlan, original: Original, values: Mapping[str, Array]) -> bool:
        """Whether earlier proofs of the site suffice for these sizes; if not, records that a proof follows.

        They suffice if they had the same M, K and N, and the same batch count (products in a batch) or
        `_MIN_BATCH_COUNTS` other ones.
        """
        shapes = [values[name].shape for name in original.inputs]
        try:
            spec = original.spec_for(shapes, values[original.output].shape)
        except (BadModel, NotTiled):
            return False  # the proof of the site reports the reason
        batches_by_sizes = self._batches_by_sizes.setdefault(make_site_key(site), {})
        counts = set().union(*batches_by_sizes.values())
        sizes = spec.M, spec.K, spec.N
        if sizes in batches_by_sizes and (spec.batch in counts or len(counts) >= _MIN_BATCH_COUNTS):
            return True
        batches_by_sizes.setdefault(sizes, set()).add(spec.batch)
        return False

    def _run_job(self, job: Callable[[ThreadShare], None], share: ThreadShare) -> None:
        """Runs one job, then frees the weights that it read."""
        job(share)
        self.release_weights()

    def _run_original(
        self, groups: Sequence[Sequence[Original]], drawn: tuple[RandomInput, ...]
    ) -> Iterator[dict[str, Array]]:
        """Runs the original and yields the inputs and outputs of each group of sites."""
        portions = [list(dict.fromkeys(n for o in group for n in (*o.inputs, o.output))) for group in groups]
        if drawn is self.drawn and any(portions):
            portions.append([v.name for v in self.before.graph.outputs])
        return run_in_pieces(self.before, draw(drawn, self.seed), portions, "the original")

    def _build_subject(
        self,
        site: SitePlan,
        original: Original,
        values: Mapping[str, Array],
        drawn: tuple[RandomInput, ...],
        wiring: Wiring,
        threads: int,
    ) -> SiteSubject:
        """Collects the values of a site. A site in a body or a function gets random values."""
        after: Model | None = self.after
        if site.is_in_body:
            after = find_view(self.after, site.place)
            values = self._draw_inner_inputs(site, original, drawn, threads)
        if after is None:
            raise NotTiled("the other model does not have the body or function with this site")
        if site.is_in_body:
            wiring = Wiring.from_graph(after.graph)
        inputs, y = [values[name] for name in original.inputs], values[original.output]
        meaning = original.spec_for([x.shape for x in inputs], y.shape)
        return SiteSubject(after, wiring, _fix_open_sizes(site, meaning), meaning, inputs, y)

    def _draw_inner_inputs(
        self, site: SitePlan, original: Original, drawn: tuple[RandomInput, ...], threads: int
    ) -> dict[str, Array]:
        """Draws random inputs of a site in a body or function, and runs the original on them."""
        examples = next((p.example for p in self._list_graphs(drawn) if p.path == site.place), {})
        generator = np.random.default_rng((self.seed, 3))
        values: dict[str, Array] = {}
        for name in original.inputs:
            info = examples.get(name)
            if info is None or info.shape is None or info.dtype is None:
                raise NotTiled(f"the shape of '{name}' is not known before a run")
            # a data-dependent size may have any value
            shape = tuple(d if isinstance(d, int) else 3 for d in info.shape)
            values[name] = draw_any_values(generator, info.dtype, shape)
        body_model = find_view(self.before, site.place)
        assert body_model is not None
        label = f"'{site.name}' of the original"
        values.update(run_part(body_model, [original.output], values, label, threads))
        return values

    def _list_graphs(self, drawn: tuple[RandomInput, ...]) -> list[SubgraphView]:
        """Lists all graphs of the original, bodies and functions included, with shapes for these inputs."""
        if id(drawn) not in self._graphs_by_inputs:
            shapes = {d.name: (d.dtype, d.shape) for d in drawn}
            inference = Inference(self.before, {}, shapes)
            self._graphs_by_inputs[id(drawn)] = list(list_subgraphs(self.before, inference))
        return self._graphs_by_inputs[id(drawn)]


def find_original(
    model: Model, output: str, planned: SitePlan | None = None, wiring: Wiring | None = None
) -> Original | None:
    """Finds the original's product that computes `output`, with its operands.

    Args:
        model: Original model.
        output: Name of the output value.
        planned: Plan of the site.
        wiring: Index of the original's nodes by the values that they produce, or None to build it.

    Returns:
        The product, or None if no product computes `output`.

    Raises:
        NotTiled: A product computes `output`, but none of its operands depends on data, or its use is not
            supported.
    """
    wiring = wiring or Wiring.from_graph(model.graph)
    node = wiring.find_producer(output)
    if node is None:
        return None
    read_product = MEANINGS.get((node.domain, node.op))
    return None if read_product is None else read_product(node, NodeReader(model, planned, wiring))


def make_site_key(site: SitePlan) -> str:
    """Returns a key that is unique in the model. A value name alone is unique only within one graph."""
    return "/".join((*site.place, site.output))


def _fix_open_sizes(site: SitePlan, meaning: ProductSpec) -> SitePlan:
    """Sets the open sizes of a site to the sizes of a run. Fixed sizes stay as planned."""
    axes = {"batch": meaning.batch, "M": meaning.M, "K": meaning.K, "N": meaning.N}
    sizes = {axis: axes[axis] for axis in site.dynamic if axis in axes}
    if not sizes:
        return site
    site = replace(site, **sizes)
    grid = tuple(-(-s // t) for s, t in zip((site.M, site.K, site.N), site.tile, strict=True))
    return replace(site, grid=grid, products=site.batch * math.prod(grid))


_BITS = {d.name: d.bits for d in DTYPES.values()}


def estimate_matrix_bytes(site: SitePlan) -> int:
    """Estimates the bytes of a site's matrices. The estimate is never below the size of the activations."""
    elements = site.batch * (site.M * site.K + site.M * site.N + (0 if site.weight else site.K * site.N))
    return elements * _BITS.get(site.dtype, 64) // 8


def _estimate_activation_bytes(site: SitePlan, original: Original) -> int:
    """Estimates the bytes of a site's activations that a run returns."""
    attributes = original.node.attributes
    # X repeats an element of a convolution's input for each kernel position that reads it
    repeats = math.prod(attributes.get("kernel_shape") or ()) / math.prod(attributes.get("strides") or ())
    width = _BITS.get(site.dtype, 64) // 8
    return estimate_matrix_bytes(site) - int(site.batch * site.M * site.K * (1 - 1 / max(repeats, 1))) * width
