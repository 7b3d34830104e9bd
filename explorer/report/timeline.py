"""Timeline of a median run: groups, their layers and their kernels, one after the other in tree order.

A profile contains medians and no time stamps, so the timeline does not show one real run. Each group is one
frame, and the wall time outside kernels comes last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from explorer.base.units import printable
from explorer.facts import Layer
from explorer.facts.profile.profile import LayerTime, Profile

Category = Literal["run", "group", "layer", "own", "kernel", "other", "overhead"]
"""Kind of a frame; 'own' is the time of a group outside its rows."""


class Frame(Struct, frozen=True):
    """A frame of the timeline.

    Attributes:
        stack: Names from the outermost frame to this one.
        name: Full name, such as the path of a layer.
        category: Kind of the frame.
        start: Start in seconds after the start of the run.
        seconds: Duration in seconds.
        layer: Measurement of a layer, or None for other frames.
    """

    stack: tuple[str, ...]
    name: str
    category: Category
    start: float
    seconds: float
    layer: LayerTime | None = None


def build_frames(profile: Profile, rows: Sequence[Layer]) -> list[Frame]:
    """Return the frames of a run, outer frames before inner frames.

    Args:
        profile: Profile with the times of the layers, in any order.
        rows: Rows of the tree in pre-order.
    """
    time_by_row = {time.layer: time for time in profile.layers if time.seconds is not None}
    seconds_of = [time_by_row[row.id].seconds.median if row.id in time_by_row else 0.0 for row in rows]  # type: ignore[union-attr]
    total = [*seconds_of]
    for row in reversed(rows):
        if row.parent is not None:
            total[row.parent] += total[row.id]
    stacks: list[tuple[str, ...]] = []
    frames: list[Frame] = []
    start = 0.0
    for row in rows:
        stack = (*(stacks[row.parent] if row.parent is not None else ()), printable(row.name or row.path))
        stacks.append(stack)
        if row.group and total[row.id]:
            frames.append(Frame(stack, row.path, "group", start, total[row.id]))
        if row.id in time_by_row:
            layer = time_by_row[row.id]
            frames.append(
                Frame(stack, row.path, "own" if row.group else "layer", start, seconds_of[row.id], layer)
            )
            if layer.op:
                frames.append(
                    Frame((*stack, printable(layer.op)), layer.op, "kernel", start, seconds_of[row.id])
                )
            start += seconds_of[row.id]
    for entry in profile.other:
        frames.append(Frame((printable(entry.name),), entry.name, "other", start, entry.seconds))
        start += entry.seconds
    if profile.overhead_seconds > 0:
        name = "runtime overhead"
        frames.append(Frame((name,), name, "overhead", start, profile.overhead_seconds))
        start += profile.overhead_seconds
    return [Frame((), "run", "run", 0.0, max(start, profile.wall_seconds)), *frames]


def run_title(profile: Profile, model: str) -> str:
    """Return the title of a run: 'lenet.onnx, batch 8'."""
    return model if profile.batch is None else f"{model}, batch {profile.batch:,}"
