"""Text output of `explorer apply` and `explorer passes`, also for the screen."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.base.units import printable
from explorer.facts.user_pass import AppliedPass, UserPass
from explorer.features.rewrite.rewrite_words import build_ending
from explorer.report.blocks import Block, Cell, Column, Field, Fields, Line, Paragraph, Span, Table
from explorer.report.present.compare.verify import evidence
from explorer.report.present.figures import plain


def applied(source: str, fact: AppliedPass) -> list[Block]:
    """Build the output of `explorer apply`."""
    title = (Span("pass ", "quiet"), Span(fact.name, "strong"), Span(" on ", "quiet"), Span(source, "strong"))
    return [Line(title), Line(), *build_applied_pass(fact), *build_ending(fact.output, fact.seconds)]


def build_applied_pass(fact: AppliedPass) -> list[Block]:
    """Build the summary, the changed operators, the proof, and the first layer that differs."""
    changes = ", ".join(f"{op} {change:+,}" for op, change in fact.operators.items())
    fields = [Field("Nodes", plain(fact.nodes), f"of {fact.nodes_before:,}")]
    if changes:
        fields.append(Field("Operators", Span(changes)))
    blocks: list[Block] = []
    if fact.summary:
        blocks.append(Paragraph(printable(fact.summary)))
    blocks += [Fields(fields), Line()]
    if fact.verification is None:
        blocks.append(Paragraph("not compared with the original", "warning"))
    else:
        blocks += evidence(fact.verification)
    if fact.blame:
        blocks += [Line(), Paragraph(f"blame: {printable(fact.blame)}", "bad")]
    return [*blocks, *(Paragraph(note, "warning") for note in fact.notes)]


def list_passes(passes: Sequence[UserPass]) -> list[Block]:
    """Build the output of `explorer passes`."""
    if not passes:
        return [Paragraph("No pass is installed. Name a file with passes: --passes FILE --trust", "warning")]
    rows: list[tuple[Cell, ...]] = []
    for user_pass in passes:
        text = (
            Span(printable(user_pass.problem), "bad") if user_pass.problem else printable(user_pass.summary)
        )
        rows.append((Span(user_pass.name, "strong"), text, user_pass.home))
        for option in user_pass.options:
            help_text = f"{option.help} (default {option.initial or 'empty'})".strip()
            rows.append((f"  {option.name}", printable(help_text), "|".join(option.choices) or option.type))
    return [Table((Column("pass"), Column("", shrink=True), Column("from")), rows, what="passes")]
