"""A median run laid out: groups, in them layers, in them kernels, end to end in the order of the tree.

A profile has medians, not moments: what is drawn is no recording. So a group is one frame, and what of the
wall time is no kernel's comes last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from explorer.base.units import printable
from explorer.facts import Layer
from explorer.facts.profile.profile import LayerTime, Profile

Category = Literal["run", "group", "layer", "own", "kernel", "other", "overhead"]
"""What a frame is; 'own' is what a group takes itself, without the rows in it."""


class Frame(Struct, frozen=True):
    """A frame of a run.

    Attributes:
        stack: Names from the outermost to its own.
        name: In full: the path of a layer.
        start: Seconds since the run began.
        layer: What was measured of it, where it is a layer.
    """

    stack: tuple[str, ...]
    name: str
    category: Category
    start: float
    seconds: float
    layer: LayerTime | None = None


def frames(profile: Profile, rows: Sequence[Layer]) -> list[Frame]:
    """The frames of a run, outer ones first.

    Args:
        profile: All layers, in any order.
        rows: The rows of the tree, in pre-order.
    """
    of_row = {layer.layer: layer for layer in profile.layers if layer.seconds is not None}
    seconds_of = [of_row[row.id].seconds.median if row.id in of_row else 0.0 for row in rows]  # type: ignore[union-attr]
    total = [*seconds_of]
    for row in reversed(rows):
        if row.parent is not None:
            total[row.parent] += total[row.id]
    stacks: list[tuple[str, ...]] = []
    frames_: list[Frame] = []
    at = 0.0
    for row in rows:
        stack = (*(stacks[row.parent] if row.parent is not None else ()), printable(row.name or row.path))
        stacks.append(stack)
        if row.group and total[row.id]:
            frames_.append(Frame(stack, row.path, "group", at, total[row.id]))
        if row.id in of_row:
            layer = of_row[row.id]
            frames_.append(
                Frame(stack, row.path, "own" if row.group else "layer", at, seconds_of[row.id], layer)
            )
            if layer.op:
                frames_.append(
                    Frame((*stack, printable(layer.op)), layer.op, "kernel", at, seconds_of[row.id])
                )
            at += seconds_of[row.id]
    for entry in profile.other:
        frames_.append(Frame((printable(entry.name),), entry.name, "other", at, entry.seconds))
        at += entry.seconds
    if profile.overhead_seconds > 0:
        name = "runtime overhead"
        frames_.append(Frame((name,), name, "overhead", at, profile.overhead_seconds))
        at += profile.overhead_seconds
    return [Frame((), "run", "run", 0.0, max(at, profile.wall_seconds)), *frames_]


def title(profile: Profile, model: str) -> str:
    """Which run it is: 'lenet.onnx, batch 8'."""
    return model if profile.batch is None else f"{model}, batch {profile.batch:,}"
