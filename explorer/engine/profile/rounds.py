"""Times models in turn, in blocks of runs, so that changes of the clock affect all models equally.

Other work on the machine then also affects all models in the same way.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol

from explorer.engine.profile.compare import TimedModel
from explorer.engine.profile.load import LoadWatch, check_threads, count_processors
from explorer.engine.profile.runs import TimedRuns
from explorer.engine.profile.statistics import find_stop_reason
from explorer.engine.progress import Cancel, OnProgress, report
from explorer.facts.profile.profile import ProfileSpec, Stopped
from explorer.facts.roofline import Machine
from explorer.host.gc_pause import pause_garbage_collector

_COMPARED = 3
"""Minimum number of runs under the profiler for each of several models, even if they add much time.

With three runs of one model and four of the other, a rank test can tell their layers apart.
"""


class Measurement(Protocol):
    """The measurements of one model so far, over all repeats.

    Attributes:
        stopped: The reason why its runs ended.
    """

    stopped: Stopped

    @property
    def max_profiled_runs(self) -> int:
        """Number of runs under the profiler whose events can be kept."""

    def load(self, spec: ProfileSpec, folder: str, stack: ExitStack) -> None:
        """Loads the model.

        Args:
            spec: The options of the profile.
            folder: Folder for scratch files.
            stack: Takes callbacks that undo changes of the process.
        """

    def call_loaded(self, work: Callable[[Any], Any]) -> Any:
        """Calls `work` with the loaded model; returns its result.

        A failure is a `BadModel` that names the layer.
        """

    def collect_samples(self) -> None:
        """Adds the times of the loaded model, and releases it."""

    def build_timed_model(self, spec: ProfileSpec, watch: LoadWatch, machine: Machine | None) -> TimedModel:
        """Builds the profile, with the rows and their samples."""


def time_models(
    measurements: Sequence[Measurement],
    spec: ProfileSpec,
    *,
    scratch: str,
    machine: Machine | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> list[TimedModel]:
    """Times models. Several models run in turn, in blocks of runs.

    Args:
        measurements: Measurements of the models, without samples.
        spec: The options of the profile.
        scratch: Folder for temporary files.
        machine: The machine for the least time of each layer, or None.
        on_progress: Receives the number of runs.
        cancel: Returns whether to stop; called between runs.

    Raises:
        Misuse: There are fewer processors than threads.
        BadModel: A model cannot be loaded or run. The error names the layer and the kernels that ran before
            it.
        Cancelled: `cancel` returned True.
    """
    check_threads(spec.threads)
    report(on_progress, cancel, "loading")
    watch: LoadWatch | None = None
    fewest = _COMPARED if len(measurements) > 1 else 1
    for _ in range(spec.repeat):
        with (
            tempfile.TemporaryDirectory(dir=scratch) as folder_path,
            ExitStack() as stack,
            pause_garbage_collector(),
        ):
            for index, measurement in enumerate(measurements):
                os.mkdir(folder := os.path.join(folder_path, str(index)))
                measurement.load(spec, folder, stack)
                measurement.call_loaded(lambda runs: runs.warm_up(spec, fewest, cancel))
            watch = watch or LoadWatch(spec.threads or count_processors())
            _alternate(measurements, spec, watch, on_progress, cancel)
            for measurement in measurements:
                measurement.collect_samples()
    assert watch is not None
    return [measurement.build_timed_model(spec, watch, machine) for measurement in measurements]


def _alternate(
    measurements: Sequence[Measurement],
    spec: ProfileSpec,
    watch: LoadWatch,
    on_progress: OnProgress,
    cancel: Cancel,
) -> None:
    """Runs blocks of each model in turn, until all models have enough runs."""
    limit = spec.time_limit * len(measurements) / spec.repeat
    began = time.perf_counter()

    def stop(wall: Sequence[float]) -> Stopped | None:
        return find_stop_reason(wall, time.perf_counter() - began, steps=spec.steps, time_limit=limit)

    def step(completed: int) -> None:
        report(on_progress, cancel, "timing", completed, spec.steps or 0)

    is_running = True
    while is_running:
        reasons = [
            measurement.call_loaded(
                partial(
                    TimedRuns.time_block,
                    max_profiled_runs=measurement.max_profiled_runs,
                    watch=watch,
                    step=step,
                    stop=stop,
                )
            )
            for measurement in measurements
        ]
        for measurement, stopped in zip(measurements, reasons, strict=True):
            measurement.stopped = stopped or measurement.stopped
        is_running = None in reasons
