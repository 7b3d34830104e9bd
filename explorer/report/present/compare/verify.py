"""Text output of `explorer verify`: the verdict and the evidence, also used by `explorer tile`."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence

from explorer.base.units import exact_text, many_text, rounding_text, seconds_text, seeds_text, shape_text
from explorer.base.verdicts import NOT_NEEDED, PASSED, VERDICTS
from explorer.facts import OutputEvidence, RegionEvidence, SiteEvidence, VerdictKind, Verification
from explorer.report.blocks import Block, Cell, Column, Field, Fields, Line, Paragraph, Role, Span, Table
from explorer.report.present.figures import bar_text, runs_text, share_text
from explorer.report.present.row_groups import group_rows, list_first_names
from explorer.report.terms import clauses, field_terms, split_verdict
from explorer.settings.parse import write_path_word

_BAR_CELLS = 10
"""Width in cells of a bar that shows a share of a limit."""
_RMS_TITLE = "RMS error, was -> is"
"""Title of the RMS errors against a float64 run, before and after a change. The last line names that run."""
_MAX_REGIONS = 40
"""Maximum number of changed regions that are listed."""
_FACTOR_RATIO = 10.0
"""Ratio of an error to its limit from which it is written as a factor instead of a percentage."""

TONES: Mapping[VerdictKind, Role] = {
    "equal": "good",
    "parts": "warning",
    "evidence": "good",
    "different": "bad",
    "unproven": "warning",
}
"""Role of each kind of verdict."""


def verification(fact: Verification, opening: Sequence[str] = ()) -> list[Block]:
    """Return the answer of `explorer verify`: the verdict, then the evidence.

    Args:
        fact: Result of the verification.
        opening: Options used to open the models, for the suggested next command.
    """
    return [
        Line((Span(fact.before, "strong"), Span("   against   ", "quiet"), Span(fact.after, "strong"))),
        Line(),
        *evidence(fact),
        *(suggest_blame(fact.before, fact.after, opening) if fact.verdict_kind == "different" else []),
    ]


def suggest_blame(before: str, after: str, opening: Sequence[str], first: str = "") -> list[Block]:
    """Suggest the command that finds the first differing layer. `first` is a command to run before it."""
    commands = [(first, "write it all the same")] if first else []
    blame = shlex.join(("explorer", "blame", write_path_word(before), write_path_word(after), *opening))
    rows = [
        (Span("next" if index == 0 else "", "quiet"), command, Span(purpose, "quiet"))
        for index, (command, purpose) in enumerate((*commands, (blame, "find the first layer that differs")))
    ]
    return [Line(), Table((Column(""), Column(""), Column("")), rows)]


def evidence(fact: Verification) -> list[Block]:
    """Return the verdict, clause by clause, and the tables of its evidence."""
    blocks: list[Block] = _build_verdict(fact)
    if fact.sites:
        blocks += [Line(), _build_site_table(fact.sites)]
    if fact.regions:
        blocks += [Line(), _build_region_table(fact.regions)]
    if fact.outputs:
        blocks += [Line(), _build_output_table(fact)]
    failed = [
        *((site.name, site.reason or site.structure) for site in fact.sites if not site.passed),
        *((output.name, output.reason) for output in (*fact.outputs, *fact.torch) if not output.passed),
    ]
    if failed:
        rows = [(Span(name, "bad"), field_terms(reason)) for name, reason in failed]
        blocks += [Line(), Table((Column("why", shrink=True), Column("")), rows)]
    inexact = [
        output for output in fact.outputs if output.passed and not output.equal and output.rms_before is None
    ]
    without_float64 = [output for output in inexact if output.reference != NOT_NEEDED]
    if without_float64:
        reason_rows = [
            (output.name, Span(field_terms(output.reason), "warning")) for output in without_float64
        ]
        blocks += [Line(), Table((Column("without a float64 run", shrink=True), Column("")), reason_rows)]
    saturating = [site for site in fact.sites if _is_exact(site) and (site.max_abs or 0.0) >= 1]
    if saturating:
        # exact, but different from the original, whose kernel saturates
        saturating_rows = [(site.name, Span(site.reason, "warning")) for site in saturating]
        blocks += [Line(), Table((Column("unlike the original", shrink=True), Column("")), saturating_rows)]
    return [*blocks, Line(), Paragraph("; ".join(_describe_method(fact)), "quiet")]


def build_key_facts(fact: Verification) -> Fields:
    """Return the main facts of a verdict: equality by construction, the worst error, and the tried inputs."""
    return Fields(
        [_build_construction_field(fact), _build_worst_error_field(fact), _build_inputs_field(fact)]
    )


def _build_construction_field(fact: Verification) -> Field:
    """Return the nodes and tile matmuls that are equal without a run."""
    tiles = sum(site.tiles for site in fact.sites if not site.structure)
    proved = [many_text(fact.nodes, "node")] if fact.nodes else []
    proved += [f"weights of {many_text(tiles, 'tile matmul')}"] if tiles else []
    measured = "the lines below come from runs of both models"
    remark = f"bit for bit; {measured}" if proved else measured
    return Field("equal by construction", Span(", ".join(proved) or "nothing", "strong"), remark)


def _build_worst_error_field(fact: Verification) -> Field:
    """Return the error closest to its limit, or the largest error if nothing has a limit.

    If the models differ and no failed error exceeds its limit, return the largest failed error.
    """
    outputs = (*fact.outputs, *fact.torch)
    if fact.verdict_kind == "different" and (field := _build_failed_field(fact)) is not None:
        return field
    limits = [(share, site.name) for site in fact.sites if (share := _compute_site_share(site)) is not None]
    limits += [(output.limit_share, output.name) for output in outputs if output.limit_share is not None]
    if limits:
        share, name = max(limits)
        role: Role = "strong" if share <= 1 else "bad"
        times = f"{share:,.0f} times" if _FACTOR_RATIO <= share < math.inf else f"{share_text(share, 1)} of"
        return Field("worst error", Span(f"{times} the limit", role), name)
    gaps = [(output.max_abs, output.name) for output in outputs if output.max_abs is not None]
    gaps += [(region.max_abs, region.value) for region in fact.regions if region.max_abs is not None]
    if not gaps:
        return Field("worst error", Span("no value was compared", "strong"))
    gap, name = max(gaps)
    return Field(
        "worst error", Span(f"{gap:.1e}" if gap else "0, bit for bit", "strong"), name if gap else ""
    )


def _build_failed_field(fact: Verification) -> Field | None:
    """Return the largest error of the failed matmuls and outputs; None if one of them exceeded its limit.

    Passed matmuls and outputs are left out, because their errors do not explain the difference.
    """
    failed = [
        (
            _compute_site_share(site),
            site.max_abs,
            f"{site.name}: {field_terms(site.reason or site.structure)}",
        )
        for site in fact.sites
        if not site.passed
    ]
    failed += [
        (output.limit_share, output.max_abs, f"{output.name}: {field_terms(output.reason)}")
        for output in (*fact.outputs, *fact.torch)
        if not output.passed
    ]
    if any(share is not None and share > 1 for share, _, _ in failed):
        return None
    gaps = [(gap, remark) for _, gap, remark in failed if gap]
    if not gaps:
        return Field("worst error", Span("not comparable", "bad"), failed[0][2] if failed else "")
    gap, remark = max(gaps)
    return Field("worst error", Span(f"{gap:.1e}", "bad"), remark)


def _build_inputs_field(fact: Verification) -> Field:
    """Return the seeds of the random inputs and the number of compared rows."""
    rows = sum(site.rows for site in fact.sites)
    parts = [seeds_text(fact.seeds)] if fact.seeds else []
    parts += [f"{many_text(rows, 'row')} of matmuls"] if rows else []
    return Field("tried on", Span("; ".join(parts) or "no input", "strong"))


def _compute_site_share(site: SiteEvidence) -> float | None:
    is_known = site.bound_ratio is not None and math.isfinite(site.bound_ratio) and site.limit > 0
    return (site.bound_ratio or 0.0) / site.limit if is_known else None


def _draw_limit_bar(share: float | None) -> Cell:
    """Draw a bar of an error's share of its limit."""
    if share is None:
        return ""
    filled = bar_text(min(share, 1.0), 1.0, _BAR_CELLS)
    remaining = Span("·" * (_BAR_CELLS - len(filled)), "quiet")
    return Span(filled, "good" if share <= 1 else "bad"), remaining


