"""Undo and redo: steps along a line of a session's states, which are records and never changed.

Each entry of a `facts.History` is a file, so a step back is another number, and nothing is made undone. What
is made of a state that was gone back to is a branch: the others stay.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from explorer.facts import History, HistoryEntry, Plan
from explorer.facts.quantize import QuantizedLayer

_LEFT = ("float32", "")
"""Formats of parts that a quantization does not touch."""

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


def formats_at(history: History, at: int) -> dict[str, QuantizedLayer]:
    """What is known of the layers of a state that took a number format on the way to it, by their names."""
    found: dict[str, QuantizedLayer] = {}
    for place in history.line_to(at):
        made = history.entries[place].quantization
        for layer in () if made is None else made.layers:
            if not layer.reason:
                found[layer.name] = _over(found.get(layer.name), layer)
    return found


def _over(before: QuantizedLayer | None, layer: QuantizedLayer) -> QuantizedLayer:
    """A layer that was quantized once more: what was left alone then is rounded as it was before."""
    if before is None:
        return layer
    if layer.weight in _LEFT:
        layer = replace(layer, weight=before.weight, granularity=before.granularity)
    return replace(layer, input=before.input) if layer.input in _LEFT else layer


def plan_between(history: History, before: int, after: int) -> Plan | None:
    """What was tiled on the way from one state to one that was made of it; None for nothing, and else."""
    if before not in history.line_to(after):
        return None
    plans = [entry.plan for entry in between(history, before, after) if entry.plan]
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
