"""Rows of the layer tree: encodes a row as an integer, and computes the figures of rows.

Textual's own tree builds one object per row, which takes seconds for 100,000 rows. Here a row is an integer:

- A row >= 0 is the ID of a layer.
- A row from -1 to -count is a run of identical siblings (`layers.0 … layers.11`), folded into one row. The
  run starts at layer `-row - 1`.
- A row below -count folds consecutive children of a group with thousands of children (a range), or the
  constants of a group.

A layer is loaded only when its row is drawn. The figures of all layers are in arrays
(`explorer.session.cache.rows`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from math import isnan, nan
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from explorer.session.cache.rows import (
    ASSUMED,
    BOUND,
    GROUP,
    RANGE,
    SHARED,
    UNKNOWN,
    RowPages,
    build_structure,
)
from explorer.tui.tree.stages import CROSSING, STAGE, StageRows, stage_columns

if TYPE_CHECKING:
    from explorer.facts import Layer
    from explorer.facts.external.overlay import Overlay
    from explorer.settings.columns import LayerColumn


class TextCells(Struct, frozen=True):
    """Widths, in terminal cells, of the texts of a tree or a flat list.

    Attributes:
        name: Cells of the names with rail, sign and an indentation of one cell for each level.
        indented: The same with an indentation of two cells for each level.
        columns: Cells of the texts of each column whose texts are measured.
    """

    name: int
    indented: int
    columns: Mapping[str, int]

    def count_missing(self, cells: Mapping[str, int]) -> int:
        """Return how many cells the columns, whose widths are `cells`, lack to show their texts in full."""
        return sum(max(0, needed - cells.get(name, needed)) for name, needed in self.columns.items())


class Metric(Struct, frozen=True):
    """A metric: a column that rows can be sorted by, and where its figures are stored.

    Attributes:
        id: Name of the column.
        title: Title of the column.
        array: Name of the array in `structure` with the figures, or '' if they are in `requested_figures`.
        unit: Unit of the figures, as in `settings.columns`.
        stored: Whether the figure is known for every row, even where shapes are unknown.
        sums: Whether the figure of a group is the sum of its members.
        aggregate: Function that combines the figures of several rows of an external overlay: 'sum', 'mean',
            'max' or 'min'. '' for other columns. See `facts.external.overlay`.
    """

    id: str
    title: str
    array: str
    unit: str = "count"
    stored: bool = False
    sums: bool = True
    aggregate: str = ""


METRICS = (
    Metric("macs", "MACs", "macs"),
    Metric("params", "params", "params", stored=True),
    Metric("weights", "weights", "weight_bytes", "bytes", stored=True),
    Metric("activations", "activations", "activation_bytes", "bytes"),
)
MEASURED = ("measured", "measured_share", "efficiency")
"""Columns that exist once the model has been profiled."""
_SHARE = Metric("share", "share", "macs", "share")


def list_columns(model: FoldedRows | None) -> Mapping[str, LayerColumn]:
    """Return all columns of a model by name: the built-in columns, then columns of its overlay and its split.

    The header of the measured shares names the time that they are shares of. Without a model, only the
    built-in columns are returned.
    """
    # imported here because the first paint does not need it
    from explorer.settings.columns import COLUMNS, build_overlay_columns

    if model is None or (model.overlay is None and model.stages is None and not model.share_head):
        return COLUMNS
    if model.all_columns is None:
        columns = {**COLUMNS, **({} if model.overlay is None else build_overlay_columns(model.overlay))}
        if model.share_head:
            columns["measured_share"] = replace(COLUMNS["measured_share"], head=model.share_head)
        model.all_columns = {**columns, **({} if model.stages is None else stage_columns())}
    return model.all_columns


def find_metric(column: str, columns: Mapping[str, LayerColumn] | None = None) -> Metric | None:
    """Return the metric of a column in `columns` (default: the built-in columns), or None."""
    metric = next((metric for metric in (*METRICS, _SHARE) if metric.id == column), None)
    if metric is not None or not column:
        return metric
    layer_column = (list_columns(None) if columns is None else columns).get(column)
    if layer_column is None:
        return None
    return Metric(
        column,
        layer_column.head,
        "",
        layer_column.unit,
        layer_column.stored,
        layer_column.adds_up,
        layer_column.aggregate,
    )


_AGGREGATES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "mean": lambda values: sum(values) / len(values),
    "max": max,
    "min": min,
}
_CONSTANTS = -1
"""Range number of the row that contains the constants of a group."""
_LEAF_MARKS = bytes(not flag & GROUP for flag in range(256))
"""Whether a row is not a group, by the value of its flags."""


class FoldedRows:
    """Maps rows to the layers that they contain, and computes their figures, visible or not.

    Args:
        layers: Layers in pre-order, as `facts.Analysis` lists them.

    Attributes:
        structure: Parents, flags and figures of all layers as arrays; see `session.cache.rows`.
        end: ID after the last descendant of each layer.
        count: Number of layers.
        is_growing: Whether rows are still being read, so that groups may gain members.
        requested_figures: Figures that the engine computed or a file contained, by column name: one value per
            layer, then the value of the model. NaN marks an unknown value.
        overlay: Figures from external files, or None.
        providers: Execution provider of onnxruntime by layer ID, or None if unknown.
        stages: Position of the rows in a split, or None without a split.
        all_columns: Cached result of `list_columns`.
        share_head: Header of the measured shares, or '' without a profile.
        largest_leaves: Largest known figure of a layer that is not a group, by column name (a cache).
        sums: Figures of rows that contain several layers, by row and column name (a cache).
        text_cells: Cells that names, kinds and shapes use, by whether the list is flat, whether a column
            shows the kinds, whether constants are folded, and whether kinds have a letter (a cache).
        short_names: Shortened names, by layer, cells, whether the path is shown, whether a column shows the
            kinds, and the start that the heading shows (a cache).
        shared_prefixes: Common starts of names, by cells, whether paths are shown, whether a column shows the
            kinds, and whether constants are folded (a cache).
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.structure = layers.structure if isinstance(layers, RowPages) else build_structure(layers)
        self.end = self.structure.end
        self.count = len(self.end)
        self.deepest = self.structure.deepest
        self.is_growing = False
        self.requested_figures: dict[str, Sequence[float]] = {}
        self.overlay: Overlay | None = None
        self.providers: Mapping[int, str] | None = None
        self.stages: StageRows | None = None
        self.all_columns: Mapping[str, LayerColumn] | None = None
        self.share_head = ""
        self.largest_leaves: dict[str, float] = {}
        self.sums: dict[tuple[int, str], tuple[float | None, str]] = {}
        self.text_cells: dict[tuple[bool, bool, bool, bool], TextCells] = {}
        self.short_names: dict[tuple[int, int, bool, bool, str], str] = {}
        self.shared_prefixes: dict[tuple[int, bool, bool, bool], str] = {}
        self._folds = b""
        self._constants_by_row: dict[int, list[int]] = {}
        # a range is the row that contains it (None at the top) and its number there; rows -count - 1, …
        self._ranges: list[tuple[int | None, int]] = []
        self._range_of: dict[tuple[int | None, int], int] = {}  # row by range
        self._listed: dict[int, Sequence[int]] = {}  # layers of a range by its row

    def set_share_head(self, head: str) -> None:
        """Set the header of the measured shares, which names the time that they are shares of."""
        if head != self.share_head:
            self.share_head, self.all_columns = head, None

    def set_overlay(self, overlay: Overlay | None) -> None:
        """Replace the overlay by another one, or remove it with None."""
        for column in () if self.overlay is None else self.overlay.columns:
            self.requested_figures.pop(column.name, None)
        self.overlay, self.all_columns = overlay, None
        self.forget_sums()
        for column in () if overlay is None else overlay.columns:
            overlay_figures = overlay.figures[column.name] if overlay is not None else {}
            values = array("d", [nan]) * (self.count + 1)
            for index, value in overlay_figures.items():
                if index < self.count:
                    values[index] = value  # index -1, the last element, holds the figure of the whole model
            self.requested_figures[column.name] = values

    def set_stages(self, stages: StageRows) -> None:
        """Set the positions of the rows in a split, replacing those of an earlier split."""
        self.stages, self.all_columns = stages, None
        self.requested_figures |= {STAGE: stages.list_first_stages(), CROSSING: stages.crossing}
        self.forget_sums()

    def forget_sums(self) -> None:
        """Clear the cached sums, after figures arrived or rows were folded differently."""
        self.largest_leaves.clear()
        self.sums.clear()

    def find_first_layer(self, row: int) -> int:
        """Return the ID of the layer in a row, or of its first layer if it folds several."""
        if row >= 0:
            return row
        if row >= -self.count:
            return -row - 1
        return self._constants_by_row[row][0] if self.is_constants(row) else self._find_span(row)[0]

    def members(self, row: int) -> Sequence[int]:
        """Return the layers in a row: a layer, the blocks of a run, children in a range, or constants."""
        if row >= 0:
            return (row,)
        if row >= -self.count:
            first = -row - 1
            size = self.end[first] - first
            # all blocks of a run have the same number of rows
            return range(first, first + size * self.structure.repeat[first], size)
        if self.is_constants(row):
            return self._constants_by_row[row]
        layers = self._listed.get(row)
        if layers is None:
            first, stop = self._find_span(row)
            # children without rows of their own need no list
            layers = (
                range(first, stop)
                if self._has_leaves_only(row, first, stop)
                else array("i", self._iterate_siblings(first, stop))
            )
            self._listed[row] = layers
        return layers

    def is_range(self, row: int) -> bool:
        """Whether the row folds siblings that need not be identical: a range or the constants of a group."""
        return row < -self.count

    def is_constants(self, row: int) -> bool:
        """Whether the row contains the constants of a group."""
        return row < -self.count and self._ranges[-row - self.count - 1][1] == _CONSTANTS

    @property
    def has_gathered(self) -> bool:
        """Whether any layer is folded into a constants row."""
        return bool(self._folds)

    def is_gathered(self, layer: int) -> bool:
        """Whether a layer is folded into a constants row."""
        return bool(self._folds) and self._folds[layer] == 1

    def count_layers(self, row: int) -> int:
        """Count the layers, without groups, that a row contains."""
        flags, end = self.structure.flags, self.end
        return sum(
            not flags[layer] & GROUP for first in self.members(row) for layer in range(first, end[first])
        )

    def _find_span(self, row: int) -> tuple[int, int]:
        """Return the first layer of a range and the layer after its last one."""
        container, number = self._ranges[-row - self.count - 1]
        starts = self._list_range_starts(container)
        if number + 1 < len(starts):
            return starts[number], starts[number + 1]
        if container is None:
            return starts[number], self.count
        if container >= 0:
            return starts[number], self.end[container]
        last = self.members(container)[-1]
        return starts[number], self.end[last]

    def _has_leaves_only(self, row: int, first: int, stop: int) -> bool:
        """Whether no child in a range has rows of its own, so that layer IDs are consecutive."""
        container, number = self._ranges[-row - self.count - 1]
        if number + 1 < len(self._list_range_starts(container)):
            return stop - first == RANGE
        return self.end[first:stop] == array("i", range(first + 1, stop + 1))

    def _list_range_starts(self, container: int | None) -> Sequence[int]:
        """Return the first layer of each range under a row."""
        if container is not None and container < 0:
            return self.members(container)[::RANGE]
        return self.structure.wide.get(-1 if container is None else container, ())

    def _iterate_siblings(self, layer: int, stop: int) -> Iterator[int]:
        end = self.end
        while layer < stop:
            yield layer
            layer = end[layer]

    def column(self, metric: Metric) -> Sequence[float] | None:
        """Return the figures of all layers in a metric, or None if the engine has not computed them yet."""
        return self.structure.columns[metric.array] if metric.array else self.requested_figures.get(metric.id)

    def figure(self, row: int, metric: Metric) -> tuple[float | None, str]:
        """Return the figure of a row in a metric, and its sign.

        The sign is '≤' for an upper bound, '≥' for a lower bound, '≈' for an assumption, and '' otherwise.
        The sum over a run counts a shared parameter once per block: an upper bound. A group with
        unknown members, or with members still being read, sums the known members: a lower bound.
        """
        column = self.column(metric)
        if column is None:
            return None, ""
        if row >= 0 and not metric.aggregate:
            value = column[row]
            return (value if is_known(value, metric) else None), self._find_sign(
                self.structure.flags[row], metric
            )
        figure = self.sums.get((row, metric.id))
        if figure is None:
            figure = self._combine_figures(row, metric, column)
            if not self.is_growing:
                self.sums[row, metric.id] = figure
        return figure

    def list_near_siblings(self, layer: int, most: int) -> list[int]:
        """Return a layer with up to `most` of its siblings before it, and up to `most` after it."""
        parent, end = self.structure.parent, self.end
        group = parent[layer]
        stop = self.count if group < 0 else end[group]
        after, before = [layer], list[int]()
        sibling = end[layer]
        while sibling < stop and len(after) <= most:
            after.append(sibling)
            sibling = end[sibling]
        sibling = layer - 1
        while sibling > group and len(before) < most:
            while parent[sibling] != group:
                sibling = parent[sibling]
            before.append(sibling)
            sibling -= 1
        return before[::-1] + after

    def list_anchors(self, layer: int) -> list[int]:
        """Return up to 17 sample layers around a layer; all layers of a block of 16 get the same samples."""
        distances = ((16, (0, 16, 32, 48)), (64, (64, 128, 256, 512, 1024)))  # by the size of the block
        samples = {
            layer - layer % block + sign * distance
            for block, block_distances in distances
            for distance in block_distances
            for sign in (-1, 1)
        }
        return sorted(sample for sample in samples if 0 <= sample < self.count)

    def find_largest_leaf(self, metric: Metric) -> float:
        """Return the largest known figure of a layer that is not a group, or 0 if none is known."""
        largest = self.largest_leaves.get(metric.id)
        if largest is None:
            column = self.column(metric)
            if column is None:
                return 0
            values: Iterable[float] = compress(column, self.structure.flags.tobytes().translate(_LEAF_MARKS))
            if not metric.array:
                values = (value for value in values if value == value)
            largest = self.largest_leaves[metric.id] = max(values, default=0)
        return largest

    def _combine_figures(self, row: int, metric: Metric, column: Sequence[float]) -> tuple[float | None, str]:
        """Compute the figure of a row that contains several layers, and its sign."""
        flags, members, is_stored = self.structure.flags, self.members(row), metric.stored
        if metric.aggregate:
            figures = [column[index] for index in members if column[index] == column[index]]
            return (_AGGREGATES[metric.aggregate](figures) if figures else None), ""
        sign = self._find_sign(flags[members[0]] if members else 0, metric)
        if not metric.sums:
            value = column[members[0]]
            return (value if is_known(value, metric) and not self.is_range(row) else None), sign
        if isinstance(members, range):
            index = slice(members.start, members.stop, members.step)
            values, marks = column[index], set(flags[index])
        else:
            values, marks = [column[i] for i in members], {flags[i] for i in members}
        known_values = values
        # checking the sum first avoids a Python call per value: a single NaN makes the sum NaN
        if _may_contain_unknown(values) if metric.array else isnan(sum(values)):
            known_values = [value for value in values if is_known(value, metric)]
        if len(known_values) < len(values):
            if not known_values or not self.is_range(row):
                return None, ""
            sign = "≥"
        elif self.is_range(row) and not is_stored and any(mark & UNKNOWN for mark in marks):
            sign = "≥"
        if is_stored and self.is_growing and any(mark & GROUP for mark in marks):
            sign = "≥"
        elif is_stored and any(mark & SHARED for mark in marks):
            group = self.structure.parent[members[0]]
            if group >= 0 and len(members) == len(list(self._iterate_siblings(group + 1, self.end[group]))):
                return self.figure(group, metric)  # all members of a group: the same figure as the group's
            sign = "≤"
        return sum(known_values), sign

    def _find_sign(self, flag: int, metric: Metric) -> str:
        """Return the sign of the figure of a row with these flags."""
        if flag & GROUP and metric.sums and (self.is_growing if metric.stored else flag & UNKNOWN):
            return "≥"
        if metric.array != "macs":
            return ""
        return "≤" if flag & BOUND else "≈" if flag & ASSUMED else ""

    def _find_constants_row(self, container: int | None) -> int:
        """Return the row that contains the constants below `container`, creating it if needed."""
        row = self._find_range_row(container, _CONSTANTS)
        if row not in self._constants_by_row:
            if container is None:
                start, stop = 0, self.count
            else:
                start, stop = (
                    (container + 1, self.end[container]) if container >= 0 else self._find_span(container)
                )
            self._constants_by_row[row] = [
                layer for layer in self._iterate_siblings(start, stop) if self._folds[layer]
            ]
        return row

    def _list_ranges(self, container: int | None) -> list[int]:
        return [
            self._find_range_row(container, number)
            for number in range(len(self._list_range_starts(container)))
        ]

    def _find_range_row(self, container: int | None, number: int) -> int:
        """Return the row of range `number` below `container`. The same range always gets the same row."""
        row = self._range_of.get((container, number))
        if row is None:
            self._ranges.append((container, number))
            row = self._range_of[container, number] = -self.count - len(self._ranges)
        return row

    def _fold_runs(self, ids: Iterable[int]) -> Iterator[int]:
        """Yield the rows of sibling layers: one row for each run, and one for each layer outside runs."""
        repeats = self.structure.repeat
        for i in ids:
            repeat = repeats[i]
            if repeat > 1:
                yield -i - 1
            elif repeat == 1:
                yield i


def _may_contain_unknown(values: Sequence[float]) -> bool:
    """Whether the values may contain -1. All bytes of -1 are 0xff, so the bytes of an array are searched."""
    if isinstance(values, array):
        return b"\xff" * values.itemsize in values.tobytes()
    return min(values, default=0) < 0


def is_known(value: float, metric: Metric) -> bool:
    """Whether a value is a figure. Arrays of integers mark an unknown value by -1, others by NaN."""
    return value >= 0 if metric.array else value == value
