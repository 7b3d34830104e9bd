"""Cost functions of stages: MACs, parameters, memory, training memory and time.

A stage is a run of consecutive units (see `units`). A cost function (`CostFunction`) takes the first unit of
a stage, and returns the cost of every stage that begins there.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from explorer.engine.costs.layer_rows import find_subtree_end
from explorer.engine.costs.memory.liveness import Schedule, compute_lifetimes
from explorer.engine.split.partition import Array, CostFunction
from explorer.engine.split.units import GraphUnits
from explorer.facts import Layer


def sum_by_unit(
    units: GraphUnits, layers: Sequence[Layer], figure: Callable[[int], float | None], *, groups: bool = False
) -> Array:
    """Sums a figure of the layer rows, such as MACs, by unit. An unknown figure counts as 0.

    A unit that calls a function or runs a body gets the sum over all rows of that function or body.

    Args:
        units: The units.
        layers: The rows of the layer tree.
        figure: Takes a row id; returns the row's figure, or None if unknown.
        groups: Whether to add the figures of group rows to the figures of the rows inside them.
    """
    totals = np.zeros(len(units.rows))
    counted_rows: set[int] = set()
    for unit, row in enumerate(units.rows):
        if row is None or row in counted_rows:  # several nodes may share a row: count it for the first
            continue
        counted_rows.add(row)
        members = range(row, find_subtree_end(layers, row)) if layers[row].group else (row,)
        totals[unit] = sum(figure(member) or 0 for member in members if groups or not layers[member].group)
    return totals


def assign_module_seconds(
    places: Sequence[tuple[str, str]], layers: Sequence[Layer], row_seconds: Mapping[int, float]
) -> tuple[Array, dict[int, str]]:
    """Assigns the measured times of modules to units.

    The whole time of a module is assigned to its first unit. No cut is allowed inside a module if the profile
    measured the module but no row inside it.

    The time of a module that is called several times is divided equally among its calls. The time of a row
    without units, such as a folded batch normalization, goes to the first unit of the row before it.

    Args:
        places: For each unit, the path of the module call that contains it ('relu_1' or 'relu@1' for the
            second call), and the unit's operator.
        layers: Rows of the modules and of the functions that they call.
        row_seconds: Measured seconds by row id.

    Returns:
        Seconds of each unit; and the units before which no cut is allowed, with the reason.
    """
    rows = _find_rows_of_modules(places, layers)
    spans_by_row: dict[int, list[tuple[object, range]]] = defaultdict(list)
    # Index after the last unit with a row. A call continues over units without a row, because exporters place
    # such units between the units of one call.
    previous_end = 0
    for unit, innermost in enumerate(rows):
        path_parts, row = places[unit][0].split("."), innermost
        while row is not None:
            depth = layers[row].path.count(".") + 1
            call: object = tuple(path_parts[:depth]) if depth <= len(path_parts) else unit
            last_call, last_span = spans_by_row[row][-1] if spans_by_row[row] else (None, range(0))
            if last_call == call and last_span.stop >= previous_end:
                spans_by_row[row][-1] = call, range(last_span.start, unit + 1)
            else:
                spans_by_row[row].append((call, range(unit, unit + 1)))
            row = layers[row].parent
        previous_end = previous_end if innermost is None else unit + 1
    seconds, uncuttable, previous_unit = np.zeros(len(rows)), dict[int, str](), 0
    for layer in layers:
        layer_spans = [span for _, span in spans_by_row[layer.id]]
        previous_unit = layer_spans[0].start if layer_spans else previous_unit
        descendants = range(layer.id + 1, find_subtree_end(layers, layer.id))
        for span in layer_spans or [range(previous_unit, previous_unit + 1)]:
            seconds[span.start] += row_seconds.get(layer.id, 0.0) / (len(layer_spans) or 1)
            if layer.id in row_seconds and not any(member in row_seconds for member in descendants):
                uncuttable |= dict.fromkeys(
                    span[1:], f"it is within {layer.path}, which was measured as one unit"
                )
    return seconds, uncuttable


def _find_rows_of_modules(places: Sequence[tuple[str, str]], layers: Sequence[Layer]) -> list[int | None]:
    """Finds the innermost row of each unit, or None for a unit without a row.

    This is the next unused row of a function in the unit's module that has the unit's operator name. Without
    such a row, it is the row of the module.
    """
    by_path = {layer.path: layer for layer in layers}
    functions: dict[tuple[int | None, str], deque[int]] = defaultdict(deque)
    for layer in layers:
        if not layer.group:
            functions[layer.parent, _normalize_name(layer.kind)].append(layer.id)
    rows: list[int | None] = []
    for call, op in places:
        path = ""
        for path_part in call.split("."):
            child = next(
                (candidate for candidate in _list_candidate_paths(path, path_part) if candidate in by_path),
                None,
            )
            if child is None:
                break
            path = child
        row = by_path[path].id if path else None
        same_operator = functions[row, _normalize_name(op)] if row is None or layers[row].group else None
        rows.append(same_operator.popleft() if same_operator else row)
    return rows


def _list_candidate_paths(parent: str, path_part: str) -> Iterator[str]:
    """Yields the possible paths of a module: as written, and without the number of a repeated call."""
    yield f"{parent}.{path_part}" if parent else path_part
    base, _, number = path_part.replace("@", "_").rpartition("_")
    if number.isdigit():
        yield f"{parent}.{base}" if parent else base


def _normalize_name(operator: str) -> str:
    """Returns an operator name in lower case without underscores, so that ATen and ONNX names match."""
    return operator.replace("_", "").lower()


def make_sum_cost(unit_costs: Array) -> CostFunction:
    """Returns a cost function: the sum of the units' costs."""
    totals = np.concatenate(([0.0], np.cumsum(unit_costs)))
    return lambda _, start: totals[start + 1 :] - totals[start]


