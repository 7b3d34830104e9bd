"""Partition of a sequence into contiguous stages: minimal largest stage, then fewest bytes over the cuts.

Dynamic programming over the places where a cut may lie (Bellman's recursion for the linear partition
problem): the least bottleneck of the first j units in k stages is the least, over i, of the larger of that of
the first i in k - 1 and the cost of the k-th stage from i to j. A second pass within that bottleneck takes
the fewest bytes. Both are exact for any cost that grows with its stage; a stage may have a cost of its own
kind (a slower machine, fewer micro-batches under way).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.engine.progress import Cancel, stop_if

Array = np.ndarray[Any, Any]

Row = Callable[[int, int], Array]
"""Kind of stage and first unit -> its cost where it ends behind this unit, behind the next, ... the last."""

_SLACK = 1e-12
"""Part of a cost of seconds by which two are the same."""


class Cuts(Struct, frozen=True):
    """Where a sequence is cut.

    Attributes:
        places: Number of units before each cut, ascending.
        cost: Largest of a stage, or of a link.
        crossing: Over all cuts.
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
        row: Their costs, infinite where a stage may not be.
        crossing: Bytes over a cut before each unit, by its number.
        allowed: Numbers of units before which a cut may lie, ascending, from 1 to `count` - 1.
        link: Cost of a cut by itself, by its bytes: as much as a stage, if it is more than the largest.
        cancel: Asked now and then.

    Returns:
        None where there is no such partition.
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
    """Both passes; places are numbered, 0 the start and the last the end."""

    def __init__(self, places: Array, kinds: Sequence[int], row: Row, links: Array, cancel: Cancel) -> None:
        self.places, self.kinds, self.links, self.cancel = places, kinds, links, cancel
        self._row = row
        self.last = len(places) - 1

    def costs(self, kind: int, at: int) -> Array:
        """Of the stages that begin at a place, by the place of their end."""
        stage_costs: Array = self._row(kind, int(self.places[at]))[
            self.places[at + 1 :] - self.places[at] - 1
        ]
        return stage_costs

    def within(self) -> float:
        """A bottleneck that can be had: cuts where the parts of the whole's cost end."""
        stages = len(self.kinds)
        whole = self.costs(self.kinds[0], 0)
        if not np.isfinite(whole[-1]):
            return float("inf")
        targets = np.searchsorted(whole, whole[-1] * np.arange(1, stages) / stages) + 1
        # one place for each, in order
        at = np.maximum.accumulate(
            np.minimum(targets, self.last - np.arange(stages - 1, 0, -1)) - np.arange(1, stages)
        )
        ends = [0, *(at + np.arange(1, stages)).tolist(), self.last]
        stage_costs = [
            float(self.costs(kind, ends[k])[ends[k + 1] - ends[k] - 1]) for k, kind in enumerate(self.kinds)
        ]
        return max([*stage_costs, *(float(self.links[end]) for end in ends[1:-1])])

    def bottleneck(self, most: float) -> float:
        """The least largest cost, which is at most `most`."""
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
        """The places of the cuts that the fewest bytes cross, where no stage and no link costs more."""
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
                better = part >= before  # of equal ones the latest: an activation stays with what it follows
                part[better] = before
                came[k, at + 1 : at + 1 + end][better] = at
        cuts, at = [], last
        for k in range(stages, 1, -1):
            at = int(came[k, at])
            cuts.append(at)
        return cuts[::-1]
