"""Paths from one layer to another: the layers on them, and their number.

A layer with several calls counts once for each call, if it is known which call made which tensor. Otherwise a
path could enter at one call and leave at another.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

from msgspec import Struct

from explorer.base.errors import Misuse
from explorer.base.units import printable
from explorer.engine.costs.value_flow import FlowingValue
from explorer.engine.graph_view.rows import TreeRows, place
from explorer.facts.graph.drawing import GraphRoute

MOST_PATHS = 2**53
"""Largest reported number of paths: a net in which every layer reads all earlier ones has 2^layers."""


class Route(Struct):
    """The calls and rows on the paths.

    Attributes:
        calls: Calls of rows, as `_call` numbers them.
        rows: Those rows, in order.
        fact: The summary for the user.
    """

    calls: frozenset[int]
    rows: list[int]
    fact: GraphRoute

    def crosses(self, tree: TreeRows, rows: Sequence[int], call: int) -> bool:
        """Whether a path goes through a box of these rows, or of one call of a row."""
        if call:
            return _call(tree, rows[0], call) in self.calls
        at = bisect_left(self.rows, rows[0])
        return at < len(self.rows) and self.rows[at] < tree.ends[rows[-1]]

    def carries(self, tree: TreeRows, value: FlowingValue, reader: int) -> bool:
        """Whether a path goes along a tensor to a reader."""
        return _maker(tree, value) in self.calls and _reader(tree, value, reader) in self.calls


def found_route(tree: TreeRows, start: int, goal: int) -> Route:
    """The paths from a layer or group to another.

    Raises:
        Misuse: No path leads from one to the other, or one contains the other.
    """
    names = [tree.layers[at].path for at in (start, goal)]
    quoted = [f"'{printable(name)}'" for name in names]
    starts, goals = _calls_in(tree, start), _calls_in(tree, goal)
    if starts & goals:
        raise Misuse(
            f"{quoted[0]} and {quoted[1]} are not two layers apart",
            hint="name two of which neither holds the other",
        )
    hidden = not (tree.count(start) and tree.count(goal))

    def after(call: int) -> Iterator[int]:
        for value in _of_call(tree, tree.flow.made, call):
            yield from (_reader(tree, value, row) for row in value.readers if hidden or tree.count(row))

    def before(call: int) -> Iterator[int]:
        for value in _of_call(tree, tree.flow.read, call):
            if value.maker >= 0 and (hidden or tree.count(value.maker)):
                yield _maker(tree, value)

    on = _reachable(starts, goals, after) & _reachable(goals, starts, before)
    if not on:
        back = _reachable(goals, starts, after) & starts
        raise Misuse(
            f"nothing leads from {quoted[0]} to {quoted[1]}",
            hint=f"something leads from {quoted[1]} to {quoted[0]}: swap them" if back else "",
        )
    between = on - starts - goals
    rows = sorted({call % len(tree.layers) for call in on})
    layers = {at for at in (call % len(tree.layers) for call in between) if tree.ends[at] == at + 1}
    paths = _count(starts, goals, on, before)
    return Route(frozenset(on), rows, GraphRoute(names[0], names[1], start, goal, len(layers), paths))


def _reachable(first: Iterable[int], last: set[int], step: Callable[[int], Iterator[int]]) -> set[int]:
    """Calls that can be reached from `first`; calls in `last` are not followed further."""
    reached, front = {*first}, [*first]
    while front:
        for neighbor in step(front.pop()):
            if neighbor not in reached:
                reached.add(neighbor)
                if neighbor not in last:
                    front.append(neighbor)
    return reached


def _count(
    starts: set[int], goals: set[int], on: set[int], before: Callable[[int], Iterator[int]]
) -> int | None:
    """Number of paths; None for too many, or if the paths have a cycle."""
    makers = {call: {at for at in before(call) if at in on} for call in on - starts}
    paths = {-1: 1}
    try:
        for call in TopologicalSorter({at: makers[at] - starts - goals for at in makers}).static_order():
            if call not in goals:
                ways = {-1 if at in starts else at for at in makers[call] - goals}
                # such numbers have up to as many digits as a net has layers
                paths[call] = min(sum(paths[at] for at in ways), MOST_PATHS + 1)
    except CycleError:
        return None
    ends = {-1 if at in starts else at for goal in goals & on for at in makers[goal] - goals}
    count = sum(paths[at] for at in ends)
    return count if count <= MOST_PATHS else None


def _call(tree: TreeRows, row: int, call: int) -> int:
    """A number for a call of a row; 0 for a row with one call, or whose calls cannot be told apart."""
    return row + call * len(tree.layers)


def _calls_in(tree: TreeRows, row: int) -> set[int]:
    """All calls of a layer, or of the layers in a group."""
    all_calls: set[int] = set()
    for at in range(row, tree.ends[row]):
        calls = tree.calls(at)
        all_calls.update(_call(tree, at, call) for call in (range(1, calls + 1) if calls > 1 else (0,)))
    return all_calls


def _of_call(tree: TreeRows, values: dict[int, list[FlowingValue]], call: int) -> Sequence[FlowingValue]:
    """The tensors that a call makes, or reads."""
    number, row = divmod(call, len(tree.layers))
    tensors = values.get(row, ())
    return tensors[number - 1 : number] if number else tensors


def _maker(tree: TreeRows, value: FlowingValue) -> int:
    """The call that makes a tensor; the number of no call if no layer makes it."""
    row = value.maker
    if row < 0 or tree.calls(row) == 1:
        return row
    return _call(tree, row, 1 + place(tree.flow.made[row], value))


def _reader(tree: TreeRows, value: FlowingValue, row: int) -> int:
    """The call of a row that reads a tensor."""
    if tree.calls(row) == 1:
        return row
    return _call(tree, row, 1 + place(tree.flow.read[row], value))
