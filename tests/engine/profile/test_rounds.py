"""Models that are timed in turn, by what a clock of the test says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from explorer.engine.profile.compare import TimedModel
from explorer.engine.profile.rounds import time_models
from explorer.engine.profile.runs import TimedRuns
from explorer.facts.profile.profile import ProfileSpec, Stopped


class _Runs(TimedRuns):
    """A model of which each run takes so long, as it says."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def run_once(self, observed: bool) -> float:
        return self._seconds


class _Model:
    """What is to be timed."""

    stopped: Stopped = "time limit"
    max_profiled_runs = 100

    def __init__(self, seconds: float) -> None:
        self._seconds, self.wall = seconds, list[float]()

    def load(self, spec: ProfileSpec, folder: str, stack: ExitStack) -> None:
        self._runs = _Runs(self._seconds)

    def call_loaded(self, work: Callable[[Any], Any]) -> Any:
        return work(self._runs)

    def collect_samples(self) -> None:
        self.wall += self._runs.wall

    def build_timed_model(self, *_: Any) -> TimedModel:
        return None  # type: ignore[return-value]


@pytest.mark.parametrize("repeat", [1, 2])
def test_each_of_two_models_runs_as_often_as_was_asked_however_long_the_other_takes(
    repeat: int, tmp_path: Path
) -> None:
    short, long = _Model(0.001), _Model(0.3)
    time_models([short, long], ProfileSpec(steps=3, repeat=repeat, time_limit=1e6), scratch=str(tmp_path))
    assert [len(short.wall), len(long.wall)] == [3 * repeat, 3 * repeat]
    assert {short.stopped, long.stopped} == {"steps"}
