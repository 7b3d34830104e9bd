"""Selection of rows of the layer tree: filtered, folded at a depth, sorted, flat; groups sum what is left.

A filter keeps what it finds and the groups around it. A group of which some layers are left has the sums over
those, so that a narrowed tree adds up as the whole one does; one that was found without any of its layers
(`is:group`) keeps its own figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.costs.layer_tree import summed
from explorer.facts import Info, Layer, whole_model
from explorer.settings.columns import ColumnFigures, LayerColumn

_STORED = ("params", "weight_bytes", "trainable_params")
_FIELDS = (
    *_STORED,
    *("macs", "elementwise_ops", "bytes_read", "bytes_written", "activation_bytes", "weight_bytes_read"),
)

Numbers = Mapping[int, float | None]
Values = list[float | None]


class NarrowedTree(Struct, frozen=True):
    """What a filter leaves of a tree.

    Attributes:
        layers: In the order of the tree, groups with the sums of what is left in them.
        total: What they add up to, as a row with the id -1.
        figures: Of those that lie beside the rows, the sums: by name, by id.
        found: How many layers were found, and groups without any of their layers.
    """

    layers: Sequence[Layer]
    total: Layer
    figures: Mapping[str, Numbers]
    found: int


def narrowed(
    info: Info,
    layers: Sequence[Layer],
    is_wanted: Callable[[Layer], bool] | None,
    figures: Mapping[str, Numbers],
) -> NarrowedTree:
    """The rows that a filter finds and the groups around them.

    Args:
        info: Of the model.
        layers: All rows, in pre-order.
        is_wanted: Tells whether a row is found, asked in the order of the tree; None finds all.
        figures: Sums that lie beside the rows, by name, by the id of a layer or group that has one itself.
    """
    rows = list(layers)
    matches = [True if is_wanted is None else is_wanted(row) for row in rows]
    sums = _Sums(rows, matches, figures)
    remaining = [at for at in range(len(rows)) if sums.kept[at]]
    whole = whole_model(info.totals, info.model.inputs, info.model.outputs)
    if is_wanted is not None:
        whole = replace(whole, **sums.fields(sums.top), inputs=(), outputs=())
    extras = {name: {rows[at].id: sums.extra(sums.values[at], name) for at in remaining} for name in figures}
    for name, numbers in extras.items():
        numbers[whole.id] = sums.extra(sums.top, name)
    many = sum(matches[at] and (not rows[at].group or not sums.left[at]) for at in remaining)
    return NarrowedTree([sums.row(at) for at in remaining], whole, extras, many)


class _Sums:
    """Which rows are left, and what they add up to, last row first.

    Attributes:
        kept: Whether a row is left.
        left: How many layers are left in a row.
        values: What a row adds up to.
        top: What lies at the top.
    """

    def __init__(
        self, rows: Sequence[Layer], matches: Sequence[bool], figures: Mapping[str, Numbers]
    ) -> None:
        self._rows, self._names = rows, list(figures)
        self.kept = list(matches)
        self._partial = [False] * len(rows)
        self.left = [0] * len(rows)
        self._shared = [bool(row.shared_with) for row in rows]
        self._leaves = [0] * len(rows)
        # layers that are summed, and all layers: a tiled layer counts as one unless its parts match
        self._summed = [0] * len(rows)
        self._all = [0] * len(rows)
        own_values = [[figures[name].get(row.id, 0) for name in self._names] for row in rows]
        every: dict[int, list[Values]] = {}
        below: dict[int, list[Values]] = {}
        self.values: list[Values] = [[] for _ in rows]
        place = {row.id: at for at, row in enumerate(rows)}
        for at in range(len(rows) - 1, -1, -1):
            row = rows[at]
            above = -1 if row.parent is None else place[row.parent]
            base = [getattr(row, name) for name in _FIELDS]
            extra = [summed(part) for part in zip(own_values[at], *every.pop(at, []), strict=True)]
            values = [*base, *extra]
            if not row.group:
                self._leaves[at], self.left[at] = 1, int(matches[at])
                self._all[at], self._summed[at] = 1, int(matches[at])
            elif self.left[at] < self._leaves[at] and (self.left[at] or (self.kept[at] and not matches[at])):
                self._partial[at] = True
                values = [summed(part) for part in zip(*below.get(at, []), strict=True)]
            if row.group and not self.left[at]:
                self._all[at] = 1 if row.tiled else self._all[at]
                self._summed[at] = self._all[at] if matches[at] else self._summed[at]
            below.pop(at, None)
            self.values[at] = values
            every.setdefault(above, []).append(extra)
            if self.kept[at]:
                below.setdefault(above, []).append(self._as_part(row, above, values))
            if above >= 0:
                self.kept[above] |= self.kept[at]
                self.left[above] += self.left[at]
                self._leaves[above] += self._leaves[at]
                self._summed[above] += self._summed[at]
                self._all[above] += self._all[at]
                self._shared[above] |= self._shared[at] and self.kept[at]
        width = len(_FIELDS) + len(self._names)
        self.top = [summed(part) for part in zip(*below.get(-1, [[0] * width]), strict=True)]

    def _as_part(self, row: Layer, above: int, values: Values) -> Values:
        """What a row adds to the one above it: what does not run beside the rest only what it stores."""
        if row.counted or (above >= 0 and not self._rows[above].counted):
            return values
        return [value if name in _STORED else 0 for name, value in zip(_FIELDS, values, strict=False)] + [
            0 for _ in self._names
        ]

    def row(self, at: int) -> Layer:
        """A row as it is left."""
        row = self._rows[at]
        if not self._partial[at]:
            return row
        reason, assumed = row.reason, row.assumed
        if self._summed[at] < self._all[at]:
            reason = f"the sum over {self._summed[at]:,} of {self._all[at]:,} layers in it"
            assumed = False
            if self._shared[at]:
                reason += ", parameters that they share counted for each"
        return replace(row, **self.fields(self.values[at]), reason=reason, assumed=assumed, repeat=1)

    def fields(self, values: Values) -> dict[str, Any]:
        """The fields of a row with these sums."""
        return dict(zip(_FIELDS, values, strict=False))

    def extra(self, values: Values, name: str) -> float | None:
        """A sum that lies beside the rows."""
        return values[len(_FIELDS) + self._names.index(name)]


def folded(rows: Sequence[Layer], constants: Sequence[int]) -> list[Layer]:
    """The rows with the constants of each group as one row: '+89 constants'.

    Args:
        rows: In pre-order.
        constants: Ids of those in which are constants and shape arithmetic only.

    Returns:
        The rows; one that stands for constants has the sums over them and an id below -1.
    """
    among = set(constants)
    within: dict[int, int | None] = {}  # the group in which a row is folded
    of_group: dict[int | None, list[Layer]] = {}
    leaves: dict[int | None, int] = {}
    for row in rows:
        if row.parent in within:
            within[row.id] = within[row.parent]
        elif row.id in among:
            within[row.id] = row.parent
            of_group.setdefault(row.parent, []).append(row)
        if row.id in within and not row.group:
            leaves[within[row.id]] = leaves.get(within[row.id], 0) + 1
    merged: list[Layer] = []
    for row in rows:
        if row.id not in within:
            merged.append(row)
        elif row.parent not in within and of_group[row.parent][0] is row:
            merged.append(_constants(of_group[row.parent], leaves.get(row.parent, 0), -2 - len(merged)))
    return merged


def _constants(rows: Sequence[Layer], leaves: int, id: int) -> Layer:
    """The row that stands for some."""
    sums = {name: summed([getattr(row, name) for row in rows]) for name in _FIELDS}
    return Layer(
        id,
        rows[0].parent,
        "",
        f"+{leaves:,} constant",
        "",
        rows[0].depth,
        group=True,
        **sums,  # type: ignore[arg-type]
    )


def arranged(
    rows: Sequence[Layer],
    *,
    depth: int | None,
    flat: bool,
    sort: LayerColumn | None,
    turned: bool,
    beside: ColumnFigures,
) -> list[Layer]:
    """Rows in the order in which they are shown.

    Args:
        rows: In pre-order.
        depth: Levels of the tree that are shown, from 1; groups of the last stand for what is in them.
        flat: Only what has nothing shown in it, whatever group that lies in.
        sort: By what siblings (of a flat list: all) are sorted: numbers from the largest, texts from A. What
            is not known comes last.
        turned: The other way.
        beside: Of the rows.
    """
    visible = [row for row in rows if depth is None or row.depth < depth]
    if flat:
        groups = {row.parent for row in visible}
        return _sorted([row for row in visible if row.id not in groups], sort, turned, beside)
    if sort is None:
        return visible
    children: dict[int | None, list[Layer]] = {}
    for each in visible:
        children.setdefault(each.parent, []).append(each)
    ordered: list[Layer] = []
    stack = [iter(_sorted(children.pop(None, []), sort, turned, beside))]
    while stack:
        row = next(stack[-1], None)
        if row is None:
            stack.pop()
            continue
        ordered.append(row)
        if row.id in children:
            stack.append(iter(_sorted(children.pop(row.id), sort, turned, beside)))
    return ordered


def _sorted(rows: list[Layer], sort: LayerColumn | None, turned: bool, beside: ColumnFigures) -> list[Layer]:
    if sort is None:
        return rows
    comparable: list[tuple[Any, Layer]] = []
    unknown: list[Layer] = []
    for row in rows:
        value = sort.of(row, beside)
        if value is None:
            unknown.append(row)
        else:
            comparable.append((value if sort.is_number else _words(value), row))
    # equal rows keep their order in either direction
    comparable.sort(key=lambda pair: pair[0], reverse=sort.is_number != turned)
    return [*[row for _, row in comparable], *unknown]


def _words(value: Any) -> Any:
    """A text or shapes as they are sorted: sizes that are no number behind those that are."""
    if isinstance(value, str):
        return value.casefold()
    sizes = [shape for shape in value if shape is not None]
    return [[(not isinstance(size, int), size if isinstance(size, int) else 0) for size in s] for s in sizes]
