"""The result of a proof, in words first and figures after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from explorer.base import units
from explorer.base.verdicts import VERDICTS
from explorer.report.terms import field_terms
from explorer.tui.text.lines import BLANK, Line, Span, head, middle, safe, wrap

if TYPE_CHECKING:
    from explorer.facts import OutputEvidence, RegionEvidence, SiteEvidence, VerdictKind, Verification

__all__ = ["TONES", "TO_BLAME", "verdict_lines", "verdict_title"]

TONES: Mapping[VerdictKind, str] = {
    "equal": "good",
    "evidence": "good",
    "different": "bad",
    "unproven": "warn",
}
"""Roles of verdicts."""

TO_BLAME = "Enter which layer departs · Esc close"
"""What can be done about a proof that failed."""

_MOST = 100


def verdict_title(proof: Verification) -> str:
    """'Proven equal', 'Not proved': the verdict as a dialog's title."""
    return VERDICTS[proof.verdict_kind].capitalize()


def verdict_lines(proof: Verification, width: int) -> list[Line]:
    """Verdict, then outputs, matmuls and torch's own outputs, then how it was tried."""
    width -= 1
    lines = list(wrap(((safe(field_terms(proof.verdict)), TONES[proof.verdict_kind]),), width))
    if proof.regions:
        lines += [BLANK, head("Changed regions, run alone"), *_regions(proof.regions, width)]
    if proof.outputs:
        lines += [BLANK, head("Outputs, against the original"), *_outputs(proof.outputs, width)]
    if proof.torch:
        lines += [BLANK, head("Outputs, against PyTorch itself"), *_outputs(proof.torch, width)]
    if proof.sites:
        lines += [BLANK, head("Tiled matmuls"), *_sites(proof.sites, width)]
    lines.append(BLANK)
    ran = " · ".join(filter(None, (units.seeds_text(proof.seeds), units.seconds_text(proof.seconds))))
    lines.extend(wrap(((ran, "dim"),), width))
    for said in proof.inputs[:8]:
        lines.extend(wrap((("input ", "dim"), (safe(said), "dim")), width, 2))
    return lines


def _regions(regions: Sequence[RegionEvidence], width: int) -> list[Line]:
    lines: list[Line] = []
    for region in sorted(regions, key=lambda region: region.kind == "evidence")[:_MOST]:
        changed = region.before if region.before == region.after else f"{region.before} -> {region.after}"
        mark = _mark(True) if region.kind in ("equal", "evidence") else ("✗ ", TONES[region.kind])
        lines.extend(wrap((mark, (safe(region.value), "text"), (f"  {safe(changed)}", "dim")), width, 2))
        tried = f"{region.draws:,} sets of values: " if region.draws else ""
        lines.extend(wrap((("  ", "text"), (f"{tried}{safe(region.reason)}", "dim")), width, 2))
    if len(regions) > _MOST:
        lines.append(((f"{_MOST:,} of {len(regions):,} shown", "dim"),))
    return lines


def _outputs(outputs: Sequence[OutputEvidence], width: int) -> list[Line]:
    lines: list[Line] = []
    for output in outputs[:_MOST]:
        lines.extend(
            wrap(
                (
                    _mark(output.passed),
                    (safe(output.name), "text"),
                    (f"  {output.dtype} {units.shape_text(output.shape)}", "dim"),
                    ("  bit for bit" if output.equal else "", "good"),
                ),
                width,
                2,
            )
        )
        figures = (
            ("max abs", output.max_abs),
            ("max rel", output.max_rel),
            ("MSE", output.mse),
            ("cosine", output.cosine),
        )
        lines.extend(_figures(figures, width))
        if output.nonfinite:
            lines.append(((f"  {output.nonfinite:,} new NaN or Inf", "bad"),))
        if output.reason:
            lines.extend(
                wrap(
                    (("  ", "text"), (safe(field_terms(output.reason)), "dim" if output.passed else "bad")),
                    width,
                    2,
                )
            )
    return lines


def _sites(sites: Sequence[SiteEvidence], width: int) -> list[Line]:
    lines: list[Line] = []
    # what failed is seen however many there are
    for site in sorted(sites, key=lambda site: site.passed)[:_MOST]:
        size = f"{site.M}×{site.K}×{site.N}"
        name = middle(safe(site.name), max(10, width - 2 - len(size) - 16))
        lines.append(
            (
                _mark(site.passed),
                (name, "text"),
                (f"  {size}  {site.tiles:,} {'tile' if site.tiles == 1 else 'tiles'}", "dim"),
            )
        )
        figures = (
            ("max abs", site.max_abs),
            ("MSE", site.mse),
        )
        rounding = None if site.bound_ratio is None else units.rounding_text(site.bound_ratio, site.limit)
        lines.extend(_figures(figures, width, rounding))
        # a site whose sums are exact may be steps away from the original, whose kernel saturates
        apart = site.bound_ratio is None and (site.max_abs or 0.0) >= 1
        for said in (site.structure, site.reason):
            if said and (apart or not site.passed):
                lines.extend(
                    wrap(
                        (("  ", "text"), (safe(field_terms(said)), "dim" if site.passed else "bad")), width, 2
                    )
                )
    if len(sites) > _MOST:
        lines.append(((f"{_MOST:,} of {len(sites):,} shown", "dim"),))
    return lines


def _mark(passed: bool) -> Span:
    return ("✓ ", "good") if passed else ("✗ ", "bad")


def _figures(
    figures: Sequence[tuple[str, float | None]], width: int, rounding: str | None = None
) -> list[Line]:
    spans: list[Span] = [("  ", "text")]
    for label, value in figures:
        if value is not None:
            spans += [(f"{label} ".replace(" ", "\u00a0"), "dim"), (f"{value:.3g}  ", "number")]
    if rounding is not None:
        spans += [("rounding\u00a0", "dim"), (rounding.replace(" ", "\u00a0"), "number")]
    return wrap(spans, width, 2)