def _build_verdict(fact: Verification) -> list[Block]:
    """Return the claim of the verdict on one line, and its grounds below."""
    claim, grounds = split_verdict(field_terms(fact.verdict))
    tone = TONES[fact.verdict_kind]
    style: Role = "passed" if tone == "good" else tone
    if not fact.passed:
        return [Paragraph(VERDICTS[fact.verdict_kind].upper(), style), Paragraph(grounds, indent=4)]
    return [
        Paragraph(claim, style),
        *(Paragraph(ground, indent=4) for ground in clauses(grounds) if ground),
    ]


def _describe_method(fact: Verification) -> list[str]:
    """Describe how the evidence was obtained, so that the user can repeat it."""
    parts = runs_text(fact.seeds, fact.sizes)
    parts += fact.inputs
    if fact.sites:
        parts.append("rows compared: those of the inputs, and rows of dense random values")
    measured = [site.rms_before for site in fact.sites] + [output.rms_before for output in fact.outputs]
    if any(rms is not None for rms in measured):
        rounding = "rounding and RMS errors" if fact.sites else "RMS errors"
        parts.append(f"differences are relative to the original's results, {rounding} to a float64 run")
        outputs = [*fact.outputs, *fact.torch]
        if any(o.rms_before is not None for o in outputs) and not all(map(_needs_float64, outputs)):
            parts.append("an output with a dash needs no float64 run for its verdict")
    return [*parts, seconds_text(fact.seconds)]


