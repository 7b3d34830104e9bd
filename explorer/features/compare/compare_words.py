"""Models side by side, and our numbers beside torchinfo's: `explorer compare`, `layers --style torchinfo`."""

from __future__ import annotations

from explorer.base.units import exact_text
from explorer.facts.comparison import Comparison, Difference
from explorer.report.blocks import Block, Cell, Column, Line, Paragraph, Span, Table
from explorer.report.present.compare.compared_figures import figure_tables, table_notes
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
