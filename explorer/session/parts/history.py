"""Functions on the history of a session: undo, redo, jumps, and new states. Histories are immutable.

Each entry of a `facts.History` is a model of its own, so undo only selects another entry. A change after undo
starts a branch; the other states stay.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from explorer.facts import History, HistoryEntry

MAX_NAME_LENGTH = 200
"""Largest number of characters in the name of a state."""


def step(history: History, steps: int) -> History:
    """Selects the state `steps` further on the current line, or its end. Undo passes -1, and redo 1."""
    line = history.line
    position = max(0, min(line.index(history.current) + steps, len(line) - 1))
    return replace(history, current=line[position], tip=line[-1])


def go(history: History, index: int) -> History:
    """Selects any state. If it is on another line, redo then leads to its newest descendant."""
    line = history.line
    tip = line[-1] if index in line else history.newest(index)
    return replace(history, current=index, tip=tip)


def append(history: History, entry: HistoryEntry) -> History:
    """Adds a state made from the current one and selects it."""
    index = len(history.entries)
    entries = (*history.entries, replace(entry, parent=history.current))
    return replace(history, entries=entries, current=index, tip=index)


def amend(history: History, index: int, **fields: Any) -> History:
    """Returns a history in which one state has other values of `fields`."""
    entries = list(history.entries)
    entries[index] = replace(entries[index], **fields)
    return replace(history, entries=tuple(entries))


def list_between(history: History, first: int, second: int) -> tuple[HistoryEntry, ...]:
    """Lists the states between two states, without their common ancestors, in the order of their indices."""
    first_line, second_line = history.line_to(first), history.line_to(second)
    return tuple(history.entries[index] for index in sorted({*first_line} ^ {*second_line}))
