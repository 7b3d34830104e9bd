"""Text output of `explorer history`, also used by the History screen and the Model tab."""

from __future__ import annotations

import os

from explorer.base.features import list_offers, load
from explorer.base.units import many_text, seconds_text
from explorer.base.verdicts import VERDICTS
from explorer.facts import History, HistoryEntry
from explorer.facts.comparison import FigureTable
from explorer.facts.profile.profile import Profile
from explorer.report.blocks import Block, Cell, Column, Field, Fields, Line, Paragraph, Role, Span, Table
from explorer.report.present.compare.compared_figures import build_figure_blocks as build_figure_blocks
from explorer.report.present.compare.verify import TONES
from explorer.report.present.figures import seconds
from explorer.report.terms import field_terms


def history(
    fact: History, source: str, output: str | None, figures: FigureTable | None = None
) -> list[Block]:
    """Return the answer of `explorer history`: one row per state, with a mark on the current one.

    Args:
        fact: States of the session.
        source: Source of the session's model.
        output: Path of the written script, or None.
        figures: Figures of the states to compare, or None.
    """
    blocks: list[Block] = [
        Line((Span(source, "strong"), Span("   a session that waits to be resumed", "quiet")))
    ]
    blocks += [Line(), states(fact, "*", commands=figures is None), Line()]
    if figures is not None:
        blocks += [*build_figure_blocks(figures), Line()]
    if output is not None:
        return [*blocks, Line(("wrote ", Span(output, "strong")), 2)]
    return [
        *blocks,
        Paragraph("explorer --resume continues it; -o FILE.sh saves it as a script.", "quiet"),
    ]


def states(fact: History, mark: str, *, commands: bool = False) -> Table:
    """Return a table with one row per state, and the tree drawn as in `git log`.

    States that did not lead to the current one are dimmed.

    Args:
        fact: States of the session.
        mark: Mark of the current state.
        commands: Whether to show the command of each state.
    """
    ancestors = fact.line_to(fact.current)
    has_profiles = any(entry.profile for entry in fact.entries)

    def row(state: int, branches: str) -> tuple[Cell, ...]:
        entry = fact.entries[state]
        role: Role = "" if state in ancestors else "quiet"
        change_label = f"  {entry.label}" if entry.name and state else ""
        products = "" if entry.record is None else entry.record.products_text
        is_current = state == fact.current
        return (
            (
                Span(branches, "quiet"),
                Span(mark if is_current else _STATE, "formula" if is_current else "quiet"),
            ),
            str(state),
            (Span(state_name(entry, state), role), Span(change_label, "quiet")),
            Span(products, role),
            _format_proof(entry, state),
            *([_format_time(entry)] if has_profiles else []),
            os.path.basename(entry.saved),
            entry.command if commands else "",
        )

    columns = (
        Column(""),
        Column("", "right", role="quiet"),
        Column("state", shrink=True),
        Column("tile matmuls", "right", drop=3),
        Column("proof"),
        *([Column("time", "right", drop=3)] if has_profiles else []),
        Column("saved as", shrink=True, drop=2, role="quiet", paths=True),
        Column("command", shrink=True, drop=1, role="quiet"),
    )
    return Table(columns, [row(state, branches) for state, branches in tree_rows(fact)])


_STATE = "○"
_MAX_BRANCHES = 8
"""Maximum number of branches that are drawn side by side; the last branches are kept."""


def tree_rows(fact: History) -> list[tuple[int, str]]:
    """Return the states in display order, each with the lines of the tree before it.

    The newest child of a state follows it in the same column. Older children come before it, each in a column
    to the right.
    """
    children, rows = fact.children(), list[tuple[int, str]]()
    pending = [(0, "", "")]
    while pending:
        state, tree_lines, lines_below = pending.pop()
        rows.append((state, tree_lines))
        *older, last = children.get(state, (None,))
        if last is not None:
            pending.append((last, lines_below, lines_below))
        pending += [
            (child, f"{lines_below}├─", f"{lines_below}│ ") for child in reversed(older) if child is not None
        ]
    return [
        (state, lines if len(lines) <= 2 * _MAX_BRANCHES else f"…{lines[-2 * _MAX_BRANCHES + 1 :]}")
        for state, lines in rows
    ]


def state_name(entry: HistoryEntry, state: int) -> str:
    """Return the name of a state: the user's, or the label of the change."""
    return entry.name or ("as opened" if state == 0 else entry.label)


def state_blocks(fact: History, state: int) -> list[Block]:
    """Describe one state: how it was made, the result of its proof, and where it is saved."""
    entry = fact.entries[state]
    rows = [Field("state", Span(f"{state}: {state_name(entry, state)}, {_describe_position(fact, state)}"))]
    if entry.profile is not None:
        rows.append(Field("timed", Span(format_profile_time(entry.profile))))
    if state == 0:
        return [Fields(rows), Paragraph("Nothing was done to it yet.", "quiet")]
    if entry.name:
        rows.append(Field("done", Span(entry.label)))
    if (parent := fact.parent(state) or 0) != state - 1:
        rows.append(Field("made of", Span(f"{parent}: {state_name(fact.entries[parent], parent)}")))
    if entry.change in list_offers("fields"):
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


def format_profile_time(profile: Profile) -> str:
    """Describe the last profile of a state: '22.4 ms a run, batch 8, cpu, 2 threads'."""
    batch = "" if profile.batch is None else f", batch {profile.batch:,}"
    setting = f"{profile.device}, {many_text(profile.threads, 'thread')}, {profile.runtime}"
    load_note = ", on a loaded machine" if profile.loaded else ""
    return f"{seconds_text(profile.wall_seconds)} a run{batch}, {setting}{load_note}"


def _format_time(entry: HistoryEntry) -> Span:
    return Span("") if entry.profile is None else seconds(entry.profile.wall_seconds)


def _describe_position(fact: History, state: int) -> str:
    """Return the position of a state relative to the current one."""
    if state == fact.current:
        return "the current model"
    if state in fact.line_to(fact.current):
        return "before the current"
    return "can be redone" if state in fact.redoable else "on another branch"


def _format_proof(entry: HistoryEntry, state: int) -> Span:
    """Return the result of the proof of a state, or '' for the model as opened."""
    if state == 0:
        return Span("")
    if entry.verification is None:
        return Span("no proof", "warning")
    kind = entry.verification.verdict_kind
    return Span(VERDICTS[kind], TONES[kind])
