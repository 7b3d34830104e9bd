"""Partitions a sequence of units into contiguous stages.

The bottleneck of a partition is the largest cost of a stage or a link. The best partition has the smallest
bottleneck, and among those the fewest bytes over its cuts.

The search is dynamic programming over the allowed places of cuts (Bellman's recursion for the linear
partition problem). Let B(j, k) be the smallest bottleneck of the first j units in k stages. Then
B(j, k) is the minimum over i of max(B(i, k - 1), cost of a stage from unit i to unit j). A second pass
searches the partitions within that bottleneck for the cuts with the fewest bytes. Both passes are exact if a
stage's cost never shrinks when the stage grows.

Stages have kinds. A kind is an index that selects a cost function, for example for a slower machine.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.engine.progress import Cancel, stop_if

Array = np.ndarray[Any, Any]

CostFunction = Callable[[int, int], Array]
"""Cost function: takes the kind and the first unit of a stage.

It returns the costs of all stages that begin there: one entry for each possible last unit, in order.
"""

_SLACK = 1e-12
"""Relative difference up to which two costs in seconds count as equal."""


class Cuts(Struct, frozen=True):
    """The cuts of a sequence.

    Attributes:
        places: Number of units before each cut, ascending.
        cost: The bottleneck: the largest cost of a stage or a link.
        crossing: Bytes over all cuts in total.
    """

    places: tuple[int, ...]
    cost: float
    crossing: int


def find_best_cuts(
    count: int,
    kinds: Sequence[int],
    cost: CostFunction,
    crossing: Sequence[int],
    allowed: Sequence[int],
    link: Callable[[int], float] | None = None,
    cancel: Cancel = None,
) -> Cuts | None:
    """Finds the best cuts of a sequence into as many stages as there are kinds.

    Args:
        count: Number of units.
        kinds: Kind of each stage.
        cost: Cost function of the stages; infinite for a stage that is not allowed.
        crossing: Bytes over a cut before each unit.
        allowed: Units before which a cut is allowed, ascending, from 1 to `count` - 1.
        link: Computes the cost of a cut from its bytes, or None if cuts cost nothing.
        cancel: Returns whether to stop; polled repeatedly.

    Returns:
        The cuts, or None if no partition is possible.
    """
    places = np.array([0, *allowed, count])
    if len(kinds) > len(places) - 1:
        return None
    links = np.zeros(len(places))
    if link is not None:
        links[1:-1] = [link(crossing[unit]) for unit in allowed]
    search = _Search(places, kinds, cost, links, cancel)
    bottleneck = search.compute_bottleneck(search.compute_upper_bound())
    if not np.isfinite(bottleneck):
        return None
    bytes_by_place = np.array([0, *(crossing[unit] for unit in allowed), 0], dtype=np.float64)
    cut_indices = search.find_fewest_bytes(bottleneck * (1 + _SLACK), bytes_by_place)
    return Cuts(
        tuple(int(places[place]) for place in cut_indices),
        bottleneck,
        int(sum(bytes_by_place[place] for place in cut_indices)),
    )


def divide_evenly(sizes: Sequence[float], stages: int) -> tuple[int, ...]:
    """Finds the cuts of a sequence into stages with the smallest possible largest sum of sizes.

    The result is that of `find_best_cuts` for stages that cost the sum of their sizes, and cuts that cost
    nothing. A sum never shrinks when a stage grows. So the longest possible stages show whether a bottleneck
    is possible, which takes a tenth of the time of the search.

    Args:
        sizes: Size of each unit, 0 or more.
        stages: Number of stages, from 1 to the number of units.

    Returns:
        The number of units before each cut, ascending. Each stage is as long as the bottleneck permits, but
        leaves a unit for each later stage.
    """
    count = len(sizes)
    sums = np.cumsum(np.triu(np.broadcast_to(np.asarray(sizes, np.float64), (count, count))), axis=1)

    def find_ends(limit: float) -> list[int]:
        """Returns the end of each stage but the last if every stage is as long as `limit` permits."""
        ends = [0]
        for _ in range(stages - 1):
            first = ends[-1]
            ends.append(
                first + int(np.searchsorted(sums[first, first:], limit, "right")) if first < count else count
            )
        return ends[1:]

    def is_possible(limit: float) -> bool:
        last = max([0, *find_ends(limit)])
        return last == count or bool(sums[last, -1] <= limit)

    candidates = np.unique(sums[np.triu_indices(count)])
    index = bisect_left(candidates, True, key=is_possible)
    limit = float(candidates[index]) * (1 + _SLACK)
    cuts = [count]
    for stage, end in reversed(list(enumerate(find_ends(limit), 1))):
        # leave a unit for each later stage
        cuts.append(min(end, cuts[-1] - 1))
        assert cuts[-1] >= stage
    return tuple(reversed(cuts[1:]))


class _Search:
    """The two passes of the search.

    A place is an index into `places`: 0 is the start of the sequence, `last` its end, and every index between
    them an allowed cut.
    """

    def __init__(
        self, places: Array, kinds: Sequence[int], cost: CostFunction, links: Array, cancel: Cancel
    ) -> None:
        self.places, self.kinds, self.links, self.cancel = places, kinds, links, cancel
        self._cost = cost
        self.last = len(places) - 1

    def compute_costs(self, kind: int, place: int) -> Array:
        """Returns the costs of the stages that begin at `place`, one for each place where they can end."""
        stage_costs: Array = self._cost(kind, int(self.places[place]))[
            self.places[place + 1 :] - self.places[place] - 1
        ]
        return stage_costs

    def compute_upper_bound(self) -> float:
        """Computes an upper bound of the bottleneck, from cuts that divide the total cost evenly."""
        stages = len(self.kinds)
        costs_from_start = self.compute_costs(self.kinds[0], 0)
        if not np.isfinite(costs_from_start[-1]):
            return float("inf")
        targets = np.searchsorted(costs_from_start, costs_from_start[-1] * np.arange(1, stages) / stages) + 1
        # make the places strictly ascending, and leave a place for each later cut
        ordered = np.maximum.accumulate(
            np.minimum(targets, self.last - np.arange(stages - 1, 0, -1)) - np.arange(1, stages)
        )
        ends = [0, *(ordered + np.arange(1, stages)).tolist(), self.last]
        stage_costs = [
            float(self.compute_costs(kind, ends[k])[ends[k + 1] - ends[k] - 1])
            for k, kind in enumerate(self.kinds)
        ]
        return max([*stage_costs, *(float(self.links[end]) for end in ends[1:-1])])

    def compute_bottleneck(self, limit: float) -> float:
        """Computes the smallest bottleneck; `limit` is an upper bound of it."""
        stages, last = len(self.kinds), self.last
        best = np.full((stages + 1, last + 1), np.inf)
        best[0, 0] = 0.0
        for place in range(last):
            stop_if(self.cancel if place % 256 == 0 else None)
            costs_by_kind: dict[int, Array] = {}
            for k in range(1, stages + 1):
                cost_so_far = max(float(best[k - 1, place]), float(self.links[place]))
                if cost_so_far > limit or not np.isfinite(best[k - 1, place]):
                    continue
                kind = self.kinds[k - 1]
                if kind not in costs_by_kind:
                    costs_by_kind[kind] = self.compute_costs(kind, place)
                costs = costs_by_kind[kind]
                if k == stages:
                    best[k, last] = min(best[k, last], max(cost_so_far, float(costs[-1])))
                    continue
                end = int(np.searchsorted(costs, limit, "right"))
                part = best[k, place + 1 : place + 1 + end]
                np.minimum(part, np.maximum(costs[:end], cost_so_far), out=part)
        return float(best[stages, last])

    def find_fewest_bytes(self, limit: float, crossing: Array) -> list[int]:
        """Returns the places of the cuts with the fewest bytes, with no stage or link above `limit`."""
        stages, last = len(self.kinds), self.last
        best = np.full((stages + 1, last + 1), np.inf)
        previous_place = np.zeros((stages + 1, last + 1), dtype=np.int64)
        best[0, 0] = 0.0
        for place in range(last):
            stop_if(self.cancel if place % 256 == 0 else None)
            if self.links[place] > limit:
                continue
            costs_by_kind: dict[int, tuple[Array, int]] = {}
            for k in range(1, stages + 1):
                if not np.isfinite(best[k - 1, place]):
                    continue
                bytes_so_far = float(best[k - 1, place] + crossing[place])
                kind = self.kinds[k - 1]
                if kind not in costs_by_kind:
                    costs = self.compute_costs(kind, place)
                    costs_by_kind[kind] = costs, int(np.searchsorted(costs, limit, "right"))
                costs, end = costs_by_kind[kind]
                if k == stages:
                    if costs[-1] <= limit and bytes_so_far <= best[k, last]:
                        best[k, last], previous_place[k, last] = bytes_so_far, place
                    continue
                part = best[k, place + 1 : place + 1 + end]
                # ties go to the latest cut: an activation stays with its reader
                is_better = part >= bytes_so_far
                part[is_better] = bytes_so_far
                previous_place[k, place + 1 : place + 1 + end][is_better] = place
        cuts, place = [], last
        for k in range(stages, 1, -1):
            place = int(previous_place[k, place])
            cuts.append(place)
        return cuts[::-1]