def _build_site_table(sites: Sequence[SiteEvidence]) -> Table:
    """Return a table of the sites. Equal sites that passed share a row, which shows the worst of them."""

    def make_group_key(site: SiteEvidence) -> tuple[object, ...]:
        # failed sites are never grouped
        fault = site.name if not site.passed or site.nonfinite else ""
        return site.M, site.K, site.N, site.tiles, site.rows, site.bound_ratio is None, fault

    def find_worst(group: Sequence[SiteEvidence]) -> SiteEvidence:
        return max(group, key=lambda site: (site.bound_ratio or 0.0) / site.limit)

    rows: list[tuple[Cell, ...]] = [
        (
            list_first_names([site.title, *(member.title for member in group if member is not site)]),
            exact_text(sum(member.tiles for member in group))
            if not site.structure
            else Span("not shown", "bad"),
            exact_text(sum(member.rows for member in group)),
            _format_float(site.max_abs),
            _format_float(site.mse),
            _format_cosine(site.cosine),
            Span("exact", "good") if _is_exact(site) else _format_ratio(site.bound_ratio, site.limit),
            _draw_limit_bar(_compute_site_share(site)),
            _format_rms_change(site.rms_before, site.rms_after),
            _build_unproven_span()
            if not site.passed and not site.differs
            else _format_verdict(site.passed, site.nonfinite),
        )
        for group in group_rows(sites, make_group_key)
        for site in [find_worst(group)]
    ]
    columns = (
        Column("matmul" if len(rows) == len(sites) else "worst matmul of each kind", shrink=True),
        Column("tiles bit-equal", "right"),
        Column("rows compared", "right", drop=5),
        Column("max difference", "right"),
        Column("MSE", "right", drop=4),
        Column("cosine", "right", drop=6),
        Column("rounding vs exact", "right", drop=1),
        Column("to the limit", drop=2),
        Column(_RMS_TITLE, "right", drop=3),
        Column(""),
    )
    return Table(columns, rows)


