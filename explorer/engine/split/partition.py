"""Partition of a sequence into contiguous stages: least bottleneck first, then fewest bytes over the cuts.

Dynamic programming over the places where a cut may lie (Bellman's recursion for the linear partition
problem). The least bottleneck of the first j units in k stages is the minimum over i of
max(bottleneck of the first i units in k - 1 stages, cost of a stage from i to j). A second pass finds, within
that bottleneck, the cuts that the fewest bytes cross. Both passes are exact for any cost that does not shrink
when its stage grows. Stages may differ in kind: a slower machine, or fewer micro-batches in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.engine.progress import Cancel, stop_if

Array = np.ndarray[Any, Any]

Row = Callable[[int, int], Array]
"""Kind and first unit of a stage -> its cost if it ends after that unit, after the next, ... the last."""

_SLACK = 1e-12
"""Relative difference up to which two costs in seconds count as equal."""


class Cuts(Struct, frozen=True):
    """The cuts of a sequence.

    Attributes:
        places: Number of units before each cut, ascending.
        cost: The largest cost of a stage or a link.
        crossing: Bytes over all cuts.
    """

    places: tuple[int, ...]
    cost: float
    crossing: int


def best_cuts(
    count: int,
    kinds: Sequence[int],
    row: Row,
    crossing: Sequence[int],
    allowed: Sequence[int],
    link: Callable[[int], float] | None = None,
    cancel: Cancel = None,
) -> Cuts | None:
    """The best cuts of a sequence into as many stages as there are kinds.

    Args:
        count: Units.
        kinds: Kind of each stage.
        row: Costs of the stages; infinite for a stage that is not allowed.
        crossing: Bytes over a cut before each unit.
        allowed: Numbers of units before which a cut may lie, ascending, from 1 to `count` - 1.
        link: Cost of a cut by its bytes; it limits the bottleneck as a stage does. None for no cost.
        cancel: Polled now and then.

    Returns:
        The cuts; None if no partition is possible.
    """
    places = np.array([0, *allowed, count])
    if len(kinds) > len(places) - 1:
        return None
    links = np.zeros(len(places))
    if link is not None:
        links[1:-1] = [link(crossing[at]) for at in allowed]
    search = _Search(places, kinds, row, links, cancel)
    bottleneck = search.bottleneck(search.within())
    if not np.isfinite(bottleneck):
        return None
    bytes_ = np.array([0, *(crossing[at] for at in allowed), 0], dtype=np.float64)
    cut_indices = search.fewest(bottleneck * (1 + _SLACK), bytes_)
    return Cuts(
        tuple(int(places[at]) for at in cut_indices), bottleneck, int(sum(bytes_[at] for at in cut_indices))
    )


class _Search:
    """The two passes. Places are numbered: 0 is the start, the last one the end."""

    def __init__(self, places: Array, kinds: Sequence[int], row: Row, links: Array, cancel: Cancel) -> None:
        self.places, self.kinds, self.links, self.cancel = places, kinds, links, cancel
        self._row = row
        self.last = len(places) - 1

    def costs(self, kind: int, at: int) -> Array:
        """Costs of the stages that begin at a place, by the place where they end."""
        stage_costs: Array = self._row(kind, int(self.places[at]))[
            self.places[at + 1 :] - self.places[at] - 1
        ]
        return stage_costs

    def within(self) -> float:
        """A bottleneck that is certainly reachable: cuts that divide the total cost evenly."""
        stages = len(self.kinds)
        whole = self.costs(self.kinds[0], 0)
        if not np.isfinite(whole[-1]):
            return float("inf")
        targets = np.searchsorted(whole, whole[-1] * np.arange(1, stages) / stages) + 1
        # ascending, and one place for each cut
        at = np.maximum.accumulate(
            np.minimum(targets, self.last - np.arange(stages - 1, 0, -1)) - np.arange(1, stages)
        )
        ends = [0, *(at + np.arange(1, stages)).tolist(), self.last]
        stage_costs = [
            float(self.costs(kind, ends[k])[ends[k + 1] - ends[k] - 1]) for k, kind in enumerate(self.kinds)
        ]
        return max([*stage_costs, *(float(self.links[end]) for end in ends[1:-1])])

    def bottleneck(self, most: float) -> float:
        """The smallest possible bottleneck, given that one of at most `most` exists."""
        stages, last = len(self.kinds), self.last
        best = np.full((stages + 1, last + 1), np.inf)
        best[0, 0] = 0.0
        for at in range(last):
            stop_if(self.cancel if at % 256 == 0 else None)
            costs_by_kind: dict[int, Array] = {}
            for k in range(1, stages + 1):
                before = max(float(best[k - 1, at]), float(self.links[at]))
                if before > most or not np.isfinite(best[k - 1, at]):
                    continue
                kind = self.kinds[k - 1]
                if kind not in costs_by_kind:
                    costs_by_kind[kind] = self.costs(kind, at)
                costs = costs_by_kind[kind]
                if k == stages:
                    best[k, last] = min(best[k, last], max(before, float(costs[-1])))
                    continue
                end = int(np.searchsorted(costs, most, "right"))
                part = best[k, at + 1 : at + 1 + end]
                np.minimum(part, np.maximum(costs[:end], before), out=part)
        return float(best[stages, last])

    def fewest(self, most: float, crossing: Array) -> list[int]:
        """The places of the cuts that the fewest bytes cross, with no stage and no link above `most`."""
        stages, last = len(self.kinds), self.last
        best = np.full((stages + 1, last + 1), np.inf)
        came = np.zeros((stages + 1, last + 1), dtype=np.int64)
        best[0, 0] = 0.0
        for at in range(last):
            stop_if(self.cancel if at % 256 == 0 else None)
            if self.links[at] > most:
                continue
            costs_by_kind: dict[int, tuple[Array, int]] = {}
            for k in range(1, stages + 1):
                if not np.isfinite(best[k - 1, at]):
                    continue
                before = float(best[k - 1, at] + crossing[at])
                kind = self.kinds[k - 1]
                if kind not in costs_by_kind:
                    costs = self.costs(kind, at)
                    costs_by_kind[kind] = costs, int(np.searchsorted(costs, most, "right"))
                costs, end = costs_by_kind[kind]
                if k == stages:
                    if costs[-1] <= most and before <= best[k, last]:
                        best[k, last], came[k, last] = before, at
                    continue
                part = best[k, at + 1 : at + 1 + end]
                better = part >= before  # ties go to the latest cut: an activation stays with its reader
                part[better] = before
                came[k, at + 1 : at + 1 + end][better] = at
        cuts, at = [], last
        for k in range(stages, 1, -1):
            at = int(came[k, at])
            cuts.append(at)
        return cuts[::-1]
