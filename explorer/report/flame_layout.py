"""Layout of an icicle plot (flame graph): boxes for groups and layers, as wide as their share of a figure.

The layout uses the arrays of `Structure` and descends only into boxes that are wide enough to be visible, so
100,000 rows cost little more than a pass over siblings. Siblings narrower than a cell share one box. The part
of a group's figure that none of its rows has remains a gap. A group and its only visible child of the same
value form a chain, which shares one box.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import isclose

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.families import find_family
from explorer.base.units import bytes_text, count_text, exact_text, printable, seconds_text
from explorer.facts import Layer, Totals, build_total_row
from explorer.facts.profile.profile import Profile
from explorer.report.names import NameSet
from explorer.session.cache.rows import Structure
from explorer.settings.columns import COLUMNS, NOTHING

MEASURED = "measured"
COUNTED = {"macs": "macs", "params": "params", "weights": "weight_bytes", "activations": "activation_bytes"}
"""Figures that boxes can show, and the name of the array in `Structure.columns` for each."""
FOLDED = 3
"""Minimum width in cells of a box that represents several rows."""


class IcicleBox(Struct, frozen=True):
    """A box of an icicle plot.

    Attributes:
        first: First row in the box; -1 for a box without rows, such as runtime overhead.
        stop: Row after the last one in the box.
        rows: Number of siblings that the box represents: 1 for a single row, 0 without rows and for the
            model.
        level: Depth of the box; 0 at the top.
        start, width: Position and width in cells.
        value: Value of the figure, summed over the rows.
        name: Name of a box without rows.
        innermost: Last row of the chain that starts with `first`; -1 without a chain.
    """

    first: int
    stop: int
    rows: int
    level: int
    start: int
    width: int
    value: float
    name: str = ""
    innermost: int = -1

    @property
    def row(self) -> int:
        """The row whose children lie below the box: the last row of the chain, or the first row."""
        return self.first if self.innermost < 0 else self.innermost

    @property
    def span(self) -> tuple[int, int]:
        """The first row, and the row after the last one."""
        return self.first, self.stop


class FlameWeights(Struct, frozen=True):
    """Values of a figure for all rows, and for parts of the model without a row.

    Attributes:
        end: Row after the last descendant of each row, as in `session.cache.rows.Structure`.
        values: Value of each row, including its descendants; negative or NaN if unknown.
        total: Value of the whole model.
        beside: Values without a row, by name.
    """

    end: Sequence[int]
    values: Sequence[float]
    total: float
    beside: Mapping[str, float]


class FlameFigure(Struct, frozen=True):
    """A figure that determines the widths of the boxes.

    Attributes:
        id: Name of its column.
        title: Title of its column.
        unit: Unit of the values: 'count', 'bytes' or 'seconds'.
        weights: Values of the figure.
    """

    id: str
    title: str
    unit: str
    weights: FlameWeights

    def text(self, value: float, exact: bool = False) -> str:
        """Format a value with its unit."""
        if self.unit == "seconds":
            return seconds_text(value)
        return exact_text(int(value)) if exact else _UNITS[self.unit](int(value))


_UNITS = {"count": count_text, "bytes": bytes_text}


def create_counted_figure(name: str, structure: Structure, totals: Totals) -> FlameFigure:
    """Create the figure of a counted column: 'macs', 'params', or another name in `COUNTED`."""
    column = COLUMNS[name]
    total = column.get_value(build_total_row(totals), NOTHING)
    weights = FlameWeights(structure.end, structure.columns[COUNTED[name]], total or 0, {})
    return FlameFigure(name, column.head, column.unit, weights)


def create_measured_figure(structure: Structure, seconds: Sequence[float], profile: Profile) -> FlameFigure:
    """Create the figure of measured time, from the column of the tree and the profile."""
    values_without_row = {entry.name: entry.seconds for entry in profile.other}
    values_without_row["runtime overhead"] = max(0.0, profile.overhead_seconds)
    # kernels may take longer under the profiler than a whole run without it
    weights = FlameWeights(structure.end, seconds, profile.share_base_seconds, values_without_row)
    title = "kernel time" if profile.share_base == "kernel" else "measured time"
    return FlameFigure(MEASURED, title, "seconds", weights)


class FlameLabel(Struct, frozen=True):
    """The label of a box: its name, the family of its color, and the operator of a layer."""

    name: str
    family: str
    kind: str = ""


def label_of(box: IcicleBox, layers: Sequence[Layer], model: str) -> FlameLabel:
    """Return the label of a box: its own name, that of the model, row or chain, or the number of rows."""
    if box.first < 0:
        return FlameLabel(box.name, "other")
    if not box.rows:
        return FlameLabel(model, "other")
    if box.rows > 1:
        return FlameLabel(f"{box.rows:,} rows", "other")
    row = layers[box.row]
    kind = "" if row.group else printable(row.kind_text)
    names = [row.name or row.path]
    current, parent = row.id, row.parent
    while current != box.first and parent is not None:
        current, parent = parent, layers[parent].parent
        names.insert(0, layers[current].name)
    return FlameLabel(printable(".".join(names)), find_family(row.kind, tiled=row.tiled), kind)


def shorten_labels(
    boxes: Sequence[IcicleBox], labels: Sequence[FlameLabel], max_lengths: Sequence[int]
) -> list[FlameLabel]:
    """Shorten the names of boxes so that each keeps the part by which it differs from its siblings.

    Args:
        boxes: Boxes laid out by `icicle`, level by level.
        labels: Label of each box.
        max_lengths: Maximum length of each name, in characters. A number of rows that does not fit becomes
            `×12`.
    """
    names = [label.name for label in labels]
    siblings: dict[int, list[int]] = {}
    parent, first = 0, 0
    for index, box in enumerate(boxes):
        if index and box.level > boxes[index - 1].level:
            parent, first = first, index
        # the boxes of a level lie in the order of their parents
        while index and parent < index and box.start >= boxes[parent].start + boxes[parent].width:
            parent += 1
        if box.rows > 1 and len(names[index]) > max_lengths[index]:
            names[index] = f"×{box.rows:,}"
        elif box.rows == 1:
            siblings.setdefault(parent, []).append(index)
    for indices in siblings.values():
        length_by_name: dict[str, int] = {}
        for index in indices:
            length_by_name[names[index]] = min(
                max_lengths[index], length_by_name.get(names[index], max_lengths[index])
            )
        texts = (
            NameSet(length_by_name)
            .shorten({name: max(1, length) for name, length in length_by_name.items()})
            .texts
        )
        for index in indices:
            names[index] = texts[names[index]]
    return [replace(label, name=name) for label, name in zip(labels, names, strict=True)]


def icicle(
    weights: FlameWeights, top: tuple[int, int] | None, cells: int, levels: int, *, rows: int = 1
) -> list[IcicleBox]:
    """Return the visible boxes, level by level, each from left to right.

    Args:
        weights: Values to draw.
        top: First row of the topmost box and the row after its last one, or None for the whole model.
        cells: Width of the plot in cells.
        levels: Maximum number of levels.
        rows: Number of siblings in `top`.
    """
    end, values = weights.end, weights.values
    if top is None:
        tops = _list_siblings(end, 0, len(end))
        value = weights.total if weights.total > 0 else _sum_rows(values, tops) + sum(weights.beside.values())
        box = IcicleBox(0, len(end), 0, 0, 0, cells, value)
    else:
        span = range(top[0], top[1]) if rows == 1 else _list_siblings(end, *top)
        value = _clamp_at_zero(values[top[0]]) if rows == 1 else _sum_rows(values, span)
        box = IcicleBox(*top, rows, 0, 0, cells, value, innermost=_find_innermost(weights, top[0], rows))
    level, boxes = [box], [box]
    for _ in range(1, levels):
        level = [inner for outer in level for inner in _lay_out_children(weights, outer)]
        if not level:
            break
        boxes += level
    return boxes


def _clamp_at_zero(value: float) -> float:
    return value if value > 0 else 0


def _sum_rows(values: Sequence[float], rows: Sequence[int]) -> float:
    return sum(_clamp_at_zero(values[row]) for row in rows)


def _find_innermost(weights: FlameWeights, row: int, rows: int) -> int:
    """Return the last row of the chain that starts with `row`, or -1 without a chain or for several rows."""
    first, values = row, weights.values
    while rows == 1:
        children = _iterate_visible_children(weights, row)
        child = next(children, -1)
        if child < 0 or next(children, -1) >= 0 or not isclose(values[child], values[row]):
            break
        row = child
    return -1 if row == first else row


def _iterate_visible_children(weights: FlameWeights, row: int) -> Iterator[int]:
    """Yield the children of a row that have a value above zero."""
    child, stop = row + 1, weights.end[row]
    while child < stop:
        if weights.values[child] > 0:
            yield child
        child = weights.end[child]


def _list_siblings(end: Sequence[int], first: int, stop: int) -> Sequence[int]:
    """Return the siblings from row `first` (included) to `stop` (excluded)."""
    siblings, row = [], first
    while row < stop:
        siblings.append(row)
        row = end[row]
    return siblings


def _lay_out_children(weights: FlameWeights, outer: IcicleBox) -> Iterator[IcicleBox]:
    """Yield the boxes directly below a box. Only the topmost box is divided if it represents several rows."""
    end = weights.end
    if outer.first < 0 or not outer.value or (outer.rows > 1 and outer.level):
        return
    stop_row = end[outer.row] if outer.rows == 1 else outer.stop
    inner = _list_siblings(end, outer.row + (outer.rows == 1), stop_row)
    values = [value if value > 0 else 0 for value in map(weights.values.__getitem__, inner)]
    names = [] if outer.rows else [name for name, value in weights.beside.items() if value > 0]
    all_values = [*values, *(weights.beside[name] for name in names)]
    sums = [0, *accumulate(all_values)]
    total, level, count = max(outer.value, sums[-1]), outer.level + 1, len(inner)
    for first, stop in _split_runs(sums, all_values, count, total / outer.width):
        # divide before multiplying, because the sums may exceed the range of floats
        start, end_cell = (
            outer.start + round(outer.width * (sums[index] / total)) for index in (first, stop)
        )
        width, value = end_cell - start, sums[stop] - sums[first]
        if width < 1:
            continue
        if first >= count:
            text = ", ".join(names[first - count : stop - count])
            yield IcicleBox(-1, -1, 0, level, start, width, value, text)
            continue
        visible = [index for index in range(first, stop) if values[index]]
        span, rows = (inner[visible[0]], end[inner[visible[-1]]]), len(visible)
        innermost = _find_innermost(weights, span[0], rows)
        yield IcicleBox(*span, rows, level, start, width, value, innermost=innermost)


def _split_runs(
    sums: Sequence[float], values: Sequence[float], count: int, cell: float
) -> Iterator[tuple[int, int]]:
    """Split values into runs: each value at least one cell wide is a run, and narrow neighbors share one.

    A run does not cross index `count`, where the values without a row begin.
    """
    index = 0
    for wide_index in [
        *(i for i, value in enumerate(values) if value >= cell > 0 or i == count),
        len(values),
    ]:
        while index < wide_index:
            stop = max(
                index + 1,
                min(wide_index, bisect_left(sums, sums[index] + FOLDED * cell, index + 1, wide_index + 1)),
            )
            if sums[wide_index] - sums[stop] < FOLDED * cell:
                stop = wide_index  # the remainder is too narrow for another box
            yield index, stop
            index = stop
        if wide_index < len(values) and values[wide_index] >= cell > 0:
            yield wide_index, wide_index + 1
            index = wide_index + 1


def parent_of(boxes: Sequence[IcicleBox], index: int) -> int | None:
    """Return the index of the parent of a box, or None for the topmost."""
    box = boxes[index]
    return next(
        (
            i
            for i, candidate in enumerate(boxes)
            if candidate.level == box.level - 1
            and candidate.start <= box.start < candidate.start + candidate.width
        ),
        None,
    )


def find_child(boxes: Sequence[IcicleBox], index: int) -> int | None:
    """Return the index of the widest child of a box, or None without children."""
    box = boxes[index]
    children = [
        i
        for i, candidate in enumerate(boxes)
        if candidate.level == box.level + 1 and box.start <= candidate.start < box.start + box.width
    ]
    return max(children, key=lambda i: (boxes[i].width, -i), default=None)


def find_box(boxes: Sequence[IcicleBox], row: int) -> int:
    """Return the index of the innermost box that contains a row, or 0 (the topmost box) if none does."""
    indices = [i for i, box in enumerate(boxes) if box.first <= row < box.stop]
    return indices[-1] if indices else 0
