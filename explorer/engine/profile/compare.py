"""Compares the times of two models that were timed in turn, row by row.

The tree diff pairs the rows. A tiled layer is one row before tiling and many rows after it; the times of
these rows are added run by run. Each kernel counts in exactly one row pair, so the differences of all pairs
add up to the difference of all layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from explorer.engine.costs.layer_rows import find_subtree_end
from explorer.engine.profile.assemble import TimeSamples
from explorer.engine.profile.statistics import compute_spread, ranks_differ
from explorer.facts import Layer
from explorer.facts.comparison import RowPair, RowSide, TreeDiff
from explorer.facts.profile.comparison import LayerChange, ProfileComparison, is_significant
from explorer.facts.profile.profile import Profile

_COMPARED_AS_ONE = frozenset(("tiled", "merged", "quantized"))
"""Statuses of row pairs that are compared together with all rows inside them."""


class TimedModel(Struct, frozen=True):
    """A timed model.

    Attributes:
        profile: The profile of the model.
        layers: The rows of its layer tree.
        samples: Samples of each row, by row id.
    """

    profile: Profile
    layers: Sequence[Layer]
    samples: Mapping[int, TimeSamples]


def compare_timed(before: TimedModel, after: TimedModel, tree: TreeDiff) -> ProfileComparison:
    """Compares two models row by row.

    Args:
        before: The first model.
        after: The second model, timed in turn with the first.
        tree: Pairs of their rows.
    """
    sides = _Side(before), _Side(after)
    walls = before.profile.wall, after.profile.wall
    return ProfileComparison(
        names=(tree.before, tree.after),
        difference=walls[1].median - walls[0].median,
        significant=is_significant(*walls),
        layers=tuple(_list_changes(sides, tree.rows)),
        before=before.profile,
        after=after.profile,
    )


class _Side:
    """One of the two models. It uses the samples of each row only once."""

    def __init__(self, timed: TimedModel) -> None:
        self._timed, self._used_rows = timed, set[int]()

    def is_group(self, row: RowSide | None) -> bool:
        """Whether a row is a group; True without a row."""
        return row is None or self._timed.layers[row.id].group

    def take(self, row: RowSide | None, with_descendants: bool) -> list[float]:
        """Returns the seconds of a row in each run, or an empty list if the row has no unused samples.

        Args:
            row: The row, or None.
            with_descendants: Whether to add the times of all rows inside the row.
        """
        if row is None:
            return []
        last = find_subtree_end(self._timed.layers, row.id) if with_descendants else row.id + 1
        rows = [
            row_id
            for row_id in range(row.id, last)
            if row_id in self._timed.samples and row_id not in self._used_rows
        ]
        self._used_rows.update(rows)
        row_times = [self._timed.samples[row_id].seconds for row_id in rows]
        return [sum(run) for run in zip(*row_times, strict=True)] if row_times else []


def _list_changes(sides: tuple[_Side, _Side], pairs: Sequence[RowPair]) -> Iterator[LayerChange]:
    """Yields the change of each row pair that has samples in a model."""
    index = 0
    while index < len(pairs):
        pair = pairs[index]
        row_pair = pair.before, pair.after
        groups = [side.is_group(row) for side, row in zip(sides, row_pair, strict=True)]
        with_descendants = pair.status in _COMPARED_AS_ONE or not all(groups)
        times = [side.take(row, with_descendants) for side, row in zip(sides, row_pair, strict=True)]
        if any(times):
            yield _build_change(pair, times[0], times[1])
        index = max(pair.end, index + 1) if with_descendants else index + 1


def _build_change(pair: RowPair, *times: Sequence[float]) -> LayerChange:
    """Builds the change of a row pair from its samples before and after, one of which may be empty."""
    either = pair.before or pair.after
    assert either is not None
    before, after = (compute_spread(seconds) if seconds else None for seconds in times)
    is_certain = is_significant(before, after)
    if is_certain is None and all(times) and ranks_differ(*times):
        is_certain = True
    difference = (after.median if after else 0.0) - (before.median if before else 0.0)
    return LayerChange(
        path=either.path,
        before_path=pair.before.path if pair.before else "",
        after_path=pair.after.path if pair.after else "",
        kind=either.kind,
        status=pair.status,
        before=before,
        after=after,
        difference=difference,
        significant=is_certain,
    )
