"""The states of a session, in text: `explorer history`."""

from __future__ import annotations

from explorer.base.units import exact_text
from explorer.base.verdicts import VERDICTS
from explorer.facts import History, HistoryEntry
from explorer.report.blocks import Block, Cell, Column, Line, Paragraph, Span, Table
from explorer.report.present.compare.verify import TONES

__all__ = ["history", "proof_span"]


def history(fact: History, source: str, output: str | None) -> list[Block]:
    """The answer of `explorer history`: a row a state, the current one marked.

    Args:
        fact: The states.
        source: The model of the session.
        output: Where the script was written; None if nowhere.
    """
    blocks: list[Block] = [
        Line((Span(source, "strong"), Span("   a session that waits to be resumed", "quiet")))
    ]
    columns = (
        Column(""),
        Column("", "right", role="quiet"),
        Column("state", shrink=True),
        Column("tile matmuls", "right"),
        Column("proof"),
        Column("command", shrink=True, drop=1, role="quiet"),
    )
    rows = [_row(entry, at, fact.current) for at, entry in enumerate(fact.entries)]
    blocks += [Line(), Table(columns, rows), Line()]
    if output is not None:
        return [*blocks, Line(("wrote ", Span(output, "strong")), 2)]
    return [
        *blocks,
        Paragraph("explorer --resume goes on with it; -o FILE.sh keeps it as a script.", "quiet"),
    ]


def _row(entry: HistoryEntry, at: int, current: int) -> tuple[Cell, ...]:
    what = "as opened" if at == 0 else entry.label
    name: Cell = (Span(f"{entry.name}  "), Span(what, "quiet")) if entry.name else what
    products = "" if entry.plan is None else exact_text(entry.plan.products)
    return ("*" if at == current else "", str(at), name, products, proof_span(entry, at), entry.command)


def proof_span(entry: HistoryEntry, at: int) -> Span:
    """What came of the proof of a state; nothing of the model as it was opened."""
    if at == 0:
        return Span("")
    if entry.verification is None:
        return Span("no proof", "warning")
    kind = entry.verification.verdict_kind
    return Span(VERDICTS[kind], TONES[kind])
