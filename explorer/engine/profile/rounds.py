"""Rounds of models timed in turn, by blocks: what changes meanwhile (clock, other work) meets all."""

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
    """What was measured of one model so far, over all repeats.

    Attributes:
        stopped: Why no more runs of it were made.
        room: Runs under the profiler that are kept.
    """

    stopped: Stopped

    @property
    def room(self) -> int:
        """See above."""

    def load(self, spec: ProfileSpec, folder: str, stack: ExitStack) -> None:
        """Loads the model, with its scratch files in a folder; `stack` puts back what it changes."""

    def trying(self, work: Callable[[Any], Any]) -> Any:
        """What `work` does with the loaded model; a failure is a `BadModel` that says at which layer."""

    def take(self) -> None:
        """Adds what was timed, and gives the loaded model up."""

    def timed(self, spec: ProfileSpec, watch: LoadWatch, machine: Machine | None) -> TimedModel:
        """What was found."""


def timed(
    every: Sequence[Measurement],
    spec: ProfileSpec,
    *,
    scratch: str,
    machine: Machine | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> list[TimedModel]:
    """Times models; of several, runs of each follow those of the one before, in turn.

    Args:
        every: The models, of which nothing is measured yet.
        spec: How.
        scratch: A folder for files that live as long as this takes.
        machine: For the least time of each layer.
        on_progress: Told how many runs were made.
        cancel: Asked between runs; True stops.

    Raises:
        Misuse: There are not so many processors.
        BadModel: A model cannot be loaded or run; which layer, and what ran before it, is said.
        Cancelled: `cancel` said so.
    """
    check_threads(spec.threads)
    report(on_progress, cancel, "loading")
    watch: LoadWatch | None = None
    fewest = _COMPARED if len(every) > 1 else 1
    for _ in range(spec.repeat):
        with tempfile.TemporaryDirectory(dir=scratch) as place, ExitStack() as stack, gc_pause():
            for at, one in enumerate(every):
                os.mkdir(folder := os.path.join(place, str(at)))
                one.load(spec, folder, stack)
                one.trying(lambda runs: runs.warm_up(spec, fewest, cancel))
            watch = watch or LoadWatch(spec.threads or processors())
            _alternate(every, spec, watch, on_progress, cancel)
            for one in every:
                one.take()
    assert watch is not None
    return [one.timed(spec, watch, machine) for one in every]


def _alternate(
    every: Sequence[Measurement], spec: ProfileSpec, watch: LoadWatch, on_progress: OnProgress, cancel: Cancel
) -> None:
    """Blocks of runs of each model in turn, until all have enough."""
    limit = spec.time_limit * len(every) / spec.repeat
    began = time.perf_counter()

    def why(wall: Sequence[float]) -> Stopped | None:
        return why_stop(wall, time.perf_counter() - began, steps=spec.steps, time_limit=limit)

    def step(done: int) -> None:
        report(on_progress, cancel, "timing", done, spec.steps or 0)

    going = True
    while going:
        found = [
            one.trying(partial(TimedRuns.block, room=one.room, watch=watch, step=step, stop=why))
            for one in every
        ]
        for one, stopped in zip(every, found, strict=True):
            one.stopped = stopped or one.stopped
        going = None in found
