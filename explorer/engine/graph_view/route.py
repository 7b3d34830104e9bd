"""Paths from one layer to another: the layers on the paths, and the number of paths.

If the tensors of each call of a layer are known, each call is a node of its own. Otherwise a path could enter
the layer at one call and leave it at another.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

from msgspec import Struct

from explorer.base.errors import Misuse
from explorer.base.units import printable
from explorer.engine.costs.value_flow import FlowingValue
from explorer.engine.graph_view.rows import TreeRows, find_tensor_index
from explorer.facts.graph.drawing import GraphRoute

MAX_PATHS = 2**53
"""Largest reported number of paths. If each of n layers reads all earlier layers, there are 2^n paths."""


class Route(Struct):
    """The calls and rows on the paths.

    Attributes:
        calls: Calls of rows, as numbered by `_number_call`.
        rows: Rows of these calls, ascending.
        fact: Summary for the user.
    """

    calls: frozenset[int]
    rows: list[int]
    fact: GraphRoute

    def crosses(self, tree: TreeRows, rows: Sequence[int], call: int) -> bool:
        """Whether a path passes a box of these rows, or of one call of a row."""
        if call:
            return _number_call(tree, rows[0], call) in self.calls
        index = bisect_left(self.rows, rows[0])
        return index < len(self.rows) and self.rows[index] < tree.ends[rows[-1]]

    def carries(self, tree: TreeRows, value: FlowingValue, reader: int) -> bool:
        """Whether a path follows a tensor to a reader."""
        return (
            _find_producing_call(tree, value) in self.calls
            and _find_reading_call(tree, value, reader) in self.calls
        )


def find_route(tree: TreeRows, start: int, goal: int) -> Route:
    """Finds the paths from a layer or group to another.

    Args:
        tree: Rows and edges of the model.
        start: Row of the first layer.
        goal: Row of the last layer.

    Raises:
        Misuse: No path leads from `start` to `goal`, or both contain the same layer.
    """
    names = [tree.layers[at].path for at in (start, goal)]
    quoted = [f"'{printable(name)}'" for name in names]
    starts, goals = _list_calls(tree, start), _list_calls(tree, goal)
    if starts & goals:
        message = f"{quoted[0]} and {quoted[1]} share a layer, so no path leads between them"
        raise Misuse(message, hint="name two layers, neither of which is inside the other")
    shows_hidden = not (tree.count_leaves(start) and tree.count_leaves(goal))

    def list_next(call: int) -> Iterator[int]:
        for value in _list_call_tensors(tree, tree.flow.made, call):
            for row in value.readers:
                if shows_hidden or tree.count_leaves(row):
                    yield _find_reading_call(tree, value, row)

    def list_previous(call: int) -> Iterator[int]:
        for value in _list_call_tensors(tree, tree.flow.read, call):
            if value.maker >= 0 and (shows_hidden or tree.count_leaves(value.maker)):
                yield _find_producing_call(tree, value)

    path_calls = _find_reachable(starts, goals, list_next) & _find_reachable(goals, starts, list_previous)
    if not path_calls:
        reverse_starts = _find_reachable(goals, starts, list_next) & starts
        raise Misuse(
            f"no path leads from {quoted[0]} to {quoted[1]}",
            hint=f"a path leads from {quoted[1]} to {quoted[0]}: swap them" if reverse_starts else "",
        )
    inner_calls = path_calls - starts - goals
    rows = sorted({call % len(tree.layers) for call in path_calls})
    inner_rows = {call % len(tree.layers) for call in inner_calls}
    layers = {row for row in inner_rows if tree.ends[row] == row + 1}
    paths = _count_paths(starts, goals, path_calls, list_previous)
    return Route(frozenset(path_calls), rows, GraphRoute(names[0], names[1], start, goal, len(layers), paths))


def _find_reachable(first: Iterable[int], last: set[int], step: Callable[[int], Iterator[int]]) -> set[int]:
    """Returns the calls that can be reached from `first`. The search does not continue from calls in `last`.

    `step` returns the neighbors of a call.
    """
    reached, pending = {*first}, [*first]
    while pending:
        for neighbor in step(pending.pop()):
            if neighbor not in reached:
                reached.add(neighbor)
                if neighbor not in last:
                    pending.append(neighbor)
    return reached


def _count_paths(
    starts: set[int], goals: set[int], path_calls: set[int], previous_calls: Callable[[int], Iterator[int]]
) -> int | None:
    """Returns the number of paths, or None if there are more than `MAX_PATHS` or the paths have a cycle.

    Args:
        starts: Calls of the first layer.
        goals: Calls of the last layer.
        path_calls: Calls on the paths.
        previous_calls: Function that returns the calls whose outputs a call reads.
    """
    producers = {
        call: {producer for producer in previous_calls(call) if producer in path_calls}
        for call in path_calls - starts
    }
    # the number of paths to each call; -1 stands for all calls of the first layer
    paths = {-1: 1}
    try:
        for call in TopologicalSorter(
            {producer: producers[producer] - starts - goals for producer in producers}
        ).static_order():
            if call not in goals:
                sources = {-1 if producer in starts else producer for producer in producers[call] - goals}
                # limited, because an exact number can have as many digits as the network has layers
                paths[call] = min(sum(paths[producer] for producer in sources), MAX_PATHS + 1)
    except CycleError:
        return None
    last_sources = {
        -1 if producer in starts else producer
        for goal in goals & path_calls
        for producer in producers[goal] - goals
    }
    count = sum(paths[producer] for producer in last_sources)
    return count if count <= MAX_PATHS else None


def _number_call(tree: TreeRows, row: int, call: int) -> int:
    """Returns the number of a call of a row.

    Calls are numbered from 1. A row with one call, or whose calls cannot be distinguished, has only call 0.
    """
    return row + call * len(tree.layers)


def _list_calls(tree: TreeRows, row: int) -> set[int]:
    """Returns all calls of a layer, or of a group and the layers in it."""
    all_calls: set[int] = set()
    for leaf in range(row, tree.ends[row]):
        calls = tree.count_calls(leaf)
        all_calls.update(
            _number_call(tree, leaf, call) for call in (range(1, calls + 1) if calls > 1 else (0,))
        )
    return all_calls


def _list_call_tensors(
    tree: TreeRows, values: dict[int, list[FlowingValue]], call: int
) -> Sequence[FlowingValue]:
    """Returns the tensors in `values` (outputs or inputs by row) of one call."""
    number, row = divmod(call, len(tree.layers))
    tensors = values.get(row, ())
    return tensors[number - 1 : number] if number else tensors


def _find_producing_call(tree: TreeRows, value: FlowingValue) -> int:
    """Returns the call that computes a tensor, or -1 if no layer computes it."""
    row = value.maker
    if row < 0 or tree.count_calls(row) == 1:
        return row
    return _number_call(tree, row, 1 + find_tensor_index(tree.flow.made[row], value))


def _find_reading_call(tree: TreeRows, value: FlowingValue, row: int) -> int:
    """Returns the call of a row that reads a tensor."""
    if tree.count_calls(row) == 1:
        return row
    return _number_call(tree, row, 1 + find_tensor_index(tree.flow.read[row], value))
