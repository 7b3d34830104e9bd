"""A loaded machine is noticed, and how is said."""

from __future__ import annotations

from explorer.engine.profile.load import LoadWatch, processors
from explorer.engine.profile.statistics import spread

_STEADY = spread([1.0] * 20)


def _watch(switches: list[int], average: float | None = 0.0, threads: int = 1) -> LoadWatch:
    seconds = iter([0.0, 10.0])
    return LoadWatch(
        threads, switches=lambda: switches.pop(0), average=lambda: average, clock=lambda: next(seconds)
    )


def test_a_machine_of_nobody_else_says_nothing() -> None:
    assert _watch([100, 150]).words(_STEADY) == ""


def test_a_processor_that_was_taken_away_is_told_with_its_rate() -> None:
    assert _watch([0, 2000], threads=2).words(_STEADY) == (
        "the processor was taken away 100 times a second from each thread"
    )


def test_a_load_that_was_there_before_is_told() -> None:
    assert "the load average was 99.0 before" in _watch([0, 0], 99.0, processors()).words(_STEADY)
    assert _watch([0, 0], None).words(_STEADY) == ""


def test_runs_that_take_very_different_times_are_told() -> None:
    assert _watch([0, 0]).words(spread([1.0, 2.0] * 10)) == "a run in ten took 2.0 times as long as another"
