"""Icicle of a model (flame graph): its groups as boxes, in each what lies in it, as wide as what it takes.

Laid out on the arrays of the rows' structure: only what is wide enough to be seen is looked into, so that a
hundred thousand rows cost no more than a pass over those that lie side by side. Siblings thinner than a cell
stand together in one box; what of a group is in none of its rows is a gap beside them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from msgspec import Struct

from explorer.base.families import family
from explorer.base.units import bytes_text, count_text, exact_text, printable, seconds_text
from explorer.facts import Layer, Totals, whole_model
from explorer.facts.profile.profile import Profile
from explorer.session.cache.rows import Structure
from explorer.settings.columns import COLUMNS, NOTHING

MEASURED = "measured"
COUNTED = {"macs": "macs", "params": "params", "weights": "weight_bytes", "activations": "activation_bytes"}
"""Columns of the tree that boxes are as wide as, and where they lie in `Structure.columns`."""
FOLDED = 3
"""Cells that a box has at least which stands for rows that are too thin for one each."""


class IcicleBox(Struct, frozen=True):
    """A box of an icicle.

    Attributes:
        first: The row that it stands for, or the first of several siblings; -1 for what is no row.
        stop: The row behind the last one in it.
        rows: Siblings that it stands for; 1 for a row, 0 for what is no row and for the whole model.
        level: Boxes that it hangs from; 0 at the top.
        start, width: In cells.
        value: What it takes; of several rows their sum.
        name: Of what is no row.
    """

    first: int
    stop: int
    rows: int
    level: int
    start: int
    width: int
    value: float
    name: str = ""

    @property
    def span(self) -> tuple[int, int]:
        """The rows in it."""
        return self.first, self.stop


class FlameWeights(Struct, frozen=True):
    """What rows take, and what of the model is no row.

    Attributes:
        end: Behind each row the last one inside it, as in `session.cache.rows.Structure`.
        values: One a row, a group's with what lies in it; below 0, or no number, where it is not known.
        whole: The model's.
        beside: What is no row, by name.
    """

    end: Sequence[int]
    values: Sequence[float]
    whole: float
    beside: Mapping[str, float]


class FlameFigure(Struct, frozen=True):
    """What boxes are as wide as.

    Attributes:
        id: Name of its column.
        title: What the column is headed.
        unit: 'count', 'bytes' or 'seconds'.
    """

    id: str
    title: str
    unit: str
    weights: FlameWeights

    def text(self, value: float, exact: bool = False) -> str:
        """So much of it in words."""
        if self.unit == "seconds":
            return seconds_text(value)
        return exact_text(int(value)) if exact else _UNITS[self.unit](int(value))


_UNITS = {"count": count_text, "bytes": bytes_text}


def counted_figure(name: str, found: Structure, totals: Totals) -> FlameFigure:
    """One of `COUNTED`."""
    column = COLUMNS[name]
    whole = column.of(whole_model(totals), NOTHING)
    weights = FlameWeights(found.end, found.columns[COUNTED[name]], whole or 0, {})
    return FlameFigure(name, column.head, column.unit, weights)


def measured_figure(structure: Structure, seconds: Sequence[float], profile: Profile) -> FlameFigure:
    """Measured time: of rows as `Session.column` has it, and of what is no layer."""
    beside = {entry.name: entry.seconds for entry in profile.other}
    beside["runtime overhead"] = max(0.0, profile.overhead_seconds)
    # what kernels took under the profiler may be more than whole runs without it
    weights = FlameWeights(structure.end, seconds, profile.wall_seconds + profile.slowed_seconds, beside)
    title = "time under the profiler" if profile.slowed_seconds else "measured time"
    return FlameFigure(MEASURED, title, "seconds", weights)


class FlameLabel(Struct, frozen=True):
    """What a box is called, the family of what it stands for, and of an operator which."""

    name: str
    family: str
    kind: str = ""


def label_of(box: IcicleBox, layers: Sequence[Layer], model: str) -> FlameLabel:
    """What a box is called: the last part of a path, or how many rows stand in it."""
    if box.first < 0:
        return FlameLabel(box.name, "other")
    if not box.rows:
        return FlameLabel(model, "other")
    if box.rows > 1:
        return FlameLabel(f"{box.rows:,} rows", "other")
    row = layers[box.first]
    kind = "" if row.group else printable(row.kind_text)
    return FlameLabel(printable(row.name or row.path), family(row.kind, tiled=row.tiled), kind)


def icicle(
    weights: FlameWeights, top: tuple[int, int] | None, cells: int, levels: int, *, rows: int = 1
) -> list[IcicleBox]:
    """The boxes that are seen, a level after the other, each from left to right.

    Args:
        weights: What is drawn.
        top: First row of what hangs at the top and the one behind its last; None: the whole model.
        cells: How wide it is.
        levels: How deep it is at most.
        rows: Siblings in `top`.
    """
    end, values = weights.end, weights.values
    if top is None:
        tops = _siblings(end, 0, len(end))
        value = weights.whole if weights.whole > 0 else _sum(values, tops) + sum(weights.beside.values())
        box = IcicleBox(0, len(end), 0, 0, 0, cells, value)
    else:
        span = range(top[0], top[1]) if rows == 1 else _siblings(end, *top)
        box = IcicleBox(*top, rows, 0, 0, cells, _known(values[top[0]]) if rows == 1 else _sum(values, span))
    level, boxes = [box], [box]
    for _ in range(1, levels):
        level = [inner for outer in level for inner in _inside(weights, outer)]
        if not level:
            break
        boxes += level
    return boxes


def _known(value: float) -> float:
    return value if value > 0 else 0


def _sum(values: Sequence[float], rows: Sequence[int]) -> float:
    return sum(_known(values[at]) for at in rows)


def _siblings(end: Sequence[int], first: int, stop: int) -> Sequence[int]:
    """The rows that lie side by side, from one on to before another."""
    siblings, at = [], first
    while at < stop:
        siblings.append(at)
        at = end[at]
    return siblings


def _inside(weights: FlameWeights, outer: IcicleBox) -> Iterator[IcicleBox]:
    """What lies in a box; nothing in one that stands for several rows, but for the top."""
    end = weights.end
    if outer.first < 0 or not outer.value or (outer.rows > 1 and outer.level):
        return
    inner = _siblings(end, outer.first + (outer.rows == 1), outer.stop)
    values = [value if value > 0 else 0 for value in map(weights.values.__getitem__, inner)]
    names = [] if outer.rows else [name for name, value in weights.beside.items() if value > 0]
    every = [*values, *(weights.beside[name] for name in names)]
    sums = [0, *accumulate(every)]
    whole, level, count = max(outer.value, sums[-1]), outer.level + 1, len(inner)
    for first, stop in _runs(sums, every, count, whole / outer.width):
        # numbers beyond those of floats are divided before they are one
        start, past = (outer.start + round(outer.width * (sums[at] / whole)) for at in (first, stop))
        width, value = past - start, sums[stop] - sums[first]
        if width < 1:
            continue
        if first >= count:
            text = ", ".join(names[first - count : stop - count])
            yield IcicleBox(-1, -1, 0, level, start, width, value, text)
            continue
        some = [at for at in range(first, stop) if values[at]]
        span = inner[some[0]], end[inner[some[-1]]]
        yield IcicleBox(*span, len(some), level, start, width, value)


def _runs(
    sums: Sequence[float], values: Sequence[float], count: int, cell: float
) -> Iterator[tuple[int, int]]:
    """Parts of a row of boxes: each that is as wide as a cell, between them thin ones together.

    From `count` on it is no row, and does not stand in a box with one.
    """
    at = 0
    for wide in [*(i for i, value in enumerate(values) if value >= cell > 0 or i == count), len(values)]:
        while at < wide:
            stop = max(at + 1, min(wide, bisect_left(sums, sums[at] + FOLDED * cell, at + 1, wide + 1)))
            if sums[wide] - sums[stop] < FOLDED * cell:
                stop = wide  # the rest is too thin for a box of its own
            yield at, stop
            at = stop
        if wide < len(values) and values[wide] >= cell > 0:
            yield wide, wide + 1
            at = wide + 1


def parent_of(boxes: Sequence[IcicleBox], at: int) -> int | None:
    """The box that another hangs from."""
    box = boxes[at]
    return next(
        (
            i
            for i, candidate in enumerate(boxes)
            if candidate.level == box.level - 1
            and candidate.start <= box.start < candidate.start + candidate.width
        ),
        None,
    )


def child_of(boxes: Sequence[IcicleBox], at: int) -> int | None:
    """The widest of the boxes that hang from one."""
    box = boxes[at]
    inside = [
        i
        for i, candidate in enumerate(boxes)
        if candidate.level == box.level + 1 and box.start <= candidate.start < box.start + box.width
    ]
    return max(inside, key=lambda i: (boxes[i].width, -i), default=None)


def box_of(boxes: Sequence[IcicleBox], row: int) -> int:
    """The innermost box that a row lies in; the top where it is in none."""
    found = [i for i, one in enumerate(boxes) if one.first <= row < one.stop]
    return found[-1] if found else 0
