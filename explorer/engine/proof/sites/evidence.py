"""Evidence of a tiled site: what its walk and its run showed, with figures."""

from __future__ import annotations

from msgspec.structs import replace

from explorer.engine.proof.compare import OutputComparison
from explorer.engine.proof.sites.rounding import LIMIT
from explorer.engine.proof.sites.run import SiteRun
from explorer.facts import SiteEvidence, SitePlan


def site_evidence(
    site: SitePlan, tiles: int, structure: str, ran: SiteRun | None, unrunnable: str
) -> SiteEvidence:
    """What the walk and the run of one site showed; `structure` and `unrunnable` say what went wrong."""
    seen = ran.comparison if ran is not None and ran.rows else OutputComparison(0.0)
    fault = structure or unrunnable or (ran.reason if ran is not None else "")
    ratio = ran.bound_ratio if ran is not None else None
    limit = ran.limit if ran is not None else LIMIT
    shown = f"error {ratio or 0.0:.2g} u (|x| |W|), {limit:.3g} allowed"
    if ran is not None and ran.exact:
        shown = "its output is that of exact integer arithmetic" + (f"; {ran.note}" if ran.note else "")
    reason = fault or f"{tiles:,} product{'' if tiles == 1 else 's'} bit for bit; {shown}"
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
        **seen.figures(),
        passed=not fault,
        reason=reason,
        differs=bool(ran is not None and ran.reason),
    )


def both(one: SiteEvidence, other: SiteEvidence) -> SiteEvidence:
    """The evidence of two tries of a site: tiles of both, figures of the worse."""
    worse = max(one, other, key=lambda e: (e.differs, not e.passed, (e.bound_ratio or 0.0) / e.limit))
    tiles = one.tiles + other.tiles
    reason = worse.reason
    if worse.passed:
        _, _, rest = worse.reason.partition(" bit for bit")
        reason = f"{tiles:,} products bit for bit{rest}"
    rows, nonfinite = one.rows + other.rows, one.nonfinite + other.nonfinite
    return replace(worse, tiles=tiles, rows=rows, reason=reason, nonfinite=nonfinite)