def make_stored_bytes_cost(units: GraphUnits, sizes: Mapping[str, int]) -> CostFunction:
    """Returns a cost function: the bytes of the tensors that a stage stores.

    A tensor that several units of the stage read counts once.
    """
    uses: list[tuple[int, int, int]] = []
    last_reader: dict[str, int] = {}
    for unit, names in enumerate(units.stored):
        for name in names:
            uses.append((unit, last_reader.get(name, -1), sizes.get(name, 0)))
            last_reader[name] = unit
    unit, previous_reader, size = np.array(uses or [(0, 0, 0)], dtype=np.int64).T
    count = len(units.positions)

    def compute_costs(_: int, start: int) -> Array:
        first = int(np.searchsorted(unit, start))
        is_first_read = previous_reader[first:] < start
        weights = np.where(is_first_read, size[first:], 0)
        return np.cumsum(np.bincount(unit[first:] - start, weights, count - start))

    return compute_costs


def make_maximum_cost(unit_costs: Array) -> CostFunction:
    """Returns a cost function: the maximum of the units' costs."""
    return lambda _, start: np.maximum.accumulate(unit_costs[start:])


def compute_live_bytes(units: GraphUnits) -> Array:
    """Computes the bytes of the activations that are live at each unit; an unknown size counts as 0.

    Values that the unit does not read count as well, if a later unit reads them.
    """
    change = np.zeros(len(units.positions) + 1)
    for value in units.values:
        change[max(value.born, 0)] += value.size or 0
        change[value.dies + 1] -= value.size or 0
    return np.cumsum(change[:-1])


def compute_peak_in_groups(
    units: GraphUnits, layers: Sequence[Layer], order: Callable[[], Schedule]
) -> Array | None:
    """Computes the peak live bytes inside each unit that runs a body or calls a function.

    Args:
        units: The units.
        layers: The rows of the layer tree.
        order: Computes the execution order; called only if a unit is a group row.

    Returns:
        Peak bytes by unit, 0 for other units; None if no unit is a group row.
    """
    groups = {row: unit for unit, row in enumerate(units.rows) if row is not None and layers[row].group}
    if not groups:
        return None
    unit_by_row = {
        member: unit for row, unit in groups.items() for member in range(row, find_subtree_end(layers, row))
    }
    schedule = order()
    change = np.zeros(len(schedule.steps) + 1)
    for life in compute_lifetimes(schedule.steps):
        change[life.born] += life.size or 0
        change[life.dies + 1] -= life.size or 0
    peaks = np.zeros(len(units.rows) + 1)  # the last entry collects the steps outside of the group rows
    unit_by_step = [-1 if row is None else unit_by_row.get(row, -1) for row in schedule.rows]
    np.maximum.at(peaks, unit_by_step, np.cumsum(change[:-1]))
    return peaks[:-1]


def make_total_cost(first: CostFunction, second: CostFunction) -> CostFunction:
    """Returns a cost function: the sum of two others."""
    return lambda kind, start: first(kind, start) + second(kind, start)


def make_scaled_cost(cost: CostFunction, factors: Sequence[float]) -> CostFunction:
    """Returns a cost function: `cost` times the factor of the stage's kind."""
    return lambda kind, start: cost(kind, start) * factors[kind]


def make_cost_by_kind(rows: Sequence[CostFunction]) -> CostFunction:
    """Returns a cost function that applies the function of the stage's kind."""
    return lambda kind, start: rows[kind](kind, start)


def apply_memory_limit(cost: CostFunction, memory: CostFunction, limit: float) -> CostFunction:
    """Returns a cost function that is infinite for a stage that needs more than `limit` bytes of memory."""
    return lambda kind, start: np.where(memory(kind, start) <= limit, cost(kind, start), np.inf)
