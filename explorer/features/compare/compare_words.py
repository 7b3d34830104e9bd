"""Models side by side, and our numbers beside torchinfo's: `explorer compare`, `layers --style torchinfo`."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.base.units import exact_text
from explorer.facts import Analysis, Info
from explorer.facts.comparison import Comparison, Difference, TorchinfoDifference, TorchinfoTable
from explorer.report.blocks import Block, Cell, Column, Line, Paragraph, Span, Table, table_of
from explorer.report.present.compare.figures import figure_tables, table_notes
from explorer.report.present.look.info import title
from explorer.report.present.look.table import layers
from explorer.session.headers import label


def compare(fact: Comparison) -> list[Block]:
    """The answer of `explorer compare`: the verdict, totals and operators side by side, the differences."""
    verdict = "a difference in parameters or MACs is not explained"
    if fact.agree:
        verdict = "parameters and MACs are the same, or every difference in them is explained"
        if any(not one.totals.nodes and not one.totals.coverage for one in fact.models):
            verdict = "parameters are the same, or every difference in them is explained; MACs are not known"
    formats: tuple[Cell, ...] = ("Format", *(Span(label(one.model.format), "quiet") for one in fact.models))
    counts = [(op, *(exact_text(count) if count else "-" for count in found)) for op, found in fact.operators]
    return [
        Paragraph(verdict, "passed" if fact.agree else "bad", 0),
        Line(),
        *figure_tables(fact.figures, above=[formats]),
        Line(),
        *table_notes(fact.figures),
        Line(),
        Table((Column("operators"), *(Column("", "right") for _ in fact.models)), counts),
        *_differences(fact),
    ]


def _differences(fact: Comparison) -> list[Block]:
    if not fact.differences:
        return []
    blocks: list[Block] = []
    for at in dict.fromkeys(difference.model for difference in fact.differences):
        source, first = fact.models[at].model.source, fact.models[0].model.source
        blocks += [Line(), Line((Span(source, "strong"), Span("   against   ", "quiet"), first))]
        for difference in fact.differences:
            if difference.model == at:
                blocks += _difference(difference)
    return blocks


def _difference(fact: Difference) -> list[Block]:
    """The figure and its difference on one line, why below: reasons are sentences, not cells."""
    open_ = fact.delta is None or fact.explained != fact.delta
    delta = "?" if fact.delta is None else f"{fact.delta:+,}"
    state = Span("open", "bad") if open_ else Span("explained", "good")
    return [Line((f"{fact.figure}  ", Span(delta, "strong"), "  ", state), 2), Paragraph(fact.why, indent=4)]


def torchinfo(about: Info, fact: TorchinfoTable, analysis: Analysis | None, compared: bool) -> list[Block]:
    """Torchinfo's own table, ours where it was asked for, and with `compared` where they differ and why."""
    blocks: list[Block] = []
    if analysis is None:
        blocks = [
            *title(about.model),
            Line(Span(f"made by torchinfo {fact.version}", "quiet")),
            *(Line(line) for line in fact.text.splitlines()),
        ]
    else:
        blocks = layers(analysis)
    if not compared:
        return blocks
    if not fact.differences:
        return [*blocks, Line(), Paragraph(f"torchinfo {fact.version} agrees with every figure", "good")]
    for why in dict.fromkeys(difference.why for difference in fact.differences):
        blocks += [
            Line(),
            Paragraph(why, "warning", 0),
            _overruled([d for d in fact.differences if d.why == why], fact),
        ]
    return blocks


def _overruled(differences: Sequence[TorchinfoDifference], fact: TorchinfoTable) -> Table:
    """Torchinfo's numbers that one rule overrules."""
    return table_of(
        differences,
        (
            (Column("layer", shrink=True), lambda one: one.path or "total"),
            (Column("kind", shrink=True, drop=1), lambda one: Span(one.kind, "quiet")),
            (Column("figure"), lambda one: one.figure),
            (Column(f"torchinfo {fact.version}", "right"), lambda one: exact_text(one.theirs)),
            (Column("ours", "right", role="strong"), lambda one: exact_text(one.ours)),
        ),
    )
