"""Undo and redo: steps along the states of a session, which are records and never changed.

Each entry of a `facts.History` is a file, so a step back is another number, and nothing is made undone.
"""

from __future__ import annotations

from msgspec.structs import replace

from explorer.facts import History, HistoryEntry, Plan

LONGEST_NAME = 200
"""Characters of a state's name."""


def step(history: History, steps: int) -> History:
    """So many steps forward, or back; at the ends it stays there."""
    last = len(history.entries) - 1
    return replace(history, current=max(0, min(history.current + steps, last)))


def append(history: History, entry: HistoryEntry) -> History:
    """With a state behind the current one; what could have been redone is gone."""
    before = history.entries[: history.current + 1]
    return replace(history, entries=(*before, entry), current=len(before))


def amend(history: History, at: int, **fields: str) -> History:
    """With something else said of a state."""
    entries = list(history.entries)
    entries[at] = replace(entries[at], **fields)
    return replace(history, entries=tuple(entries))


def plan_between(history: History, before: int, after: int) -> Plan | None:
    """What was tiled on the way from one state to a later one; None for nothing, and on the way back."""
    plans = [entry.plan for entry in history.entries[before + 1 : after + 1] if entry.plan]
    if not plans:
        return None
    return replace(
        plans[-1],
        sites=tuple(site for plan in plans for site in plan.sites),
        products=None if any(p.products is None for p in plans) else sum(p.products or 0 for p in plans),
        macs=None if any(p.macs is None for p in plans) else sum(p.macs or 0 for p in plans),
        dims={name: size for plan in plans for name, size in plan.dims.items()},
        free=tuple(dict.fromkeys(name for plan in plans for name in plan.free)),
        decomposed=tuple(dict.fromkeys(name for plan in plans for name in plan.decomposed)),
    )