def _build_region_table(regions: Sequence[RegionEvidence]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            region.value,
            region.before if region.before == region.after else f"{region.before} -> {region.after}",
            exact_text(region.draws),
            Span("0, bit for bit", "good") if region.equal else _format_float(region.max_abs),
            Span(region.reason, "quiet"),
            Span("ok", "good") if region.kind in PASSED else Span(VERDICTS[region.kind], TONES[region.kind]),
        )
        for region in regions[:_MAX_REGIONS]
    ]
    columns = (
        Column("changed region, by its outputs", shrink=True),
        Column("operators", shrink=True, drop=1),
        Column("sets of values", "right", drop=2),
        Column("max difference", "right"),
        Column("", shrink=True, drop=3),
        Column(""),
    )
    return Table(columns, rows)


def _build_output_table(fact: Verification) -> Table:
    compared = [("before", output) for output in fact.outputs] + [
        ("PyTorch", output) for output in fact.torch
    ]
    has_rms = any(output.rms_before is not None for _, output in compared)
    has_limits = any(output.limit_share is not None for _, output in compared)
    rows: list[tuple[Cell, ...]] = [
        (
            output.name,
            Span(f"{output.dtype} {shape_text(output.shape)}", "quiet"),
            Span(against, "quiet") if fact.torch else "",
            Span("0, bit for bit", "good") if output.equal else _format_float(output.max_abs),
            _format_float(output.relative_rms),
            _format_float(output.mse),
            _format_cosine(output.cosine),
            *([_draw_limit_bar(output.limit_share)] if has_limits else []),
            *(
                [_format_rms_change(output.rms_before, output.rms_after, needed=_needs_float64(output))]
                if has_rms
                else []
            ),
            _summarize_output(output),
        )
        for against, output in compared
    ]
    columns = (
        Column("output", shrink=True),
        Column("", drop=5),
        Column("against"),
        Column("max difference", "right"),
        Column("relative RMS", "right", drop=4),
        Column("MSE", "right", drop=3),
        Column("cosine", "right", drop=6),
        *([Column("to the limit", drop=1)] if has_limits else []),
        *([Column(_RMS_TITLE, "right", drop=2)] if has_rms else []),
        Column(""),
    )
    return Table(columns, rows)


def _needs_float64(output: OutputEvidence) -> bool:
    """Whether the verdict needs a float64 run of an output: not if it is equal or its parts are proved."""
    return output.rms_before is not None or (not output.equal and output.reference != NOT_NEEDED)


def _summarize_output(output: OutputEvidence) -> Cell:
    """Summarize the result for an output in a few words."""
    if output.passed and output.drawn:
        return Span("not compared", "warning")
    if not output.passed and (
        output.equal
        or output.irreproducible
        or (output.undefined and output.max_abs is None and not output.nonfinite)
    ):
        return Span("nothing shown", "bad")
    if output.passed and output.stepped:
        return Span("over a threshold", "warning")
    return _format_verdict(output.passed, output.nonfinite)


def _is_exact(site: SiteEvidence) -> bool:
    """Whether a site was compared with integer arithmetic, which has no error bound because it is exact."""
    return site.passed and site.bound_ratio is None and site.rows > 0 and site.rms_after == 0


def _format_float(value: float | None) -> Span:
    if value is None:
        return Span("?", "warning")
    if not math.isfinite(value):
        return Span(str(value), "bad")
    return Span(f"{value:.1e}" if value else "0")


def _format_cosine(value: float | None) -> Cell:
    if value is None or not math.isfinite(value):
        return _format_float(value)
    return f"{value:.9f}"


def _format_ratio(value: float | None, limit: float) -> Cell:
    if value is None or not math.isfinite(value):
        return _format_float(value)
    return rounding_text(value, limit)


def _format_rms_change(rms_before: float | None, rms_after: float | None, *, needed: bool = True) -> Cell:
    if rms_before is None and rms_after is None:
        return Span("no float64 run" if needed else "-", "quiet")
    return (_format_float(rms_before), Span(" -> "), _format_float(rms_after))


def _build_unproven_span() -> Span:
    return Span(VERDICTS["unproven"], TONES["unproven"])


def _format_verdict(is_passed: bool, nonfinite: int) -> Cell:
    if nonfinite:
        return Span(f"{nonfinite:,} NaN or Inf", "bad")
    return Span("ok", "good") if is_passed else Span("DIFFERENT", "bad")
