"""What was seen of sites and outputs as evidence, and in one sentence.

Apart from the proof, since conversions and the twins of torch modules end in the same words.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from explorer.engine.verify.compare import Comparison
from explorer.engine.verify.exact import SATURATES
from explorer.engine.verify.sites import LIMIT, SiteRun
from explorer.facts import OutputEvidence, SiteEvidence, SitePlan
from explorer.units import printable

__all__ = ["both", "site_evidence", "verdict_of"]


def site_evidence(
    site: SitePlan, tiles: int, structure: str, ran: SiteRun | None, unrunnable: str
) -> SiteEvidence:
    """What the walk and the run of one site showed; `structure` and `unrunnable` say what went wrong."""
    seen = ran.comparison if ran is not None and ran.rows else Comparison(0.0)
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
    )


def both(one: SiteEvidence, other: SiteEvidence) -> SiteEvidence:
    """The evidence of two tries of a site: tiles of both, figures of the worse."""
    worse, better = (other, one) if _worse(other, one) else (one, other)
    return replace(
        worse,
        tiles=one.tiles + other.tiles,
        rows=one.rows + other.rows,
        reason=worse.reason if not worse.passed else _said(worse, one.tiles + other.tiles),
        nonfinite=worse.nonfinite + better.nonfinite,
    )


def _worse(a: SiteEvidence, b: SiteEvidence) -> bool:
    if a.passed != b.passed:
        return b.passed
    return (a.bound_ratio or 0.0) / a.limit > (b.bound_ratio or 0.0) / b.limit


def _said(evidence: SiteEvidence, tiles: int) -> str:
    _, _, rest = evidence.reason.partition(" bit for bit")
    return f"{tiles:,} products bit for bit{rest}"


def verdict_of(
    sites: Sequence[SiteEvidence],
    whole: Sequence[OutputEvidence],
    torch: Sequence[OutputEvidence],
    draws: int,
    planned: int,
) -> str:
    """One sentence: what was shown, with figures, or the first thing that is wrong."""
    for site in sites:
        if not site.passed:
            return f"different: site '{printable(site.name)}': {site.reason}"
    for kind, evidence in (("output", whole), ("torch's output", torch)):
        for one in evidence:
            if not one.passed:
                claim = "not proved" if one.equal else "different"
                of_runtime = next((s.reason for s in sites if SATURATES in s.reason), "")
                why = f"; {SATURATES}" if of_runtime else ""
                return f"{claim}: {kind} '{printable(one.name)}': {one.reason}{why}"
    times = "1 draw" if draws == 1 else f"{draws} draws"
    count = "1 output" if len(whole) == 1 else f"{len(whole)} outputs"
    identical = all(e.equal for e in whole)
    parts = []
    exact = all(s.bound_ratio is None for s in sites)  # products of integers
    if sites:
        products = sum(s.tiles for s in sites)
        worst = max(sites, key=lambda s: (s.bound_ratio or 0.0) / s.limit)
        named = "1 site" if len(sites) == 1 else f"{len(sites)} sites"
        error = f"worst error {worst.bound_ratio or 0.0:.2g} of the 1 u scale ({worst.limit:.3g} allowed)"
        if exact:
            error = "their sums are exact"
        parts.append(
            f"{named}, {products:,} product{'' if products == 1 else 's'} checked bit for bit; {error}"
        )
    if len(sites) < planned:
        parts.append(f"{planned - len(sites)} sites of the plan are no products in the first model")
    if identical:
        parts.append(f"{count} bit for bit the same over {times}")
    else:
        own = ", which is what its quantisers make of rounding" if sites and exact else ""
        parts.append(f"{count} over {times}: {_accuracy(whole)}{own}")
    undefined = sum(e.undefined for e in whole)
    if undefined:
        parts.append(f"{undefined:,} elements of the outputs are NaN or Inf in both")
    if torch:
        gap = max((e.max_abs or 0.0 for e in torch), default=0.0)
        parts.append(f"torch's own outputs within {gap:.1e}")
    head = "equal bit for bit" if identical and exact else "equal within rounding"
    return f"{head}: {'; '.join(parts)}"


def _accuracy(whole: Sequence[OutputEvidence]) -> str:
    measured = [e for e in whole if e.rms_before is not None and e.rms_after is not None and not e.equal]
    if not measured:
        return f"largest difference {max(e.max_abs or 0.0 for e in whole):.1e}"
    worst = max(measured, key=lambda e: (e.rms_after or 0.0) / max(e.rms_before or 0.0, 1e-300))
    return f"RMS error {worst.rms_after:.1e} against float64, the original's is {worst.rms_before:.1e}"
