"""Undo and redo: steps along a line of a session's states, which are records and never changed.

Each entry of a `facts.History` is a file, so a step back is another number, and nothing is made undone. What
is made of a state that was gone back to is a branch: the others stay.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from explorer.facts import History, HistoryEntry

LONGEST_NAME = 200
"""Characters of a state's name."""


def step(history: History, steps: int) -> History:
    """So many steps along the line, or back; at the ends it stays there."""
    line = history.line
    at = max(0, min(line.index(history.current) + steps, len(line) - 1))
    return replace(history, current=line[at], tip=line[-1])


def go(history: History, at: int) -> History:
    """To any state; on another line than this one, redo leads to what was made of it last."""
    line = history.line
    tip = line[-1] if at in line else history.newest(at)
    return replace(history, current=at, tip=tip)


def append(history: History, entry: HistoryEntry) -> History:
    """With a state that was made of the current one, which it follows."""
    made = len(history.entries)
    entries = (*history.entries, replace(entry, parent=history.current))
    return replace(history, entries=entries, current=made, tip=made)


def amend(history: History, at: int, **fields: Any) -> History:
    """With something else said of a state."""
    entries = list(history.entries)
    entries[at] = replace(entries[at], **fields)
    return replace(history, entries=tuple(entries))


def between(history: History, one: int, other: int) -> tuple[HistoryEntry, ...]:
    """What was made on the way from one state to another, by way of what both were made of."""
    a, b = history.line_to(one), history.line_to(other)
    return tuple(history.entries[at] for at in sorted({*a} ^ {*b}))
