"""Splits the proof of a site into two jobs, a run and a walk. Any thread may do either, in any order.

The run executes the site in onnxruntime. The walk executes it on symbols (`structure.walk`). A walk holds
Python's lock and needs no activations. A run rarely holds the lock. In parallel they keep two processors
busy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.base.units import many_text, printable
from explorer.engine.graph.interpreter import Wiring
from explorer.engine.graph.model import Model
from explorer.engine.proof.compare import LIMIT, OutputComparison
from explorer.engine.proof.meanings import Original, ProductSpec
from explorer.engine.proof.sites.run import SiteRun, run_site
from explorer.engine.proof.sites.runner import Sessions
from explorer.engine.proof.structure.walk import walk
from explorer.engine.proof.symbolic.blocks import NotTiled
from explorer.engine.runtime.onnxruntime import Array
from explorer.engine.runtime.parallel import ThreadShare
from explorer.facts import SiteEvidence, SitePlan


class SiteSubject(Struct, frozen=True):
    """The values and the product of a site at the sizes of one run.

    Attributes:
        after: Tiled graph.
        wiring: Index of the nodes of `after` by the values that they produce.
        site: Plan of the site.
        meaning: Product that the site computes.
        inputs: Input arrays of the product, from a run of the original.
        y: Output of the original for `inputs`.
    """

    after: Model
    wiring: Wiring
    site: SitePlan
    meaning: ProductSpec
    inputs: Sequence[Array]
    y: Array


class SiteTask:
    """The proof of one site.

    Args:
        site: Plan of the site.
        original: Product in the original model.
        prepare: Function that takes a number of threads and returns the subject. It raises BadModel or
            NotTiled if it cannot. Only the first of `run` and `walk` calls it.
        seed: Seed of the random inputs.
        sessions: Sessions of earlier runs of this site at other sizes, or None.
    """

    def __init__(
        self,
        site: SitePlan,
        original: Original,
        prepare: Callable[[int], SiteSubject],
        seed: int,
        sessions: Sessions | None,
    ) -> None:
        self.site, self.original, self.seed, self.sessions = site, original, seed, sessions
        self._prepare: Callable[[int], SiteSubject] | None = prepare
        self._lock = threading.Lock()
        self._subject: SiteSubject | None = None
        self._tiles, self._structure, self._unrunnable = 0, "", ""
        self._site_run: SiteRun | None = None

    def run(self, share: ThreadShare) -> None:
        """Runs the site on the original's activations and on dense inputs."""
        subject = self._take_subject(share)
        if subject is None:
            return
        after, wiring, site, meaning, inputs, y = (getattr(subject, n) for n in SiteSubject.__struct_fields__)
        del subject
        try:
            self._site_run = run_site(
                after, site, self.original, meaning, inputs, y, self.seed, share, wiring, self.sessions
            )
        except BadModel as error:
            self._unrunnable = str(error)

    def walk(self, share: ThreadShare) -> None:
        """Runs the site's graph on symbols, without onnxruntime."""
        subject = self._take_subject(share)
        if subject is None:
            return
        shapes = [x.shape for x in subject.inputs]
        dtype = self.original.dtype or str(subject.inputs[0].dtype)
        after, wiring, site, meaning = subject.after, subject.wiring, subject.site, subject.meaning
        del subject
        try:
            self._tiles = walk(
                after, site, self.original, meaning, shapes, dtype, wiring=wiring, cancel=share.stopped
            )
        except NotTiled as fault:
            self._structure = printable(str(fault))

    def _take_subject(self, share: ThreadShare) -> SiteSubject | None:
        """Returns the subject, which the first job prepares; None if that failed."""
        with self._lock:
            if self._prepare is not None:
                try:
                    self._subject = self._prepare(share.threads)
                    self.site = self._subject.site
                except (BadModel, NotTiled) as why:
                    self._structure = printable(str(why))
                self._prepare = None
                return self._subject
            # the second job takes the only reference, so that the memory of the subject is freed
            subject, self._subject = self._subject, None
            return subject

    def build_evidence(self) -> SiteEvidence:
        """Combines the results of the run and the walk."""
        return build_site_evidence(self.site, self._tiles, self._structure, self._site_run, self._unrunnable)


def build_site_evidence(
    site: SitePlan, tiles: int, structure: str, site_run: SiteRun | None, unrunnable: str
) -> SiteEvidence:
    """Builds the evidence from the walk and the run of a site.

    Args:
        site: Plan of the site.
        tiles: Number of tile products that the walk found.
        structure: Fault that the walk found, or ''.
        site_run: Result of the run, or None if it did not run.
        unrunnable: Reason why the site cannot run, or ''.
    """
    comparison = site_run.comparison if site_run is not None and site_run.rows else OutputComparison(0.0)
    fault = structure or unrunnable or (site_run.reason if site_run is not None else "")
    ratio = site_run.bound_ratio if site_run is not None else None
    limit = site_run.limit if site_run is not None else LIMIT
    finding = f"rounding {ratio or 0.0:.2g} u, limit {limit:.3g} u"
    if site_run is not None and site_run.is_exact:
        finding = "its output is that of exact integer arithmetic" + (
            f"; {site_run.note}" if site_run.note else ""
        )
    reason = fault or f"{many_text(tiles, 'tile matmul')} bit for bit; {finding}"
    return SiteEvidence(
        name=site.name,
        M=site.M,
        K=site.K,
        N=site.N,
        tiles=tiles,
        structure=structure,
        bound_ratio=ratio,
        limit=limit,
        rows=site_run.rows if site_run is not None else 0,
        **comparison.list_evidence_fields(),
        passed=not fault,
        reason=reason,
        differs=bool(site_run is not None and site_run.reason),
        saturates=bool(site_run is not None and site_run.saturates and not fault),
        finding="" if fault else finding,
        layer=site.layer,
        products=site.products,
    )


def merge_evidence(first: SiteEvidence, second: SiteEvidence) -> SiteEvidence:
    """Merges the evidence of two tries of a site: the tiles of both, and the figures of the worse try."""
    worse = max(first, second, key=lambda e: (e.differs, not e.passed, (e.bound_ratio or 0.0) / e.limit))
    tiles = first.tiles + second.tiles
    reason = worse.reason
    if worse.passed:
        reason = f"{many_text(tiles, 'tile matmul')} bit for bit; {worse.finding}"
    rows, nonfinite = first.rows + second.rows, first.nonfinite + second.nonfinite
    products = first.products + second.products
    return replace(worse, tiles=tiles, products=products, rows=rows, reason=reason, nonfinite=nonfinite)
