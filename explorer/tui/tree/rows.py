"""Rows of the layer tree: what a row stands for, and its figures.

Textual's own tree builds an object a row: 100,000 rows cost seconds. Here a row is an integer: the id
of a layer; when negative, a run of identical siblings (`layers.0 … layers.11`) that starts with layer
`-row - 1`; and below all those, a range of the children of something that has thousands of them. A layer is
taken out when its row is drawn: what the tree has to know of all of them lies in arrays
(`explorer.session.cache.rows`). The constants of a group, once it is known which those are, are one row of
the same kind as a range.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isnan, nan
from typing import TYPE_CHECKING

from msgspec import Struct

from explorer.session.cache.rows import ASSUMED, BOUND, GROUP, RANGE, SHARED, UNKNOWN, RowPages, structure_of
from explorer.tui.tree.stages import CROSSING, STAGE, StageRows, stage_columns

if TYPE_CHECKING:
    from explorer.facts import Layer
    from explorer.facts.external.overlay import Overlay
    from explorer.settings.columns import LayerColumn


class Metric(Struct, frozen=True):
    """What rows are sorted by: a column, where its figures lie, and what they are.

    Attributes:
        id: Name of the column.
        title: Its head.
        of: The array of `structure` that holds it; '' for one that the engine is asked for (`asked`).
        unit: As `settings.columns` has it.
        stored: Known of every row, whatever its shapes are.
        sums: A group's is what those in it add up to.
        over: Of figures from outside, what several rows have together: see `facts.external.overlay`.
    """

    id: str
    title: str
    of: str
    unit: str = "count"
    stored: bool = False
    sums: bool = True
    over: str = ""


METRICS = (
    Metric("macs", "MACs", "macs"),
    Metric("params", "params", "params", stored=True),
    Metric("weights", "weights", "weight_bytes", "bytes", stored=True),
    Metric("activations", "activations", "activation_bytes", "bytes"),
)
MEASURED = ("measured", "measured_share", "efficiency")
"""Columns that a profile brings."""
_SHARE = Metric("share", "share", "macs", "share")


def columns_of(model: FoldedRows | None) -> Mapping[str, LayerColumn]:
    """The columns that there are, those of figures from outside too; without a model ours alone."""
    # with the facts, which the first paint does without
    from explorer.settings.columns import COLUMNS, outside_columns

    if model is None or (model.overlay is None and model.stages is None):
        return COLUMNS
    if model.known is None:
        outside = {} if model.overlay is None else outside_columns(model.overlay)
        model.known = {**COLUMNS, **outside, **({} if model.stages is None else stage_columns())}
    return model.known


def metric_of(column: str, columns: Mapping[str, LayerColumn] | None = None) -> Metric | None:
    """What sorts by a column of `columns` (None: of ours); None where there is no such column."""
    own_metric = next((metric for metric in (*METRICS, _SHARE) if metric.id == column), None)
    if own_metric is not None or not column:
        return own_metric
    column_known = (columns_of(None) if columns is None else columns).get(column)
    if column_known is None:
        return None
    return Metric(
        column,
        column_known.head,
        "",
        column_known.unit,
        column_known.stored,
        column_known.adds_up,
        column_known.over,
    )


_OVER: Mapping[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "mean": lambda found: sum(found) / len(found),
    "max": max,
    "min": min,
}
_CONSTANTS = -1
"""Place, among the ranges of what it lies in, of the row of its constants."""


class FoldedRows:
    """What the rows of a tree of layers stand for, whichever of them are on show.

    Args:
        layers: In pre-order, as `facts.Analysis` lists them.

    Attributes:
        growing: Rows are still being read, so that a group may hold more than is known of it.
        asked: Figures that the engine was asked for, by the name of their column: one a row, not a number
            where there is none, and behind them the whole model's.
        overlay, providers: Figures from outside, and what of onnxruntime runs each row; None for none.
        stages: Where the rows lie in a split; None for none.
        known: See `columns_of`.
        wholes: What siblings have together, by the row that they lie in and the column, once it was summed.
        sums: Figures of rows that stand for many, by row and column, once they were summed.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.structure = layers.structure if isinstance(layers, RowPages) else structure_of(layers)
        self.end = self.structure.end
        self.count = len(self.end)
        self.deepest = self.structure.deepest
        self.growing = False
        self.asked: dict[str, Sequence[float]] = {}
        self.overlay: Overlay | None = None
        self.providers: Mapping[int, str] | None = None
        self.stages: StageRows | None = None
        self.known: Mapping[str, LayerColumn] | None = None
        self.wholes: dict[tuple[int, str], float | None] = {}
        self.sums: dict[tuple[int, str], tuple[float | None, str]] = {}
        self._folds = b""
        self._gathered_in: dict[int, list[int]] = {}
        self._ranges: list[tuple[int | None, int]] = []
        self._range_of: dict[tuple[int | None, int], int] = {}
        self._listed: dict[int, Sequence[int]] = {}

    def lay(self, overlay: Overlay | None) -> None:
        """Figures from outside, in place of those that there are."""
        for column in () if self.overlay is None else self.overlay.columns:
            self.asked.pop(column.name, None)
        self.overlay, self.known = overlay, None
        self.forget_sums()
        for column in () if overlay is None else overlay.columns:
            figures = overlay.figures[column.name] if overlay is not None else {}
            values = array("d", [nan]) * (self.count + 1)
            for at, value in figures.items():
                if at < self.count:
                    values[at] = value  # that of the whole model, -1, stands behind the rows
            self.asked[column.name] = values

    def lay_stages(self, stages: StageRows) -> None:
        """Where the rows lie in a split, in place of what was known of another."""
        self.stages, self.known = stages, None
        self.asked |= {STAGE: stages.numbers(), CROSSING: stages.crossing}
        self.forget_sums()

    def forget_sums(self) -> None:
        """Sum anew: figures came, or rows stand for others."""
        self.wholes.clear()
        self.sums.clear()

    def first(self, row: int) -> int:
        """The layer of a row; the first one of a run or a range."""
        if row >= 0:
            return row
        if row >= -self.count:
            return -row - 1
        return self._gathered_in[row][0] if self.is_constants(row) else self._span(row)[0]

    def members(self, row: int) -> Sequence[int]:
        """The layers behind a row: itself, every block of its run, or the children of its range."""
        if row >= 0:
            return (row,)
        if row >= -self.count:
            first = -row - 1
            size = self.end[first] - first
            # blocks that are built alike have as many rows each
            return range(first, first + size * self.structure.repeat[first], size)
        if self.is_constants(row):
            return self._gathered_in[row]
        layers = self._listed.get(row)
        if layers is None:
            first, stop = self._span(row)
            # where nothing lies in them no list of them is kept
            layers = (
                range(first, stop) if self._bare(row, first, stop) else array("i", self._hop(first, stop))
            )
            self._listed[row] = layers
        return layers

    def is_range(self, row: int) -> bool:
        """Whether the row stands for children that need not be alike."""
        return row < -self.count

    def is_constants(self, row: int) -> bool:
        """Whether the row stands for the constants of a group."""
        return row < -self.count and self._ranges[-row - self.count - 1][1] == _CONSTANTS

    @property
    def has_gathered(self) -> bool:
        """Whether any layer lies in the row of a group's constants."""
        return bool(self._folds)

    def is_gathered(self, layer: int) -> bool:
        """Whether a layer lies in the row of a group's constants."""
        return bool(self._folds) and self._folds[layer] == 1

    def layers_in(self, row: int) -> int:
        """How many layers, without groups, a row stands for."""
        flags, end = self.structure.flags, self.end
        return sum(not flags[at] & GROUP for first in self.members(row) for at in range(first, end[first]))

    def _span(self, row: int) -> tuple[int, int]:
        """The first layer of a range, and the one behind its last."""
        above, place = self._ranges[-row - self.count - 1]
        starts = self._starts(above)
        if place + 1 < len(starts):
            return starts[place], starts[place + 1]
        if above is None:
            return starts[place], self.count
        if above >= 0:
            return starts[place], self.end[above]
        last = self.members(above)[-1]
        return starts[place], self.end[last]

    def _bare(self, row: int, first: int, stop: int) -> bool:
        """Whether nothing lies in the children of a range: where all are listed they are as many rows."""
        above, place = self._ranges[-row - self.count - 1]
        if place + 1 < len(self._starts(above)):
            return stop - first == RANGE
        return self.end[first:stop] == array("i", range(first + 1, stop + 1))

    def _starts(self, above: int | None) -> Sequence[int]:
        """Where the ranges under a row begin."""
        if above is not None and above < 0:
            return self.members(above)[::RANGE]
        return self.structure.wide.get(-1 if above is None else above, ())

    def _hop(self, at: int, stop: int) -> Iterator[int]:
        end = self.end
        while at < stop:
            yield at
            at = end[at]

    def column(self, metric: Metric) -> Sequence[float] | None:
        """The figures of all rows; None where they were not asked for."""
        return self.structure.columns[metric.of] if metric.of else self.asked.get(metric.id)

    def figure(self, row: int, metric: Metric) -> tuple[float | None, str]:
        """The row's figure in a column, and '≤' or '≥' if it is a bound only, '≈' if something was assumed.

        The sum over a run counts a parameter that its blocks share once for each block: an upper bound.
        A group with an unknown part, or of which parts are still being read, sums what is known: a lower one.
        """
        column = self.column(metric)
        if column is None:
            return None, ""
        if row >= 0 and not metric.over:
            value = column[row]
            return (value if is_known(value, metric) else None), self._bound(
                self.structure.flags[row], metric
            )
        figure = self.sums.get((row, metric.id))
        if figure is None:
            figure = self._summed(row, metric, column)
            if not self.growing:
                self.sums[row, metric.id] = figure
        return figure

    def _summed(self, row: int, metric: Metric, column: Sequence[float]) -> tuple[float | None, str]:
        """The figure of all that a row stands for."""
        flags, members, is_stored = self.structure.flags, self.members(row), metric.stored
        if metric.over:
            figures = [column[at] for at in members if column[at] == column[at]]
            return (_OVER[metric.over](figures) if figures else None), ""
        sign = self._bound(flags[members[0]] if members else 0, metric)
        if not metric.sums:
            value = column[members[0]]
            return (value if is_known(value, metric) and not self.is_range(row) else None), sign
        if isinstance(members, range):
            at = slice(members.start, members.stop, members.step)
            values, marks = column[at], set(flags[at])
        else:
            values, marks = [column[i] for i in members], {flags[i] for i in members}
        known_values = values
        # a sum tells at once what a look at each of a thousand would: an unknown figure makes no number of it
        if _may_lack(values) if metric.of else isnan(sum(values)):
            known_values = [value for value in values if is_known(value, metric)]
        if len(known_values) < len(values):
            if not known_values or not self.is_range(row):
                return None, ""
            sign = "≥"
        elif self.is_range(row) and not is_stored and any(mark & UNKNOWN for mark in marks):
            sign = "≥"
        if is_stored and self.growing and any(mark & GROUP for mark in marks):
            sign = "≥"
        elif is_stored and any(mark & SHARED for mark in marks):
            sign = "≤"
        return sum(known_values), sign

    def _bound(self, flag: int, metric: Metric) -> str:
        """The sign of a figure of a row with these flags."""
        if flag & GROUP and metric.sums and (self.growing if metric.stored else flag & UNKNOWN):
            return "≥"
        if metric.of != "macs":
            return ""
        return "≤" if flag & BOUND else "≈" if flag & ASSUMED else ""

    def _constants_row(self, above: int | None) -> int:
        """The row of the constants under another."""
        row = self._range(above, _CONSTANTS)
        if row not in self._gathered_in:
            if above is None:
                start, stop = 0, self.count
            else:
                start, stop = (above + 1, self.end[above]) if above >= 0 else self._span(above)
            self._gathered_in[row] = [at for at in self._hop(start, stop) if self._folds[at]]
        return row

    def _in_ranges(self, above: int | None) -> list[int]:
        return [self._range(above, place) for place in range(len(self._starts(above)))]

    def _range(self, above: int | None, place: int) -> int:
        """The row of a range: always the same."""
        row = self._range_of.get((above, place))
        if row is None:
            self._ranges.append((above, place))
            row = self._range_of[above, place] = -self.count - len(self._ranges)
        return row

    def _folded(self, ids: Iterable[int]) -> Iterator[int]:
        repeats = self.structure.repeat
        for i in ids:
            repeat = repeats[i]
            if repeat > 1:
                yield -i - 1
            elif repeat == 1:
                yield i


def _may_lack(values: Sequence[float]) -> bool:
    """Whether there may be a -1 among figures: where its bytes, all ones, are found in an array."""
    if isinstance(values, array):
        return b"\xff" * values.itemsize in values.tobytes()
    return min(values, default=0) < 0


def is_known(value: float, metric: Metric) -> bool:
    """Whether there is a figure: an array of whole numbers says -1 where there is none."""
    return value >= 0 if metric.of else value == value
