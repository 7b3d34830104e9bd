"""Costs of all stages that begin at a unit: MACs, parameters, memory, a training step, time."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from explorer.engine.costs.layer_rows import end_of
from explorer.engine.costs.memory.liveness import Schedule, lives
from explorer.engine.split.partition import Array, Row
from explorer.engine.split.units import GraphUnits
from explorer.facts import Layer


def of_units(
    units: GraphUnits, layers: Sequence[Layer], figure: Callable[[int], float | None], *, groups: bool = False
) -> Array:
    """A figure of rows by unit: of a call or a body that of all rows in it; what is not known is none.

    Args:
        units: The units.
        layers: The rows.
        figure: Of a row, by its id.
        groups: Whether it has, of a group, what the group does itself; else that is the sum of its rows.
    """
    totals = np.zeros(len(units.rows))
    taken: set[int] = set()
    for unit, row in enumerate(units.rows):
        if row is None or row in taken:  # a row that several nodes are is the first's
            continue
        taken.add(row)
        inside = range(row, end_of(layers, row)) if layers[row].group else (row,)
        totals[unit] = sum(figure(at) or 0 for at in inside if groups or not layers[at].group)
    return totals


def of_modules(
    places: Sequence[tuple[str, str]], layers: Sequence[Layer], took: Mapping[int, float]
) -> tuple[Array, dict[int, str]]:
    """Time of units, of which modules were measured: each has it where it begins, and is not cut.

    A module that is called several times has as much of it each time. Where nothing of a row is left among
    the units, as of a batch normalization that was folded, they have its time where the row before it is.

    Args:
        places: Of each unit the path of the module's call that it stands in ('relu_1', 'relu@1': the second),
            and its operator.
        layers: Rows of the modules, and of functions that they call.
        took: Time of rows that have their own, by id.

    Returns:
        Times, and units before which no cut may lie, with why.
    """
    rows = _rows_of_modules(places, layers)
    spans: dict[int, list[tuple[object, range]]] = defaultdict(list)
    behind = 0  # the last unit that has a row: exporters put some of no module's among those of one
    for unit, innermost in enumerate(rows):
        pieces, row = places[unit][0].split("."), innermost
        while row is not None:
            inner = layers[row].path.count(".") + 1
            call: object = tuple(pieces[:inner]) if inner <= len(pieces) else unit
            last_call, last_span = spans[row][-1] if spans[row] else (None, range(0))
            if last_call == call and last_span.stop >= behind:
                spans[row][-1] = call, range(last_span.start, unit + 1)
            else:
                spans[row].append((call, range(unit, unit + 1)))
            row = layers[row].parent
        behind = behind if innermost is None else unit + 1
    seconds, within, last = np.zeros(len(rows)), dict[int, str](), 0
    for layer in layers:
        mine = [span for _, span in spans[layer.id]]
        last = mine[0].start if mine else last
        parts = range(layer.id + 1, end_of(layers, layer.id))
        for span in mine or [range(last, last + 1)]:
            seconds[span.start] += took.get(layer.id, 0.0) / (len(mine) or 1)
            if layer.id in took and not any(at in took for at in parts):
                within |= dict.fromkeys(span[1:], f"it is within {layer.path}, which was measured as one")
    return seconds, within


def _rows_of_modules(places: Sequence[tuple[str, str]], layers: Sequence[Layer]) -> list[int | None]:
    """Of each unit the innermost row of a module, or of a function of its operator's name, in their order."""
    by_path = {layer.path: layer for layer in layers}
    functions: dict[tuple[int | None, str], deque[int]] = defaultdict(deque)
    for layer in layers:
        if not layer.group:
            functions[layer.parent, _plain(layer.kind)].append(layer.id)
    rows: list[int | None] = []
    for call, op in places:
        path = ""
        for piece in call.split("."):
            child = next((candidate for candidate in _names(path, piece) if candidate in by_path), None)
            if child is None:
                break
            path = child
        row = by_path[path].id if path else None
        same_operator = functions[row, _plain(op)] if row is None or layers[row].group else None
        rows.append(same_operator.popleft() if same_operator else row)
    return rows


