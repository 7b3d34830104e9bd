"""Which tensors are alive when: the peak of activation memory of an execution order.

A tensor lives from the step that makes it to the end of the last step that uses it; inputs and outputs
of a step are alive together. Weights are not counted: they are resident anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

from explorer.facts import TensorInfo

__all__ = ["Peak", "Step", "live_peak"]

SHOWN = 16
"""How many of the tensors alive at the peak are named."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operator in execution order.

    Attributes:
        label: Path of the layer.
        inputs: Keys of the tensors that it reads.
        outputs: Key, description and bytes of every tensor that it makes. A key that is alive already
            (a view of it, an update in place) takes no memory of its own.
    """

    label: str
    inputs: Sequence[Hashable]
    outputs: Sequence[tuple[Hashable, TensorInfo, int]]


@dataclass(frozen=True, slots=True)
class Peak:
    """The step at which most bytes are alive, and the tensors alive there, largest first."""

    bytes: int
    label: str
    tensors: tuple[TensorInfo, ...]


def live_peak(steps: Sequence[Step], keep: Collection[Hashable] = ()) -> Peak:
    """The largest set of tensors alive at one step.

    Args:
        steps: Execution order; the graph's inputs are the outputs of step 0.
        keep: Keys that are never freed: the graph's outputs, and inputs that the caller holds.

    Returns:
        The peak, at the first step that reaches it. Bytes are 0 when there is nothing to count.
    """
    last: dict[Hashable, int] = {}
    for index, step in enumerate(steps):
        for key in step.inputs:
            last[key] = index
    held = frozenset(keep)
    end = len(steps)
    born: dict[Hashable, tuple[int, TensorInfo, int]] = {}
    freed_after: list[list[int]] = [[] for _ in steps]
    alive = best = at = 0
    for index, step in enumerate(steps):
        for key, info, size in step.outputs:
            if key in born:
                continue
            born[key] = index, info, size
            alive += size
            if key not in held:
                freed_after[max(last.get(key, index), index)].append(size)
        if alive > best:
            best, at = alive, index
        alive -= sum(freed_after[index])
    there = [
        (size, info)
        for key, (birth, info, size) in born.items()
        if birth <= at <= (end if key in held else max(last.get(key, birth), birth)) and size
    ]
    there.sort(key=lambda pair: -pair[0])
    label = steps[at].label if steps else ""
    return Peak(best, label, tuple(info for _, info in there[:SHOWN]))
