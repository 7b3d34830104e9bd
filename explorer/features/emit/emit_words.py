"""Text output of `explorer emit` and of the proof of emitted code."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from explorer.base.units import exact_text, many_text, seconds_text, sizes_text
from explorer.base.verdicts import VERDICTS
from explorer.facts import Info
from explorer.facts.emission import BELOW_ZERO, MANIFEST, CodeEvidence, CodeProof
from explorer.report.blocks import (
    Block,
    Cell,
    Column,
    Field,
    Fields,
    Line,
    Paragraph,
    Role,
    Span,
    Table,
    table_of,
)
from explorer.report.present.look.info import title
from explorer.report.present.row_groups import group_rows, list_first_names

_MAX_DIFFERENCES = 12  # counters in the table
_USUAL_LIMIT = 8
"""Error that the proof allows for most sums, in u (unit roundoff, the largest relative rounding error)."""
_ROLES: dict[str, Role] = {"evidence": "good", "different": "bad"}


def emission(info: Info, fact: CodeProof) -> list[Block]:
    """Build the output of `explorer emit`: the verdict, and one row for each kind of site."""
    return [*title(info.model), *code_proof(fact)]


def code_proof(fact: CodeProof) -> list[Block]:
    """Build the proof of emitted code: its machine and folder, the sites, and the verdict."""
    evidence = code_evidence(fact)
    return [_build_fields(fact), *([Line(), *evidence] if evidence else [])]


def code_evidence(fact: CodeProof) -> list[Block]:
    """Build the evidence of each site, the counters that differ at the first wrong site, and the verdict."""
    blocks: list[Block] = []
    if fact.sites:
        blocks.append(_build_site_table(fact.sites))
    if any((site.limit or 0.0) > _USUAL_LIMIT for site in fact.sites):
        text = (
            f"The limit is above {_USUAL_LIMIT} u for a long sum whose terms have mostly one sign, because"
            " its rounding errors add up."
        )
        blocks += [Line(), Paragraph(text, "quiet")]
    differing = [site for site in fact.sites if site.differences]
    if differing:
        blocks += [
            Line(),
            Line(Span(f"counters of {differing[0].name}", "strong")),
            _build_difference_table(differing[0]),
        ]
    if fact.verdict:
        blocks += [Line(), Paragraph(fact.verdict, _ROLES.get(fact.verdict_kind or "", "warning"))]
    return blocks


def _build_fields(fact: CodeProof) -> Fields:
    files = f"{many_text(fact.files, 'C file')} and {MANIFEST}" if fact.files else MANIFEST
    return Fields(
        [
            Field("Machine", fact.machine, ""),
            Field("Folder" if fact.output else "Not written", fact.output or "the code differs", files),
            Field("Time", seconds_text(fact.seconds), ""),
        ]
    )


def _build_site_table(sites: Sequence[CodeEvidence]) -> Table:
    """Build a table with a row for each group of sites that differ only in name, file, time and error."""
    groups = group_rows(
        sites, lambda site: replace(site, name="", file="", seconds=0.0, error=None, limit=None)
    )

    def apply_to_first(
        format_cell: Callable[[CodeEvidence], Cell],
    ) -> Callable[[Sequence[CodeEvidence]], Cell]:
        return lambda group: format_cell(group[0])

    def format_errors(group: Sequence[CodeEvidence]) -> Cell:
        if group[0].exact:
            return "bit for bit"
        error, limit = max(
            ((site.error or 0.0, site.limit or 1.0) for site in group), key=lambda pair: pair[0]
        )
        return f"{error:.2g} of {limit:.3g} u"

    return table_of(
        groups,
        [
            (Column("matmul", shrink=True), lambda group: list_first_names([site.name for site in group])),
            (
                Column("M x K x N", "right", drop=2),
                apply_to_first(lambda site: sizes_text((site.M, site.K, site.N))),
            ),
            (
                Column("file", shrink=True, drop=1, paths=True),
                lambda group: list_first_names([site.file for site in group]),
            ),
            (Column("batch", "right", drop=4), apply_to_first(lambda site: exact_text(site.batch))),
            (Column("values", drop=3), apply_to_first(lambda site: ", ".join(site.values))),
            (Column("largest error"), format_errors),
            (Column("equal byte counts", "right", drop=1), apply_to_first(_format_counters)),
            (Column("seconds", "right", drop=5), lambda group: f"{sum(site.seconds for site in group):.2f}"),
            (Column("verdict"), apply_to_first(_format_verdict)),
        ],
        what="matmuls",
    )


def _format_counters(site: CodeEvidence) -> Cell:
    return f"{site.counters - len(site.differences):,} of {site.counters:,}"


def _format_verdict(site: CodeEvidence) -> Cell:
    return Span(VERDICTS[site.verdict_kind], _ROLES.get(site.verdict_kind, "warning"))


def _build_difference_table(site: CodeEvidence) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            difference.memory,
            difference.counter,
            exact_text(difference.planned),
            "below zero" if difference.counted >= BELOW_ZERO else exact_text(difference.counted),
        )
        for difference in site.differences[:_MAX_DIFFERENCES]
    ]
    columns = Column("memory"), Column("counter"), Column("planned", "right"), Column("counted", "right")
    return Table(columns, rows)