def _names(around: str, piece: str) -> Iterator[str]:
    """Paths that a module may have: its own, and, called again ('relu_1', 'relu@1'), the one without."""
    yield f"{around}.{piece}" if around else piece
    again, _, number = piece.replace("@", "_").rpartition("_")
    if number.isdigit():
        yield f"{around}.{again}" if around else again


def _plain(operator: str) -> str:
    """A name that an operator of ATen's and one of ONNX's may share."""
    return operator.replace("_", "").lower()


def additive(each: Array) -> Row:
    """Cost of stages whose units' costs add up."""
    until = np.concatenate(([0.0], np.cumsum(each)))
    return lambda _, start: until[start + 1 :] - until[start]


def stored(units: GraphUnits, sizes: Mapping[str, int]) -> Row:
    """Size of what a stage stores, each tensor once in it, however many of its units read it."""
    uses: list[tuple[int, int, int]] = []
    before: dict[str, int] = {}
    for unit, names in enumerate(units.stored):
        for name in names:
            uses.append((unit, before.get(name, -1), sizes.get(name, 0)))
            before[name] = unit
    unit, last, size = np.array(uses or [(0, 0, 0)], dtype=np.int64).T
    count = len(units.positions)

    def row(_: int, start: int) -> Array:
        first = int(np.searchsorted(unit, start))
        new = last[first:] < start
        weights = np.where(new, size[first:], 0)
        return np.cumsum(np.bincount(unit[first:] - start, weights, count - start))

    return row


def largest(each: Array) -> Row:
    """The largest of a stage's units."""
    return lambda _, start: np.maximum.accumulate(each[start:])


def live_bytes(units: GraphUnits) -> Array:
    """Bytes of activations live at each unit, what only passes by included; unknown ones left out."""
    change = np.zeros(len(units.positions) + 1)
    for value in units.values:
        change[max(value.born, 0)] += value.size or 0
        change[value.dies + 1] -= value.size or 0
    return np.cumsum(change[:-1])


def inside(units: GraphUnits, layers: Sequence[Layer], order: Callable[[], Schedule]) -> Array | None:
    """Bytes live at most within each unit that is a group, at the steps of its body, or of its function.

    Args:
        units: The units.
        layers: The rows.
        order: Makes the order in which they run, which is asked for only where there is such a unit.
    """
    groups = {row: unit for unit, row in enumerate(units.rows) if row is not None and layers[row].group}
    if not groups:
        return None
    within = {at: unit for row, unit in groups.items() for at in range(row, end_of(layers, row))}
    run = order()
    change = np.zeros(len(run.steps) + 1)
    for life in lives(run.steps):
        change[life.born] += life.size or 0
        change[life.dies + 1] -= life.size or 0
    peaks = np.zeros(len(units.rows) + 1)
    unit_of = [-1 if row is None else within.get(row, -1) for row in run.rows]
    np.maximum.at(peaks, unit_of, np.cumsum(change[:-1]))
    return peaks[:-1]


def both(first: Row, second: Row) -> Row:
    """The sum of two costs."""
    return lambda kind, start: first(kind, start) + second(kind, start)


def times(cost: Row, factors: Sequence[float]) -> Row:
    """A cost as often as the kind of the stage says."""
    return lambda kind, start: cost(kind, start) * factors[kind]


def of_kind(rows: Sequence[Row]) -> Row:
    """The cost that goes with the kind of the stage."""
    return lambda kind, start: rows[kind](kind, start)


def limited(cost: Row, memory: Row, most: float) -> Row:
    """A cost that is infinite where the stage takes more memory than there is."""
    return lambda kind, start: np.where(memory(kind, start) <= most, cost(kind, start), np.inf)
