"""How sure a median is, and when enough runs were made."""

from __future__ import annotations

import random

import pytest

from explorer.engine.profile.statistics import compute_spread, find_stop_reason, is_settled


def test_the_interval_of_a_median_is_that_of_the_tables() -> None:
    # 95 % intervals by order statistics, j-th smallest to j-th largest (Conover, table A3 with p = 1/2)
    for count, place in ((6, 1), (8, 1), (9, 2), (12, 3), (20, 6), (50, 18), (100, 40)):
        times = compute_spread([float(at) for at in range(1, count + 1)])
        assert (times.low, times.high) == (place, count + 1 - place), count


def test_the_interval_holds_the_true_median_in_95_of_100_measurements() -> None:
    draw = random.Random(0)
    held = 0
    for _ in range(1000):
        times = compute_spread([draw.expovariate(1.0) ** 3 for _ in range(25)])  # a long tail, as times have
        held += times.low <= 0.6931471805599453**3 <= times.high
    assert 950 <= held <= 990


def test_many_samples_take_no_longer_and_their_interval_goes_on_from_that_of_fewer() -> None:
    few, many = (compute_spread([float(at) for at in range(count)]) for count in (1000, 1001))
    assert many.low == pytest.approx(few.low, abs=2)
    assert compute_spread([0.5] * 100_000).low == 0.5


def test_five_samples_are_never_sure() -> None:
    times = compute_spread([1.0] * 5)
    assert not times.sure
    assert not is_settled(times)


def test_quantiles_lie_between_the_samples_around_them() -> None:
    times = compute_spread([3.0, 1.0, 2.0, 4.0])
    assert (times.median, times.count) == (2.5, 4)
    assert times.p10 == pytest.approx(1.3)
    assert times.p90 == pytest.approx(3.7)


@pytest.mark.parametrize(
    ("samples", "elapsed", "steps", "said"),
    [
        ([], 99.0, None, None),
        ([1.0] * 9, 1.0, None, None),
        ([1.0] * 10, 1.0, None, "settled"),
        ([1.0] * 10, 0.1, None, None),
        ([1.0, 2.0] * 10, 1.0, None, None),
        ([1.0, 2.0] * 10, 60.0, None, "time limit"),
        ([1.0] * 10, 1.0, 20, None),
        ([1.0] * 20, 1.0, 20, "steps"),
        ([1.0], 61.0, 20, "time limit"),
    ],
)
def test_runs_go_on_until_the_median_is_sure_or_the_time_over(
    samples: list[float], elapsed: float, steps: int | None, said: str | None
) -> None:
    assert find_stop_reason(samples, elapsed, steps=steps, time_limit=60.0) == said
