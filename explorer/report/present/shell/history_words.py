"""History in text, the states of a session: `explorer history`, the History screen, the Model tab."""

from __future__ import annotations

import os

from explorer.base.features import load, offered
from explorer.base.units import many_text, seconds_text
from explorer.base.verdicts import VERDICTS
from explorer.facts import History, HistoryEntry
from explorer.facts.comparison import FigureTable
from explorer.facts.profile.profile import Profile
from explorer.report.blocks import Block, Cell, Column, Field, Fields, Line, Paragraph, Role, Span, Table
from explorer.report.present.compare.compared_figures import figures as figure_blocks
from explorer.report.present.compare.verify import TONES
from explorer.report.present.figures import seconds
from explorer.report.terms import field_terms


def history(
    fact: History, source: str, output: str | None, figures: FigureTable | None = None
) -> list[Block]:
    """The answer of `explorer history`: a row a state, the current one marked.

    Args:
        fact: The states.
        source: The model of the session.
        output: Where the script was written; None if nowhere.
        figures: Of the states that are compared; None without any.
    """
    blocks: list[Block] = [
        Line((Span(source, "strong"), Span("   a session that waits to be resumed", "quiet")))
    ]
    blocks += [Line(), states(fact, "*", commands=figures is None), Line()]
    if figures is not None:
        blocks += [*figure_blocks(figures), Line()]
    if output is not None:
        return [*blocks, Line(("wrote ", Span(output, "strong")), 2)]
    return [
        *blocks,
        Paragraph("explorer --resume goes on with it; -o FILE.sh keeps all of it as a script.", "quiet"),
    ]


def states(fact: History, mark: str, *, commands: bool = False) -> Table:
    """A row a state, as `git log` draws a tree; those that did not lead to the current one quietly.

    Args:
        fact: The states.
        mark: The current one in the drawing of the tree.
        commands: With what made each.
    """
    led = fact.line_to(fact.current)
    timed = any(entry.profile for entry in fact.entries)

    def row(at: int, branches: str) -> tuple[Cell, ...]:
        entry = fact.entries[at]
        role: Role = "" if at in led else "quiet"
        done = f"  {entry.label}" if entry.name and at else ""
        products = "" if entry.record is None else entry.record.products_text
        here = at == fact.current
        return (
            (Span(branches, "quiet"), Span(mark if here else _STATE, "formula" if here else "quiet")),
            str(at),
            (Span(state_name(entry, at), role), Span(done, "quiet")),
            Span(products, role),
            _proof(entry, at),
            *([_time(entry)] if timed else []),
            os.path.basename(entry.saved),
            entry.command if commands else "",
        )

    columns = (
        Column(""),
        Column("", "right", role="quiet"),
        Column("state", shrink=True),
        Column("tile matmuls", "right", drop=3),
        Column("proof"),
        *([Column("time", "right", drop=3)] if timed else []),
        Column("saved as", shrink=True, drop=2, role="quiet"),
        Column("command", shrink=True, drop=1, role="quiet"),
    )
    return Table(columns, [row(at, branches) for at, branches in tree_rows(fact)])


_STATE = "○"
_MOST_BRANCHES = 8
"""Forks that are drawn beside each other; of more the last ones are."""


def tree_rows(fact: History) -> list[tuple[int, str]]:
    """The states in the order in which they are drawn, and the lines of the tree before each.

    What was made of a state last follows it in its own column; older branches stand before that, each in a
    column to the right.
    """
    children, rows = fact.children(), list[tuple[int, str]]()
    waiting = [(0, "", "")]
    while waiting:
        at, lead, below = waiting.pop()
        rows.append((at, lead))
        *older, last = children.get(at, (None,))
        if last is not None:
            waiting.append((last, below, below))
        waiting += [(child, f"{below}├─", f"{below}│ ") for child in reversed(older) if child is not None]
    return [
        (at, lines if len(lines) <= 2 * _MOST_BRANCHES else f"…{lines[-2 * _MOST_BRANCHES + 1 :]}")
        for at, lines in rows
    ]


def state_name(entry: HistoryEntry, at: int) -> str:
    """What a state is called: by its user, or by what was done."""
    return entry.name or ("as opened" if at == 0 else entry.label)


def state_blocks(fact: History, at: int) -> list[Block]:
    """What is known of one state: how it was made, what came of the proof, where it is kept."""
    entry = fact.entries[at]
    rows = [Field("state", Span(f"{at}: {state_name(entry, at)}, {_place(fact, at)}"))]
    if entry.profile is not None:
        rows.append(Field("timed", Span(timed_text(entry.profile))))
    if at == 0:
        return [Fields(rows), Paragraph("Nothing was done to it yet.", "quiet")]
    if entry.name:
        rows.append(Field("done", Span(entry.label)))
    if (before := fact.parent(at) or 0) != at - 1:
        rows.append(Field("made of", Span(f"{before}: {state_name(fact.entries[before], before)}")))
    if entry.change in offered("fields"):
        rows += load("fields", entry.change)(entry.record)
    if entry.verification is not None:
        proof = entry.verification
        rows.append(Field("proof", Span(field_terms(proof.verdict), TONES[proof.verdict_kind])))
    file_text = (
        Span(f"saved as {os.path.basename(entry.saved)}") if entry.saved else Span("not saved", "warning")
    )
    rows.append(Field("file", file_text))
    command: list[Block] = [Line(), Line((Span("$ ", "formula"), entry.command))] if entry.command else []
    return [Fields(rows), *command]


def timed_text(profile: Profile) -> str:
    """How long a state ran when it was last timed, and in what: '22.4 ms a run, batch 8, cpu, 2 threads'."""
    batch = "" if profile.batch is None else f", batch {profile.batch:,}"
    used = f"{profile.device}, {many_text(profile.threads, 'thread')}, {profile.runtime}"
    loaded = ", on a loaded machine" if profile.loaded else ""
    return f"{seconds_text(profile.wall_seconds)} a run{batch}, {used}{loaded}"


def _time(entry: HistoryEntry) -> Span:
    return Span("") if entry.profile is None else seconds(entry.profile.wall_seconds)


def _place(fact: History, at: int) -> str:
    """Where a state stands, seen from the current one."""
    if at == fact.current:
        return "the current model"
    if at in fact.line_to(fact.current):
        return "before the current"
    return "can be redone" if at in fact.redoable else "on another branch"


def _proof(entry: HistoryEntry, at: int) -> Span:
    """What came of the proof of a state; nothing of the model as it was opened."""
    if at == 0:
        return Span("")
    if entry.verification is None:
        return Span("no proof", "warning")
    kind = entry.verification.verdict_kind
    return Span(VERDICTS[kind], TONES[kind])
