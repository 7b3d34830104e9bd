"""Facts about recorded runs: the events of a run with their times and threads."""

from __future__ import annotations

from typing import Literal

from explorer.base.fact import Fact


class RecordedEvent(Fact, frozen=True, array_like=True):
    """An event of a run: a phase, a module call or a kernel.

    Attributes:
        name: Name in the runtime: 'FusedConv', 'aten::addmm', 'backward'.
        kind: Kind of the event: a phase of a training step, the call of a module, or a kernel.
        start: Seconds from the start of the run.
        thread: Number of the thread, from 0.
        layer: Id of the layer's row in `Analysis.layers`, or None if the event belongs to no layer.
    """

    name: str
    kind: Literal["phase", "module", "kernel"]
    start: float
    seconds: float
    thread: int
    layer: int | None = None


class RecordedRun(Fact, frozen=True):
    """One run under the profiler.

    Attributes:
        seconds: Seconds from the call to the result.
        events: Events. An event that encloses others precedes them.
    """

    seconds: float
    events: tuple[RecordedEvent, ...]
