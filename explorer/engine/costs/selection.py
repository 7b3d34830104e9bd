"""Filters, folds, sorts and flattens the rows of a layer tree, and sums each group over its remaining layers.

A filter keeps the matching rows and the groups that contain them. If a filter removes some layers of a group,
the group shows the sum over the remaining layers, so a filtered tree adds up like the full tree. A group that
matches itself while none of its layers do (`is:group`) keeps its own figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.units import many_text
from explorer.engine.costs.layer_tree import sum_known
from explorer.facts import Info, Layer, build_total_row
from explorer.settings.columns import ColumnFigures, LayerColumn

_STORED = ("params", "weight_bytes", "trainable_params")
_FIELDS = (
    *_STORED,
    *("macs", "elementwise_ops", "bytes_read", "bytes_written", "activation_bytes", "weight_bytes_read"),
)

Numbers = Mapping[int, float | None]
"""Figures of an additional column by row id; None if unknown."""

Values = list[float | None]
"""Values of one row: `_FIELDS`, then the additional columns."""


class NarrowedTree(Struct, frozen=True):
    """The rows that a filter keeps.

    Attributes:
        layers: Kept rows in tree order; groups show the sums over their kept layers.
        total: The sum of all kept rows, as a row with id -1.
        figures: Sums of the additional columns, by column name, then by row id.
        match_count: Number of matching layers, plus matching groups without a matching layer.
    """

    layers: Sequence[Layer]
    total: Layer
    figures: Mapping[str, Numbers]
    match_count: int


def filter_rows(
    info: Info,
    layers: Sequence[Layer],
    is_wanted: Callable[[Layer], bool] | None,
    figures: Mapping[str, Numbers],
) -> NarrowedTree:
    """Keeps the rows that match a filter and the groups that contain them.

    Args:
        info: Facts of the model.
        layers: All rows, in pre-order.
        is_wanted: Whether a row matches, called in tree order; None matches every row.
        figures: Additional columns to sum, by column name, then by id of the rows with a figure of their own.
    """
    rows = list(layers)
    matches = [True if is_wanted is None else is_wanted(row) for row in rows]
    sums = _Sums(rows, matches, figures)
    remaining = [index for index in range(len(rows)) if sums.kept[index]]
    total = build_total_row(info.totals, info.model.inputs, info.model.outputs)
    if is_wanted is not None:
        total = replace(total, **sums.name_fields(sums.top), inputs=(), outputs=())
    extras = {
        name: {rows[index].id: sums.get_extra(sums.values[index], name) for index in remaining}
        for name in figures
    }
    for name, numbers in extras.items():
        numbers[total.id] = sums.get_extra(sums.top, name)
    match_count = sum(
        matches[index] and (not rows[index].group or not sums.kept_counts[index]) for index in remaining
    )
    return NarrowedTree([sums.build_row(index) for index in remaining], total, extras, match_count)


class _Sums:
    """Computes which rows a filter keeps and their sums, from the last row to the first.

    Attributes:
        kept: Whether each row is kept.
        kept_counts: Number of kept layers in each row.
        values: Sums of each row: `_FIELDS`, then the additional columns.
        top: Sums of the whole tree.
    """

    def __init__(
        self, rows: Sequence[Layer], matches: Sequence[bool], figures: Mapping[str, Numbers]
    ) -> None:
        self._rows, self._names = rows, list(figures)
        self.kept = list(matches)
        self._is_partial = [False] * len(rows)
        self.kept_counts = [0] * len(rows)
        self._has_shared = [bool(row.shared_with) for row in rows]
        self._leaf_counts = [0] * len(rows)
        # numbers of summed layers and of all layers; a tiled site counts as one layer unless its parts match
        self._summed_counts = [0] * len(rows)
        self._layer_counts = [0] * len(rows)
        own_values = [[figures[name].get(row.id, 0) for name in self._names] for row in rows]
        all_children: dict[int, list[Values]] = {}
        kept_children: dict[int, list[Values]] = {}
        self.values: list[Values] = [[] for _ in rows]
        index_by_id = {row.id: index for index, row in enumerate(rows)}
        for index in range(len(rows) - 1, -1, -1):
            row = rows[index]
            parent = -1 if row.parent is None else index_by_id[row.parent]
            base = [getattr(row, name) for name in _FIELDS]
            extra = [
                sum_known(part) for part in zip(own_values[index], *all_children.pop(index, []), strict=True)
            ]
            values = [*base, *extra]
            if not row.group:
                self._leaf_counts[index], self.kept_counts[index] = 1, int(matches[index])
                self._layer_counts[index], self._summed_counts[index] = 1, int(matches[index])
            elif self.kept_counts[index] < self._leaf_counts[index] and (
                self.kept_counts[index] or (self.kept[index] and not matches[index])
            ):
                self._is_partial[index] = True
                values = [sum_known(part) for part in zip(*kept_children.get(index, []), strict=True)]
            if row.group and not self.kept_counts[index]:
                self._layer_counts[index] = 1 if row.tiled else self._layer_counts[index]
                self._summed_counts[index] = (
                    self._layer_counts[index] if matches[index] else self._summed_counts[index]
                )
            kept_children.pop(index, None)
            self.values[index] = values
            all_children.setdefault(parent, []).append(extra)
            if self.kept[index]:
                kept_children.setdefault(parent, []).append(self._select_part_values(row, parent, values))
            if parent >= 0:
                self.kept[parent] |= self.kept[index]
                self.kept_counts[parent] += self.kept_counts[index]
                self._leaf_counts[parent] += self._leaf_counts[index]
                self._summed_counts[parent] += self._summed_counts[index]
                self._layer_counts[parent] += self._layer_counts[index]
                self._has_shared[parent] |= self._has_shared[index] and self.kept[index]
        width = len(_FIELDS) + len(self._names)
        self.top = [sum_known(part) for part in zip(*kept_children.get(-1, [[0] * width]), strict=True)]

    def _select_part_values(self, row: Layer, parent: int, values: Values) -> Values:
        """Returns the values that a row adds to its parent.

        An uncounted row in a counted parent adds only parameters.
        """
        if row.counted or (parent >= 0 and not self._rows[parent].counted):
            return values
        return [value if name in _STORED else 0 for name, value in zip(_FIELDS, values, strict=False)] + [
            0 for _ in self._names
        ]

    def build_row(self, index: int) -> Layer:
        """Returns the row at `index`, with the sums over its kept layers if the filter removed some."""
        row = self._rows[index]
        if not self._is_partial[index]:
            return row
        reason, assumed = row.reason, row.assumed
        if self._summed_counts[index] < self._layer_counts[index]:
            reason = (
                f"the sum over {self._summed_counts[index]:,} of {self._layer_counts[index]:,} layers in it"
            )
            assumed = False
            if self._has_shared[index]:
                reason += "; parameters that several layers share count once for each layer"
        return replace(row, **self.name_fields(self.values[index]), reason=reason, assumed=assumed, repeat=1)

    def name_fields(self, values: Values) -> dict[str, Any]:
        """Returns the values of `_FIELDS` by name."""
        return dict(zip(_FIELDS, values, strict=False))

    def get_extra(self, values: Values, name: str) -> float | None:
        """Returns the sum of an additional column, or None if unknown."""
        return values[len(_FIELDS) + self._names.index(name)]


def fold_constants(rows: Sequence[Layer], constants: Sequence[int]) -> list[Layer]:
    """Merges the constants of each group into one row: '+89 constants'.

    Args:
        rows: Rows in pre-order.
        constants: Ids of the rows that contain constants and shape arithmetic only.

    Returns:
        The rows. A merged row has the sums over its constants and an id below -1.
    """
    constant_ids = set(constants)
    folding_groups: dict[int, int | None] = {}  # by row id, the group whose merged row includes the row
    constants_by_group: dict[int | None, list[Layer]] = {}
    leaf_counts: dict[int | None, int] = {}
    for row in rows:
        if row.parent in folding_groups:
            folding_groups[row.id] = folding_groups[row.parent]
        elif row.id in constant_ids:
            folding_groups[row.id] = row.parent
            constants_by_group.setdefault(row.parent, []).append(row)
        if row.id in folding_groups and not row.group:
            leaf_counts[folding_groups[row.id]] = leaf_counts.get(folding_groups[row.id], 0) + 1
    merged: list[Layer] = []
    for row in rows:
        if row.id not in folding_groups:
            merged.append(row)
        elif row.parent not in folding_groups and constants_by_group[row.parent][0] is row:
            merged.append(
                _merge_constants(
                    constants_by_group[row.parent], leaf_counts.get(row.parent, 0), -2 - len(merged)
                )
            )
    return merged


def _merge_constants(rows: Sequence[Layer], leaves: int, id: int) -> Layer:
    """Returns one row with the sums over `rows`, named after the number of `leaves`."""
    sums = {name: sum_known([getattr(row, name) for row in rows]) for name in _FIELDS}
    return Layer(
        id,
        rows[0].parent,
        "",
        f"+{many_text(leaves, 'constant')}",
        "",
        rows[0].depth,
        group=True,
        **sums,  # type: ignore[arg-type]
    )


def arrange_rows(
    rows: Sequence[Layer],
    *,
    depth: int | None,
    flat: bool,
    sort: LayerColumn | None,
    is_reversed: bool,
    columns: ColumnFigures,
) -> list[Layer]:
    """Returns the rows to show, in display order.

    Args:
        rows: Rows in pre-order.
        depth: Number of tree levels to show, from 1; groups at the last level represent their contents.
        flat: Whether to show the innermost visible rows only, without their groups.
        sort: Column to sort siblings by (all rows of a flat list): numbers descending, texts ascending.
            Unknown values come last.
        is_reversed: Whether to reverse the sort order.
        columns: Figures of additional columns.
    """
    visible = [row for row in rows if depth is None or row.depth < depth]
    if flat:
        groups = {row.parent for row in visible}
        return _sort_rows([row for row in visible if row.id not in groups], sort, is_reversed, columns)
    if sort is None:
        return visible
    children: dict[int | None, list[Layer]] = {}
    for visible_row in visible:
        children.setdefault(visible_row.parent, []).append(visible_row)
    ordered: list[Layer] = []
    stack = [iter(_sort_rows(children.pop(None, []), sort, is_reversed, columns))]
    while stack:
        row = next(stack[-1], None)
        if row is None:
            stack.pop()
            continue
        ordered.append(row)
        if row.id in children:
            stack.append(iter(_sort_rows(children.pop(row.id), sort, is_reversed, columns)))
    return ordered


def _sort_rows(
    rows: list[Layer], sort: LayerColumn | None, is_reversed: bool, columns: ColumnFigures
) -> list[Layer]:
    if sort is None:
        return rows
    comparable: list[tuple[Any, Layer]] = []
    unknown: list[Layer] = []
    for row in rows:
        value = sort.get_value(row, columns)
        if value is None:
            unknown.append(row)
        else:
            comparable.append((value if sort.is_number else _make_sort_key(value), row))
    # stable in both directions: rows with equal values keep their order
    comparable.sort(key=lambda pair: pair[0], reverse=sort.is_number != is_reversed)
    return [*[row for _, row in comparable], *unknown]


def _make_sort_key(value: Any) -> Any:
    """Returns the sort key of a text or of shapes; symbolic sizes sort after integers."""
    if isinstance(value, str):
        return value.casefold()
    sizes = [shape for shape in value if shape is not None]
    return [[(not isinstance(size, int), size if isinstance(size, int) else 0) for size in s] for s in sizes]
