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
    """One figure for each unit, such as its MACs; an unknown figure counts as 0.

    A unit that is a call or a body gets the sum over all rows in it.

    Args:
        units: The units.
        layers: The rows.
        figure: The figure of a row, by the row's id; None if unknown.
        groups: Whether `figure` covers a group's own work; else a group's figure is the sum of its rows.
    """
    totals = np.zeros(len(units.rows))
    taken: set[int] = set()
    for unit, row in enumerate(units.rows):
        if row is None or row in taken:  # several nodes may share a row: count it for the first
            continue
        taken.add(row)
        inside = range(row, end_of(layers, row)) if layers[row].group else (row,)
        totals[unit] = sum(figure(at) or 0 for at in inside if groups or not layers[at].group)
    return totals


def of_modules(
    places: Sequence[tuple[str, str]], layers: Sequence[Layer], row_seconds: Mapping[int, float]
) -> tuple[Array, dict[int, str]]:
    """The time of each unit, where whole modules were measured.

    A module's time counts at its first unit, and no cut may lie inside the module.

    The time of a module that is called several times is divided among its calls. A row without units, such
    as a folded batch normalization, adds its time where the row before it begins.

    Args:
        places: The path of the module call around each unit ('relu_1' or 'relu@1' for the second call),
            and the unit's operator.
        layers: Rows of the modules and of the functions that they call.
        row_seconds: Measured seconds by row id.

    Returns:
        The times, and the units before which no cut may lie, with the reason.
    """
    rows = _rows_of_modules(places, layers)
    spans: dict[int, list[tuple[object, range]]] = defaultdict(list)
    behind = 0  # the end of the last unit with a row: exporters mix units without a module into a module's
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
        layer_spans = [span for _, span in spans[layer.id]]
        last = layer_spans[0].start if layer_spans else last
        parts = range(layer.id + 1, end_of(layers, layer.id))
        for span in layer_spans or [range(last, last + 1)]:
            seconds[span.start] += row_seconds.get(layer.id, 0.0) / (len(layer_spans) or 1)
            if layer.id in row_seconds and not any(at in row_seconds for at in parts):
                within |= dict.fromkeys(span[1:], f"it is within {layer.path}, which was measured as one")
    return seconds, within


def _rows_of_modules(places: Sequence[tuple[str, str]], layers: Sequence[Layer]) -> list[int | None]:
    """The innermost row of each unit: its module, or a function with its operator's name, taken in order."""
    by_path = {layer.path: layer for layer in layers}
    functions: dict[tuple[int | None, str], deque[int]] = defaultdict(deque)
    for layer in layers:
        if not layer.group:
            functions[layer.parent, _shared_spelling(layer.kind)].append(layer.id)
    rows: list[int | None] = []
    for call, op in places:
        path = ""
        for piece in call.split("."):
            child = next(
                (candidate for candidate in _candidate_paths(path, piece) if candidate in by_path), None
            )
            if child is None:
                break
            path = child
        row = by_path[path].id if path else None
        same_operator = functions[row, _shared_spelling(op)] if row is None or layers[row].group else None
        rows.append(same_operator.popleft() if same_operator else row)
    return rows


def _candidate_paths(around: str, piece: str) -> Iterator[str]:
    """Candidate paths of a module: the path as written, and without the number of a repeated call."""
    yield f"{around}.{piece}" if around else piece
    again, _, number = piece.replace("@", "_").rpartition("_")
    if number.isdigit():
        yield f"{around}.{again}" if around else again


def _shared_spelling(operator: str) -> str:
    """An operator name in the spelling that ATen and ONNX share."""
    return operator.replace("_", "").lower()


def additive(each: Array) -> Row:
    """The cost of a stage as the sum over its units."""
    until = np.concatenate(([0.0], np.cumsum(each)))
    return lambda _, start: until[start + 1 :] - until[start]


def stored(units: GraphUnits, sizes: Mapping[str, int]) -> Row:
    """The bytes that a stage stores; a tensor that several of its units read counts once."""
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
    """The cost of a stage as the maximum over its units."""
    return lambda _, start: np.maximum.accumulate(each[start:])


def live_bytes(units: GraphUnits) -> Array:
    """Live bytes of activations at each unit, including those that only pass by; unknown sizes count as 0."""
    change = np.zeros(len(units.positions) + 1)
    for value in units.values:
        change[max(value.born, 0)] += value.size or 0
        change[value.dies + 1] -= value.size or 0
    return np.cumsum(change[:-1])


def inside(units: GraphUnits, layers: Sequence[Layer], order: Callable[[], Schedule]) -> Array | None:
    """Peak live bytes inside each unit that is a group, over the steps of its body or function.

    Args:
        units: The units.
        layers: The rows.
        order: Computes the execution order; called only if there is such a unit.
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
    """A cost multiplied by the factor of the stage's kind."""
    return lambda kind, start: cost(kind, start) * factors[kind]


def of_kind(rows: Sequence[Row]) -> Row:
    """The cost for the stage's kind."""
    return lambda kind, start: rows[kind](kind, start)


def limited(cost: Row, memory: Row, most: float) -> Row:
    """A cost that is infinite for a stage that needs more than `most` bytes of memory."""
    return lambda kind, start: np.where(memory(kind, start) <= most, cost(kind, start), np.inf)
