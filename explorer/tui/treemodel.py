"""Which rows of the layer tree are on show, in which order.

Textual's own tree builds an object a row: 100,000 rows cost seconds. Here a row is an integer: the id
of a layer, or, when negative, a run of identical siblings (`layers.0 … layers.11`) that starts with
layer `-row - 1`. Rows come to be when their parent is opened. No terminal is needed to test it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from explorer.facts import Layer, Totals

__all__ = ["METRICS", "Metric", "Shape", "TreeModel"]


class Metric(Struct, frozen=True):
    """A column of the tree: its heading, the value of a layer and of the whole model, and its unit."""

    id: str
    title: str
    of: Callable[[Layer], int | None]
    total: Callable[[Totals], int | None]
    in_bytes: bool = False


METRICS = (
    Metric("macs", "MACs", lambda x: x.macs, lambda t: t.macs),
    Metric("params", "params", lambda x: x.params, lambda t: t.params),
    Metric("weights", "weights", lambda x: x.weight_bytes, lambda t: t.weight_bytes, True),
    Metric(
        "activations", "activations", lambda x: x.activation_bytes, lambda t: t.activation_bytes_sum, True
    ),
)

_OPEN_AT_FIRST = 60


class Shape(Struct, frozen=True):
    """How a tree is laid out, whatever its layers.

    Attributes:
        metric: Id of the column; of none that exists leaves the first.
        opened: Open rows: the path of a layer, and whether the row is the run that it begins.
    """

    metric: str
    by_cost: bool
    opened: frozenset[tuple[str, bool]]


class TreeModel:
    """The visible rows of a tree of layers.

    Args:
        layers: In pre-order, as `facts.Analysis` lists them.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.end = _subtree_ends(layers)
        self.deepest = max((layer.depth for layer in layers), default=0)
        self.metric = METRICS[0]
        self.by_cost = False
        self.opened: set[int] = set()
        self.matches: frozenset[int] | None = None
        self._kept: set[int] = set()
        self._closed: set[int] = set()
        self.rows: list[int] = []
        self._open_first_levels()
        self.rebuild()

    # what a row is

    def first(self, row: int) -> int:
        """The layer of a row; the first one of a run."""
        return row if row >= 0 else -row - 1

    def members(self, row: int) -> list[int]:
        """The layers behind a row: itself, or every block of its run."""
        if row >= 0:
            return [row]
        out = [self.first(row)]
        for _ in range(self.layers[out[0]].repeat - 1):
            out.append(self.end[out[-1]])
        return out

    def depth(self, row: int) -> int:
        """Steps of indentation: runs that are open count as a level."""
        layer = self.layers[self.first(row)]
        depth = layer.depth
        if self.matches is not None:
            return depth
        node: Layer | None = layer
        while node is not None:
            if node.repeat != 1 and not (row < 0 and node is layer):
                depth += 1
            node = None if node.parent is None else self.layers[node.parent]
        return depth

    def expandable(self, row: int) -> bool:
        """Whether something lies under the row."""
        if row < 0:
            return True
        if self.end[row] <= row + 1:
            return False
        return self.matches is None or any(True for _ in self.children(row))

    def is_open(self, row: int) -> bool:
        """Whether the row's children are on show."""
        return (row not in self._closed) if self.matches is not None else (row in self.opened)

    def value(self, row: int) -> tuple[int | None, str]:
        """The row's figure in the current column, and '≤' or '≥' if it is a bound only.

        The sum over a run counts a parameter that its blocks share once for each block: an upper bound.
        A group with an unknown part sums what is known: a lower one.
        """
        of = self.metric.of
        members = self.members(row)
        layer = self.layers[members[0]]
        stored = self.metric.id in ("params", "weights")
        bound = ""
        if layer.group and layer.status == "unknown" and not stored:
            bound = "≥"
        elif layer.status == "bound" and self.metric.id == "macs":
            bound = "≤"
        if row >= 0:
            return of(layer), bound
        total = 0
        for member in members:
            value = of(self.layers[member])
            if value is None:
                return None, ""
            total += value
        if stored and any(self.layers[i].shared_with for i in range(members[0], self.end[members[-1]])):
            bound = "≤"
        return total, bound

    # which rows there are

    def children(self, row: int | None) -> Iterator[int]:
        """The rows right under `row` (None: the top), in the order shown."""
        if row is not None and row < 0:
            found: Iterable[int] = self.members(row)
        else:
            found = self._siblings(row)
            if self.matches is None:
                found = self._folded(found)
        if self.by_cost:
            found = sorted(found, key=self._cost)
        return iter(found)

    def _siblings(self, row: int | None) -> Iterator[int]:
        start, stop = (0, len(self.layers)) if row is None else (row + 1, self.end[row])
        kept = self._kept if self.matches is not None else None
        while start < stop:
            if kept is None or start in kept:
                yield start
            start = self.end[start]

    def _folded(self, ids: Iterable[int]) -> Iterator[int]:
        for i in ids:
            repeat = self.layers[i].repeat
            if repeat > 1:
                yield -i - 1
            elif repeat == 1:
                yield i

    def _cost(self, row: int) -> int:
        value, _ = self.value(row)
        return 1 if value is None else -value

    def _open_first_levels(self) -> None:
        level, count = list(self.children(None)), 0
        count = len(level)
        while level:
            following = [child for row in level if row >= 0 for child in self.children(row)]
            if not following or count + len(following) > _OPEN_AT_FIRST:
                break
            self.opened.update(row for row in level if row >= 0 and self.end[row] > row + 1)
            count += len(following)
            level = following

    def rebuild(self) -> None:
        """Make the list of rows anew, after a change of order or filter."""
        self.rows = list(self._walk(None))

    def _walk(self, row: int | None) -> Iterator[int]:
        stack = [self.children(row)]
        while stack:
            child = next(stack[-1], None)
            if child is None:
                stack.pop()
                continue
            yield child
            if self.is_open(child) and self.expandable(child):
                stack.append(self.children(child))

    # what a user does

    def toggle(self, index: int) -> bool:
        """Open or close the row at `index`. Returns whether anything changed."""
        row = self.rows[index]
        if not self.expandable(row):
            return False
        if self.is_open(row):
            depth, stop = self.depth(row), index + 1
            while stop < len(self.rows) and self.depth(self.rows[stop]) > depth:
                stop += 1
            del self.rows[index + 1 : stop]
            self._mark(row, False)
        else:
            self._mark(row, True)
            self.rows[index + 1 : index + 1] = list(self._walk(row))
        return True

    def _mark(self, row: int, opened: bool) -> None:
        if self.matches is not None:
            (self._closed.discard if opened else self._closed.add)(row)
        else:
            (self.opened.add if opened else self.opened.discard)(row)

    def parent_index(self, index: int) -> int | None:
        """Where the row above in the hierarchy is, or None at the top."""
        depth = self.depth(self.rows[index])
        for i in range(index - 1, -1, -1):
            if self.depth(self.rows[i]) < depth:
                return i
        return None

    def fold_all(self) -> None:
        """Close everything."""
        if self.matches is not None:
            self._closed = set(self._kept)
        else:
            self.opened.clear()
        self.rebuild()

    def set_filter(self, matches: Iterable[int] | None) -> None:
        """Show only `matches` and what they lie in; None shows everything again."""
        self.matches = None if matches is None else frozenset(matches)
        self._closed.clear()
        self._kept = set()
        for match in self.matches or ():
            node: int | None = match
            while node is not None and node not in self._kept:
                self._kept.add(node)
                node = self.layers[node].parent
        self.rebuild()

    @property
    def shape(self) -> Shape:
        """Column, order and open rows."""
        opened = frozenset((self.layers[self.first(row)].path, row < 0) for row in self.opened)
        return Shape(self.metric.id, self.by_cost, opened)

    def take_shape(self, shape: Shape) -> None:
        """Take over another tree's column, order and open rows: what follows a change looks alike.

        Rows are known by their path; where none is known, the first levels stay open.
        """
        self.metric = next((m for m in METRICS if m.id == shape.metric), METRICS[0])
        if self.metric is METRICS[0] and self.layers and not any(layer.outputs for layer in self.layers):
            # of a file of tensors nobody knows the work
            self.metric = METRICS[1]
        self.by_cost = shape.by_cost
        opened: set[int] = set()
        for i, layer in enumerate(self.layers):
            if (layer.path, False) in shape.opened:
                opened.add(i)
            if layer.repeat > 1 and (layer.path, True) in shape.opened:
                opened.add(-i - 1)
        self.opened = opened or self.opened
        self.rebuild()

    def set_order(self, *, by_cost: bool) -> None:
        """Sort siblings by the current column, or leave them as they are executed."""
        self.by_cost = by_cost
        self.rebuild()

    def set_metric(self, metric: Metric) -> None:
        """Switch the column; a sorted tree is sorted by it."""
        self.metric = metric
        if self.by_cost:
            self.rebuild()

    def reveal(self, layer: int) -> int:
        """Open what `layer` lies in. Returns the index of its row, or 0 if a filter hides it."""
        if self.matches is None:
            node: int | None = layer
            while node is not None:
                if self.layers[node].repeat != 1:
                    self.opened.add(-self._run_start(node) - 1)
                node = self.layers[node].parent
                if node is not None:
                    self.opened.add(node)
            self.rebuild()
        try:
            return self.rows.index(layer)
        except ValueError:
            return 0

    def _run_start(self, layer: int) -> int:
        if self.layers[layer].repeat > 1:
            return layer
        start = layer
        for sibling in self._siblings(self.layers[layer].parent):
            if self.layers[sibling].repeat > 1:
                start = sibling
            if sibling == layer:
                break
        return start


def _subtree_ends(layers: Sequence[Layer]) -> list[int]:
    """For every layer, the id behind the last one inside it; in pre-order one pass finds them."""
    ends = [0] * len(layers)
    open_ids: list[int] = []
    for i, layer in enumerate(layers):
        while open_ids and layers[open_ids[-1]].depth >= layer.depth:
            ends[open_ids.pop()] = i
        open_ids.append(i)
    for i in open_ids:
        ends[i] = len(layers)
    return ends
