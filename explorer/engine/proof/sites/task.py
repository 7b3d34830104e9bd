"""Task of a site: its run and its walk, two pieces of work for any thread, in any order.

A walk holds Python's lock and needs no activations; a run hardly ever holds the lock. In parallel they use
two processors for half the time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.base.units import printable
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
    """A site at the sizes of a run.

    Attributes:
        after: The tiled graph.
        wiring: The wiring of `after`.
        site: The plan of the site.
        meaning: The meaning of the product.
        inputs: The values that it reads, from a run of the original.
        y: The original's own output for them.
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
        site: The plan of the site.
        original: The product as it was.
        prepare: Returns the subject, given a number of threads; raises BadModel or NotTiled without one. It
            is called once, by the first of the two pieces of work.
        seed: Seed of the draws.
        sessions: As for `run_site`.
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
        self._ran: SiteRun | None = None

    def run(self, share: ThreadShare) -> None:
        """Runs the site on true activations and on dense ones."""
        subject = self._subject_on(share)
        if subject is None:
            return
        after, wiring, site, meaning, inputs, y = (getattr(subject, n) for n in SiteSubject.__struct_fields__)
        del subject
        try:
            self._ran = run_site(
                after, site, self.original, meaning, inputs, y, self.seed, share, wiring, self.sessions
            )
        except BadModel as error:
            self._unrunnable = str(error)

    def walk(self, share: ThreadShare) -> None:
        """Walks the site's graph."""
        subject = self._subject_on(share)
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

    def _subject_on(self, share: ThreadShare) -> SiteSubject | None:
        with self._lock:
            if self._prepare is not None:
                try:
                    self._subject = self._prepare(share.threads)
                    self.site = self._subject.site
                except (BadModel, NotTiled) as why:
                    self._structure = printable(str(why))
                self._prepare = None
                return self._subject
            # the second of the two: frees the subject
            subject, self._subject = self._subject, None
            return subject

    def evidence(self) -> SiteEvidence:
        """The evidence from the run and the walk."""
        return site_evidence(self.site, self._tiles, self._structure, self._ran, self._unrunnable)


def site_evidence(
    site: SitePlan, tiles: int, structure: str, ran: SiteRun | None, unrunnable: str
) -> SiteEvidence:
    """Evidence from the walk and the run of a site; `structure` and `unrunnable` say what went wrong."""
    comparison = ran.comparison if ran is not None and ran.rows else OutputComparison(0.0)
    fault = structure or unrunnable or (ran.reason if ran is not None else "")
    ratio = ran.bound_ratio if ran is not None else None
    limit = ran.limit if ran is not None else LIMIT
    finding = f"error {ratio or 0.0:.2g} u (|x| |W|), {limit:.3g} allowed"
    if ran is not None and ran.exact:
        finding = "its output is that of exact integer arithmetic" + (f"; {ran.note}" if ran.note else "")
    reason = fault or f"{tiles:,} product{'' if tiles == 1 else 's'} bit for bit; {finding}"
    return SiteEvidence(
        name=site.name,
        M=site.M,
        K=site.K,
        N=site.N,
        tiles=tiles,
        structure=structure,
        bound_ratio=ratio,
        limit=limit,
        rows=ran.rows if ran is not None else 0,
        **comparison.figures(),
        passed=not fault,
        reason=reason,
        differs=bool(ran is not None and ran.reason),
        saturates=bool(ran is not None and ran.saturates and not fault),
        finding="" if fault else finding,
    )


def both(first: SiteEvidence, second: SiteEvidence) -> SiteEvidence:
    """The evidence of two tries of a site: tiles of both, figures of the worse try."""
    worse = max(first, second, key=lambda e: (e.differs, not e.passed, (e.bound_ratio or 0.0) / e.limit))
    tiles = first.tiles + second.tiles
    reason = worse.reason
    if worse.passed:
        reason = f"{tiles:,} products bit for bit; {worse.finding}"
    rows, nonfinite = first.rows + second.rows, first.nonfinite + second.nonfinite
    return replace(worse, tiles=tiles, rows=rows, reason=reason, nonfinite=nonfinite)
