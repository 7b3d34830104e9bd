"""Facts about runs as they were recorded: what ran when, and on which thread."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class RecordedEvent(Struct, frozen=True, array_like=True):
    """What ran at one time.

    Attributes:
        name: As the runtime names it: 'FusedConv', 'aten::addmm', 'backward'.
        kind: A phase of a training step, the call of a module, or a kernel.
        start: Seconds since the run began.
        thread: Number of the thread, from 0 on.
        layer: Id of its row in `Analysis.layers`; None for what is no layer.
    """

    name: str
    kind: Literal["phase", "module", "kernel"]
    start: float
    seconds: float
    thread: int
    layer: int | None = None


class RecordedRun(Struct, frozen=True):
    """One run under the profiler.

    Attributes:
        seconds: From call to result.
        events: Those around others first.
    """

    seconds: float
    events: tuple[RecordedEvent, ...]
