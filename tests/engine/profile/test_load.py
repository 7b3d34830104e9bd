"""A loaded machine is noticed, and how is said."""

from __future__ import annotations

from explorer.engine.profile.load import LoadWatch, count_processors
from explorer.engine.profile.statistics import compute_spread

_STEADY = compute_spread([1.0] * 20)


def _watch(
    switches: list[int],
    average: float | None = 0.0,
    threads: int = 1,
    busy: list[tuple[float, float]] | None = None,
) -> LoadWatch:
    seconds = iter([0.0, 0.0, 10.0, 10.0])
    return LoadWatch(
        threads,
        switches=lambda: switches.pop(0),
        busy=lambda: busy.pop(0) if busy else None,
        average=lambda: average,
        clock=lambda: next(seconds),
    )


def test_a_machine_of_nobody_else_says_nothing() -> None:
    assert _watch([100, 150]).describe_load(_STEADY) == ""


def test_a_processor_that_was_taken_away_is_told_with_its_rate() -> None:
    assert _watch([0, 2000], threads=2).describe_load(_STEADY) == (
        "the processor was taken away 100 times a second from each thread"
    )


def test_a_load_that_was_there_before_is_told() -> None:
    assert "the load average was 99.0 before" in _watch([0, 0], 99.0, count_processors()).describe_load(
        _STEADY
    )
    assert _watch([0, 0], None).describe_load(_STEADY) == ""


def test_others_on_our_processors_are_told_and_our_own_work_is_none() -> None:
    # our threads may take the processor from each other
    assert _watch([0, 2000], 99.0, busy=[(50.0, 5.0), (70.0, 24.5)]).describe_load(_STEADY) == ""
    theirs = _watch([0, 2000], busy=[(50.0, 5.0), (70.0, 12.0)]).describe_load(_STEADY)
    assert theirs == (
        f"others kept 1.3 of {count_processors():,} processors busy;"
        " the processor was taken away 200 times a second from each thread"
    )


def test_runs_that_take_very_different_times_are_told() -> None:
    assert (
        _watch([0, 0]).describe_load(compute_spread([1.0, 2.0] * 10))
        == "the slowest tenth of the runs took at least 2.0 times as long as the fastest tenth"
    )
