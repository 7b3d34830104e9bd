"""Runs that are timed begin when the threads before them are idle; a dear profiler sees few of them."""

from __future__ import annotations

import pytest

from explorer.engine.profile import runs
from explorer.engine.profile.load import LoadWatch
from explorer.engine.profile.runs import TimedRuns, count_allowed_runs, wait_idle
from explorer.engine.profile.statistics import find_stop_reason
from explorer.facts.profile.profile import Stopped


@pytest.mark.parametrize(
    ("spinning", "processors", "least", "most"),
    [(0.0, 1, 0.0, 0.01), (0.06, 1, 0.06, 0.07), (0.06, 7, 0.06, 0.07), (60.0, 2, 0.5, 0.51)],
)
def test_it_is_waited_until_threads_that_spin_have_stopped_but_not_for_ever(
    spinning: float, processors: int, least: float, most: float
) -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    wait_idle(lambda: min(now, spinning) * processors, sleep, lambda: now)
    assert least <= now <= most


@pytest.mark.parametrize("plain", [1, 6, 10, 53, 1000])
@pytest.mark.parametrize("slower", [0.11, 0.18, 0.5, 1.65, 9.0])
def test_as_many_runs_under_a_profiler_are_paid_for_as_take_all_a_tenth_longer_and_no_more(
    plain: int, slower: float
) -> None:
    def cost(under: int) -> float:
        return under * slower / (plain + under)

    paid = count_allowed_runs(plain, 0.03, 0.03 * (1 + slower))
    assert paid is not None
    assert cost(paid) <= 0.1 + 1e-9
    assert cost(paid + 1) > 0.1 - 1e-9


@pytest.mark.parametrize(("seconds", "under"), [(0.019, 0.19), (0.03, 0.032), (0.03, 0.01)])
def test_any_number_is_paid_for_of_short_runs_and_under_a_profiler_that_costs_little(
    seconds: float, under: float
) -> None:
    assert count_allowed_runs(10, seconds, under) is None


class _Posed(TimedRuns):
    """Runs that take what they are said to, by a clock of their own."""

    def __init__(self, seconds: float, under: float, fewest: int) -> None:
        super().__init__(fewest)
        self.now, self.took = 0.0, {False: seconds, True: under}
        self.clock = lambda: self.now

    def run_once(self, observed: bool) -> float:
        self.now += self.took[observed]
        return self.took[observed]


def _timed(
    seconds: float, slower: float, steps: int | None = None, limit: float = 10.0, fewest: int = 1
) -> _Posed:
    posed = _Posed(seconds, seconds * (1 + slower), fewest)
    watch = LoadWatch(1, switches=lambda: 0, busy=lambda: None, average=lambda: None, clock=lambda: 0.0)

    def stop(wall: list[float]) -> Stopped | None:
        return find_stop_reason(wall, posed.now, steps=steps, time_limit=limit)

    for _ in range(1000):
        if posed.time_block(1000, watch, lambda _: None, stop):  # type: ignore[arg-type]
            return posed
    raise AssertionError("never ended")


def _cost(posed: _Posed) -> float:
    """What all runs took longer for those under the profiler."""
    longer = len(posed.spent) * (posed.took[True] / posed.took[False] - 1)
    return longer / (len(posed.wall) + len(posed.spent))


@pytest.mark.parametrize("seconds", [0.021, 0.08, 0.19, 0.3, 1.0])
@pytest.mark.parametrize("slower", [0.02, 0.18, 0.5, 1.65])
@pytest.mark.parametrize("steps", [None, 60])
def test_a_profiler_costs_a_tenth_of_all_runs_at_most_and_sees_some(
    seconds: float, slower: float, steps: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "wait_idle", lambda: None)
    posed = _timed(seconds, slower, steps, limit=1000.0)
    assert _cost(posed) <= 0.1 + 1e-9
    assert len(posed.profiled) >= (6 if slower < 0.1 or steps is None else 1)


def test_one_run_is_seen_by_a_profiler_however_dear_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "wait_idle", lambda: None)
    posed = _timed(0.5, 20.0, steps=2)
    assert (len(posed.wall), len(posed.profiled), len(posed.spent)) == (2, 1, 1)
    assert len(_timed(0.5, 1.5, limit=5.0).profiled) == 1


@pytest.mark.parametrize("seconds", [0.03, 1.0])
def test_runs_that_are_to_be_recorded_are_made_whatever_they_cost(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "wait_idle", lambda: None)
    assert len(_timed(seconds, 20.0, steps=2, fewest=3).profiled) == 3


def test_short_runs_are_seen_as_often_as_an_interval_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "wait_idle", lambda: None)
    assert len(_timed(0.001, 3.0).profiled) >= 6
