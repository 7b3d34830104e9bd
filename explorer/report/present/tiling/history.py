"""The states of a session: `explorer history`, the History screen, the Model tab."""

from __future__ import annotations

import os

from explorer.base.units import exact_text
from explorer.base.verdicts import VERDICTS
from explorer.facts import History, HistoryEntry
from explorer.report.blocks import Block, Cell, Column, Field, Fields, Line, Paragraph, Role, Span, Table
from explorer.report.present.compare.verify import TONES
from explorer.report.terms import field_terms

__all__ = ["history", "state_blocks", "state_name", "states"]


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
    blocks += [Line(), states(fact, "*", commands=True), Line()]
    if output is not None:
        return [*blocks, Line(("wrote ", Span(output, "strong")), 2)]
    return [
        *blocks,
        Paragraph("explorer --resume goes on with it; -o FILE.sh keeps it as a script.", "quiet"),
    ]


def states(fact: History, mark: str, *, commands: bool = False) -> Table:
    """A row a state, those that can be redone quietly.

    Args:
        fact: The states.
        mark: What stands before the current one.
        commands: With what made each.
    """

    def row(at: int, entry: HistoryEntry) -> tuple[Cell, ...]:
        role: Role = "quiet" if at > fact.current else ""
        done = f"  {entry.label}" if entry.name and at else ""
        products = "" if entry.plan is None else exact_text(entry.plan.products)
        return (
            Span(mark if at == fact.current else "", "formula"),
            str(at),
            (Span(state_name(entry, at), role), Span(done, "quiet")),
            Span(products, role),
            _proof(entry, at),
            os.path.basename(entry.saved),
            entry.command if commands else "",
        )

    columns = (
        Column(""),
        Column("", "right", role="quiet"),
        Column("state", shrink=True),
        Column("tile matmuls", "right", drop=3),
        Column("proof"),
        Column("saved as", shrink=True, drop=2, role="quiet"),
        Column("command", shrink=True, drop=1, role="quiet"),
    )
    return Table(columns, [row(at, entry) for at, entry in enumerate(fact.entries)])


def state_name(entry: HistoryEntry, at: int) -> str:
    """What a state is called: by its user, or by what was done."""
    return entry.name or ("as opened" if at == 0 else entry.label)


def state_blocks(fact: History, at: int) -> list[Block]:
    """What is known of one state: how it was made, what came of the proof, where it is kept."""
    entry = fact.entries[at]
    where = {-1: "before the current", 0: "the current model", 1: "can be redone"}
    name = f"{at}: {state_name(entry, at)}, {where[(at > fact.current) - (at < fact.current)]}"
    rows = [Field("state", Span(name))]
    if at == 0:
        return [Fields(rows), Paragraph("Nothing was done to it yet.", "quiet")]
    if entry.name:
        rows.append(Field("done", Span(entry.label)))
    if entry.plan is not None:
        sites = [site.name for site in entry.plan.sites]
        many = f"{len(sites):,} matmuls: " if len(sites) > 1 else ""
        rows.append(Field("tiled", Span(f"{many}{', '.join(sites[:3])}{', …' if len(sites) > 3 else ''}")))
    if entry.verification is not None:
        proof = entry.verification
        rows.append(Field("proof", Span(field_terms(proof.verdict), TONES[proof.verdict_kind])))
    kept = Span(f"saved as {os.path.basename(entry.saved)}") if entry.saved else Span("not saved", "warning")
    rows.append(Field("file", kept))
    command: list[Block] = [Line(), Line((Span("$ ", "formula"), entry.command))] if entry.command else []
    return [Fields(rows), *command]


def _proof(entry: HistoryEntry, at: int) -> Span:
    """What came of the proof of a state; nothing of the model as it was opened."""
    if at == 0:
        return Span("")
    if entry.verification is None:
        return Span("no proof", "warning")
    kind = entry.verification.verdict_kind
    return Span(VERDICTS[kind], TONES[kind])
