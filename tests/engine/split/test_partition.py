"""Cuts of a sequence: the least largest stage, and of those the fewest bytes, as trying all of them gives."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from explorer.engine.split import costs
from explorer.engine.split.partition import CostFunction, divide_evenly, find_best_cuts
from explorer.engine.split.schedule import compute_forecast, count_in_flight


def tried(
    count: int,
    kinds: Sequence[int],
    cost: CostFunction,
    crossing: Sequence[int],
    allowed: Sequence[int],
    link: Callable[[int], float] | None,
) -> tuple[float, int] | None:
    """Largest cost and bytes of the best of all partitions."""
    found = []
    for places in itertools.combinations(allowed, len(kinds) - 1):
        ends = [0, *places, count]
        each = [float(cost(kind, ends[at])[ends[at + 1] - ends[at] - 1]) for at, kind in enumerate(kinds)]
        each += [link(crossing[at]) for at in places] if link else []
        if np.isfinite(max(each)):
            found.append((max(each), sum(crossing[at] for at in places)))
    return min(found, default=None)


@pytest.mark.parametrize("seed", range(12))
def test_the_cuts_are_as_good_as_the_best_of_all(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(25):
        count, stages = draw.randint(1, 10), draw.randint(1, 4)
        work = np.array([draw.choice([0, 0, 1, 2, 5, 9]) for _ in range(count)], dtype=float)
        kinds = [draw.randint(0, 1) for _ in range(stages)]  # every other machine is half as fast
        cost = costs.make_scaled_cost(costs.make_sum_cost(work), (1.0, 2.0))
        if draw.random() < 0.3:
            cost = costs.apply_memory_limit(cost, costs.make_maximum_cost(work), draw.choice([3, 6, 9]))
        crossing = [draw.randint(0, 9) for _ in range(count)]
        allowed = sorted(draw.sample(range(1, count), draw.randint(0, count - 1))) if count > 1 else []
        link = (lambda size: size / 2) if draw.random() < 0.5 else None
        found = find_best_cuts(count, kinds, cost, crossing, allowed, link)
        best = tried(count, kinds, cost, crossing, allowed, link)
        assert (found and (found.cost, found.crossing)) == best
        assert found is None or set(found.places) <= set(allowed)


@pytest.mark.parametrize("seed", range(4))
def test_stages_of_summed_sizes_are_cut_as_the_search_cuts_them(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(60):
        count = draw.randint(1, 17)
        stages = draw.randint(1, count)
        drawn = [draw.random() * 10 ** draw.randint(-8, 8) for _ in range(count)]
        whole = [float(draw.randint(0, 3)) for _ in range(count)]
        sizes = draw.choice([drawn, whole, drawn[:1] * count, [draw.random() for _ in range(count)]])
        best = find_best_cuts(
            count,
            [0] * stages,
            lambda kind, first, sizes=sizes: np.cumsum(sizes[first:]),  # type: ignore[misc]
            [0] * count,
            range(1, count),
        )
        assert best is not None
        assert divide_evenly(sizes, stages) == best.places, (sizes, stages)


def test_a_pipeline_of_equal_stages_waits_as_gpipe_says() -> None:
    for schedule in ("gpipe", "1f1b"):
        told = compute_forecast([1.0] * 4, [0.0] * 3, 8, schedule)  # type: ignore[arg-type]
        assert told.bubble == pytest.approx(3 / 11)  # (stages - 1) / (micro-batches + stages - 1)
        assert told.training_bubble == pytest.approx(3 / 11)
        assert (told.latency, told.period, told.seconds) == (4.0, 1.0, 11.0)


def test_1f1b_keeps_no_more_micro_batches_than_stages_lie_behind() -> None:
    assert [count_in_flight(at, 4, 8, "1f1b") for at in range(4)] == [4, 3, 2, 1]
    assert [count_in_flight(at, 4, 8, "gpipe") for at in range(4)] == [8] * 4
    told = compute_forecast([1.0, 2.0, 1.0], [0.5, 0.25], 8, "1f1b")
    for stage in range(3):
        kept = most = 0
        for work in (one for one in told.steps if one.stage == stage):
            kept += 1 if work.work == "forward" else -1
            most = max(most, kept)
        assert (kept, most) == (0, count_in_flight(stage, 3, 8, "1f1b"))


def test_a_stage_begins_when_the_one_before_and_the_link_have_ended() -> None:
    told = compute_forecast([1.0, 2.0], [0.5], 3, "1f1b")
    begun = {(one.stage, one.micro_batch): one.start for one in told.works}
    assert begun[1, 0] == 1.5
    assert begun[1, 1] == 3.5  # its own work before it takes longer
    assert told.seconds == 1.5 + 3 * 2.0
