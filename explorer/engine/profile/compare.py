"""Comparison of two models timed in turn, by row: the times of a row before, and of its counterpart after.

The diff pairs the rows. A tiled layer is one row before and many after, which are added run by run. So each
kernel is in one difference, and the differences add up to the difference of the layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from explorer.engine.costs.layer_rows import end_of
from explorer.engine.profile.assemble import TimeSamples
from explorer.engine.profile.statistics import ranks_differ, spread
from explorer.facts import Layer
from explorer.facts.comparison import RowPair, RowSide, TreeDiff
from explorer.facts.profile.comparison import LayerChange, ProfileComparison, significance
from explorer.facts.profile.profile import Profile

_WHOLE = frozenset(("tiled", "merged", "quantized"))
"""Kinds of rows that are compared with all rows in them."""


class TimedModel(Struct, frozen=True):
    """A timed model.

    Attributes:
        profile: Its profile.
        layers: Its rows.
        samples: Samples of each row, by id.
    """

    profile: Profile
    layers: Sequence[Layer]
    samples: Mapping[int, TimeSamples]


def compared(before: TimedModel, after: TimedModel, tree: TreeDiff) -> ProfileComparison:
    """Compares two models row by row.

    Args:
        before: One of them.
        after: The other, timed in turn with it.
        tree: Their rows side by side.
    """
    sides = _Side(before), _Side(after)
    walls = before.profile.wall, after.profile.wall
    return ProfileComparison(
        (tree.before, tree.after),
        walls[1].median - walls[0].median,
        significance(*walls),
        tuple(_changes(sides, tree.rows)),
        before.profile,
        after.profile,
    )


class _Side:
    """One of the two models; each row's samples are used once."""

    def __init__(self, timed: TimedModel) -> None:
        self._timed, self._described_rows = timed, set[int]()

    def is_group(self, row: RowSide | None) -> bool:
        return row is None or self._timed.layers[row.id].group

    def take(self, row: RowSide | None, inside: bool) -> list[float]:
        """The summed times of a row, with or without those of rows in it; empty if nothing of it runs."""
        if row is None:
            return []
        last = end_of(self._timed.layers, row.id) if inside else row.id + 1
        rows = [
            at for at in range(row.id, last) if at in self._timed.samples and at not in self._described_rows
        ]
        self._described_rows.update(rows)
        every = [self._timed.samples[at].seconds for at in rows]
        return [sum(run) for run in zip(*every, strict=True)] if every else []


def _changes(sides: tuple[_Side, _Side], pairs: Sequence[RowPair]) -> Iterator[LayerChange]:
    at = 0
    while at < len(pairs):
        pair = pairs[at]
        both = pair.before, pair.after
        groups = [side.is_group(row) for side, row in zip(sides, both, strict=True)]
        whole = pair.status in _WHOLE or not all(groups)
        times = [side.take(row, whole) for side, row in zip(sides, both, strict=True)]
        if any(times):
            yield _change(pair, times[0], times[1])
        at = max(pair.end, at + 1) if whole else at + 1


def _change(pair: RowPair, *times: Sequence[float]) -> LayerChange:
    either = pair.before or pair.after
    assert either is not None
    before, after = (spread(of_one) if of_one else None for of_one in times)
    surely = significance(before, after)
    if surely is None and all(times) and ranks_differ(*times):
        surely = True
    difference = (after.median if after else 0.0) - (before.median if before else 0.0)
    return LayerChange(
        either.path,
        pair.before.path if pair.before else "",
        pair.after.path if pair.after else "",
        either.kind,
        pair.status,
        before,
        after,
        difference,
        surely,
    )
