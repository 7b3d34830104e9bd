"""Rows of the layer tree for drawing: their ends, their content, and the rows that are hidden.

All functions are linear in the rows; of a very large tree, only the drawn rows are created.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from copy import copy

from explorer.engine.costs.layer_rows import LeafRows
from explorer.engine.costs.value_flow import FlowingValue, ValueFlow
from explorer.facts import Layer
from explorer.facts.external.overlay import Overlay
from explorer.facts.graph.drawing import FIGURES, figures_of

MAX_CALLS = 24
"""Most calls of one layer that are told apart."""

_SHAPES = frozenset({"Shape", "Size", "SHAPE", "RANK", "shape", "size", "numel"})
"""Operators that return sizes of tensors: their results are shape arithmetic, not data."""


class TreeRows:
    """The rows of a tree.

    Args:
        layers: The rows, in pre-order.
        flow: The edges between them.

    Attributes:
        layers, flow: The arguments.
        outside: Figures from an overlay, if any.
        ends: For each row, the index behind the last row inside it.
        shown: For each row, the number of visible leaves before it (one more entry than rows).
        leaves: Number of leaves.
    """

    def __init__(self, layers: Sequence[Layer], flow: ValueFlow) -> None:
        self.layers = layers
        self.flow = flow
        self.outside: Overlay | None = None
        depths = layers.depths if isinstance(layers, LeafRows) else [layer.depth for layer in layers]
        self.ends = _ends(depths)
        self._sums: dict[tuple[int, ...], dict[str, int | None]] = {}
        hidden = self._idle()
        self.shown = array("q", [0])
        total = self.leaves = 0
        for at, end in enumerate(self.ends):
            leaf = end == at + 1
            self.leaves += leaf
            total += leaf and not hidden[at]
            self.shown.append(total)

    def with_overlay(self, outside: Overlay | None) -> TreeRows:
        """The same rows with figures from an overlay."""
        if outside is self.outside:
            return self
        rows = copy(self)
        rows.outside = outside
        return rows

    def count(self, row: int) -> int:
        """Number of visible leaves in a row, itself included."""
        return self.shown[self.ends[row]] - self.shown[row]

    @property
    def constants(self) -> tuple[int, ...]:
        """The rows without visible leaves: they contain constants and shape arithmetic only."""
        return tuple([row for row in range(len(self.ends)) if not self.count(row)])

    def children(self, row: int | None) -> Iterator[int]:
        """The visible rows in a group; of the model for None."""
        at, end = (0, len(self.layers)) if row is None else (row + 1, self.ends[row])
        while at < end:
            if self.count(at):
                yield at
            at = self.ends[at]

    def figures(self, rows: Sequence[int]) -> dict[str, int | None]:
        """The figures of rows together, by the names of `FIGURES`; None where unknown.

        Figures of several rows are cached: their rows are created for them, and large parts are drawn often.
        """
        key = (rows[0], rows[-1], len(rows))
        sums = self._sums.get(key)
        if sums is None:
            each = [figures_of(self.layers[at]) for at in rows]
            sums = {figure: _total([row_figures[figure] for row_figures in each]) for figure in FIGURES}
            if len(rows) > 1:
                self._sums[key] = sums
        return sums

    def calls(self, row: int) -> int:
        """Number of calls of a layer that are told apart: 1 if the calls of its tensors are unknown."""
        read, outputs = self.flow.read.get(row, ()), self.flow.made.get(row, ())
        if not 1 < len(outputs) <= MAX_CALLS or len(read) != len(outputs) or self.ends[row] > row + 1:
            return 1
        layer = self.layers[row]
        one_to_one = layer.calls == len(outputs) and len(layer.inputs) == len(layer.outputs) == 1
        return layer.calls if one_to_one else 1

    def _idle(self) -> bytearray:
        """Rows that only work on constants and shapes, or whose results are unused.

        Values that depend on an input of the model are data, until only their size is used. If no input
        reaches any row, all rows are visible.
        """
        layers, flow = self.layers, self.flow
        reached = bytearray(len(layers))
        for row, values in flow.read.items():
            for value in values:
                maker = value.maker
                if value.source == "input" or (
                    maker >= 0 and (reached[maker] == 1 or self.ends[maker] > maker + 1)
                ):
                    reached[row] = 2 if layers[row].kind in _SHAPES else 1
                    break
        if 1 not in reached:
            return bytearray(len(layers))
        for row in range(len(layers)):
            if reached[row] == 1 or self.ends[row] > row + 1:
                continue
            # a lookup table, a product of weights, an output of the model
            puts_out = any(value.is_output for value in flow.made.get(row, ()))
            reached[row] = 1 if puts_out or layers[row].macs else 0
        return bytearray(done != 1 for done in reached)


def _ends(depths: Sequence[int]) -> array[int]:
    """For each row, the index behind the last row inside it."""
    ends = array("q", bytes(8 * len(depths)))
    open_: list[int] = []
    for at, depth in enumerate(depths):
        while open_ and depths[open_[-1]] >= depth:
            ends[open_.pop()] = at
        open_.append(at)
    for at in open_:
        ends[at] = len(depths)
    return ends


def _total(values: Sequence[int | None]) -> int | None:
    """The sum of the known values; None if all are unknown."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers or not values else None


def place(values: Sequence[FlowingValue], value: FlowingValue) -> int:
    """The index of a tensor among others."""
    return next(at for at, candidate in enumerate(values) if candidate is value)
