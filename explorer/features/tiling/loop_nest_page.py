"""A step of the loops over tiles as lines: what the buffer holds, what came in, what was moved so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.base import units
from explorer.features.tiling.steps_words import buffer_fields, traffic_fields
from explorer.report.present.figures import share_text
from explorer.tui.text.drawing import draw
from explorer.tui.text.lines import Line, Span, bar, cut, line_width

if TYPE_CHECKING:
    from explorer.facts.cost import TileStep, TileSteps

FULL = 16
"""Lines of a step that is told in full."""


def step_lines(steps: TileSteps, step: TileStep, playing: str, width: int, room: int) -> list[Line]:
    """A step in at most `room` lines: in full, in three, or in one.

    Args:
        steps: The loops.
        step: One of them.
        playing: How fast it goes on, '' if it does not.
        width: In cells.
        room: In lines.
    """
    at = f"{step.step + 1:,} of {steps.count:,}"
    said = f" {playing}" if playing else ""
    head: list[Span] = [(" Step ", "head"), (at, "number"), (f"  {steps.order}", "accent"), (said, "warn")]
    comes = [name for name, load in zip("ABC", step.loads, strict=True) if load]
    came = f"  {' '.join(comes)} in" if comes else "  nothing in"
    gone = ", C out" if step.stores else ""
    if room < 3:
        moved = f"  {share_text(step.traffic, steps.traffic)} moved, {units.bytes_text(step.traffic)}"
        line: Line = (*head, (moved, "dim"))
        # where that has no room: what comes into the buffer and leaves it
        return [
            line if line_width(line) <= width else cut((*head[:2], *head[3:], (came + gone, "dim")), width)
        ]
    share = step.traffic / steps.traffic if steps.traffic else 1.0
    filled, track = bar(share, max(4, min(20, width - 40)))
    if room < FULL:
        held = units.bytes_text(step.a + step.b + step.c)
        traffic = f"{units.bytes_text(step.traffic)} {share_text(step.traffic, steps.traffic)} "
        return [
            cut(head, width),
            cut(((" buffer   ", "dim"), (held, "number"), (came + gone, "dim")), width),
            cut(((" moved    ", "dim"), (traffic, "number"), filled, track), width),
        ]
    head.append((f"  {steps.dataflow}", "dim"))
    lines: list[Line] = [cut(head, width), ((" In the buffer", "head"),), *draw([buffer_fields(step)], width)]
    lines += [((" Moved so far", "head"),), *draw([traffic_fields(step, steps.traffic)], width)[1:]]
    whole = f"  of {units.bytes_text(steps.traffic)}"
    return [cut(line, width) for line in (*lines, ((" ", "text"), filled, track, (whole, "dim")))][:room]
