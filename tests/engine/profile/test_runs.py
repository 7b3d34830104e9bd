"""Runs that are timed begin when the threads of those before them are idle."""

from __future__ import annotations

import pytest

from explorer.engine.profile.runs import wait_idle


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
