"""Rounds of models timed in turn, in blocks, so that changes of clock or other work affect all of them."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol

from explorer.engine.profile.compare import TimedModel
from explorer.engine.profile.load import LoadWatch, check_threads, processors
from explorer.engine.profile.runs import TimedRuns
from explorer.engine.profile.statistics import why_stop
from explorer.engine.progress import Cancel, OnProgress, report
from explorer.facts.profile.profile import ProfileSpec, Stopped
from explorer.facts.roofline import Machine
from explorer.host.gc_pause import gc_pause

_COMPARED = 3
"""Runs under the profiler, whatever they cost, of each of several models: with four of the other, ranks tell
their layers apart."""


class Measurement(Protocol):
    """The measurements of one model so far, over all repeats.

    Attributes:
        stopped: The reason why its runs ended.
        room: Runs under the profiler that are kept.
    """

    stopped: Stopped

    @property
    def room(self) -> int:
        """See above."""

    def load(self, spec: ProfileSpec, folder: str, stack: ExitStack) -> None:
        """Loads the model, with its scratch files in a folder; `stack` undoes its changes."""

    def trying(self, work: Callable[[Any], Any]) -> Any:
        """The result of `work` on the loaded model; a failure is a `BadModel` that names the layer."""

    def take(self) -> None:
        """Adds the times of the loaded model, and releases it."""

    def timed(self, spec: ProfileSpec, watch: LoadWatch, machine: Machine | None) -> TimedModel:
        """The profile, with the rows and their samples."""


def timed(
    every: Sequence[Measurement],
    spec: ProfileSpec,
    *,
    scratch: str,
    machine: Machine | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> list[TimedModel]:
    """Times models; several models run in turn, in blocks of runs.

    Args:
        every: The models, without measurements yet.
        spec: The options.
        scratch: A folder for temporary files.
        machine: The machine, for the least time of each layer.
        on_progress: Called with the number of runs.
        cancel: Called between runs; True stops.

    Raises:
        Misuse: There are fewer processors than threads.
        BadModel: A model cannot be loaded or run; the error names the layer and the kernels before it.
        Cancelled: `cancel` returned True.
    """
    check_threads(spec.threads)
    report(on_progress, cancel, "loading")
    watch: LoadWatch | None = None
    fewest = _COMPARED if len(every) > 1 else 1
    for _ in range(spec.repeat):
        with tempfile.TemporaryDirectory(dir=scratch) as place, ExitStack() as stack, gc_pause():
            for at, measurement in enumerate(every):
                os.mkdir(folder := os.path.join(place, str(at)))
                measurement.load(spec, folder, stack)
                measurement.trying(lambda runs: runs.warm_up(spec, fewest, cancel))
            watch = watch or LoadWatch(spec.threads or processors())
            _alternate(every, spec, watch, on_progress, cancel)
            for measurement in every:
                measurement.take()
    assert watch is not None
    return [measurement.timed(spec, watch, machine) for measurement in every]


def _alternate(
    every: Sequence[Measurement], spec: ProfileSpec, watch: LoadWatch, on_progress: OnProgress, cancel: Cancel
) -> None:
    """Runs blocks of each model in turn, until all have enough runs."""
    limit = spec.time_limit * len(every) / spec.repeat
    began = time.perf_counter()

    def why(wall: Sequence[float]) -> Stopped | None:
        return why_stop(wall, time.perf_counter() - began, steps=spec.steps, time_limit=limit)

    def step(done: int) -> None:
        report(on_progress, cancel, "timing", done, spec.steps or 0)

    going = True
    while going:
        reasons = [
            measurement.trying(
                partial(TimedRuns.block, room=measurement.room, watch=watch, step=step, stop=why)
            )
            for measurement in every
        ]
        for measurement, stopped in zip(every, reasons, strict=True):
            measurement.stopped = stopped or measurement.stopped
        going = None in reasons
