"""Rows of the layer tree for drawing: the end of each row, its figures, and whether it is hidden.

All functions take time linear in the rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from copy import copy

from explorer.engine.costs.layer_rows import LeafRows
from explorer.engine.costs.value_flow import FlowingValue, ValueFlow
from explorer.facts import Layer
from explorer.facts.external.overlay import Overlay
from explorer.facts.graph.drawing import FIGURES, collect_figures

MAX_CALLS = 24
"""Calls of a layer are distinguished only if there are at most this many."""

_SHAPE_OPERATORS = frozenset({"Shape", "Size", "SHAPE", "RANK", "shape", "size", "numel"})
"""Operators that return tensor sizes: their results are shape arithmetic, not data."""


class TreeRows:
    """The rows of a layer tree.

    Args:
        layers: The rows, in pre-order.
        flow: The tensors between the rows.

    Attributes:
        layers, flow: The arguments.
        outside: Figures from a file of the user (an overlay), or None.
        ends: For each row, the index after its last descendant.
        shown: For each row, the number of visible leaves before it, with one more entry than rows.
        leaves: Number of leaves.
    """

    def __init__(self, layers: Sequence[Layer], flow: ValueFlow) -> None:
        self.layers = layers
        self.flow = flow
        self.outside: Overlay | None = None
        depths = layers.depths if isinstance(layers, LeafRows) else [layer.depth for layer in layers]
        self.ends = _find_ends(depths)
        self._sums: dict[tuple[int, ...], dict[str, int | None]] = {}
        hidden = self._find_hidden_rows()
        self.shown = array("q", [0])
        total = self.leaves = 0
        for row, end in enumerate(self.ends):
            is_leaf = end == row + 1
            self.leaves += is_leaf
            total += is_leaf and not hidden[row]
            self.shown.append(total)

    def replace_overlay(self, outside: Overlay | None) -> TreeRows:
        """Returns the same rows with figures from an overlay, or without such figures for None."""
        if outside is self.outside:
            return self
        rows = copy(self)
        rows.outside = outside
        return rows

    def count_leaves(self, row: int) -> int:
        """Returns the number of visible leaves in a row, itself included."""
        return self.shown[self.ends[row]] - self.shown[row]

    @property
    def constants(self) -> tuple[int, ...]:
        """Rows without visible leaves, which contain only constants and shape arithmetic."""
        return tuple([row for row in range(len(self.ends)) if not self.count_leaves(row)])

    def list_children(self, row: int | None) -> Iterator[int]:
        """Yields the visible rows directly in a group, or at the top level for None."""
        row_index, end = (0, len(self.layers)) if row is None else (row + 1, self.ends[row])
        while row_index < end:
            if self.count_leaves(row_index):
                yield row_index
            row_index = self.ends[row_index]

    def sum_figures(self, rows: Sequence[int]) -> dict[str, int | None]:
        """Returns the sums of the known figures of rows, by the names of `FIGURES`.

        A figure that is unknown for all rows is None.

        Sums of several rows are cached, because large parts are drawn often.
        """
        key = (rows[0], rows[-1], len(rows))
        sums = self._sums.get(key)
        if sums is None:
            figures_by_row = [collect_figures(self.layers[row]) for row in rows]
            sums = {
                figure: _sum_known([row_figures[figure] for row_figures in figures_by_row])
                for figure in FIGURES
            }
            if len(rows) > 1:
                self._sums[key] = sums
        return sums

    def count_calls(self, row: int) -> int:
        """Returns the number of distinguishable calls of a layer.

        The number is 1 if the tensors of each call are unknown.
        """
        read, outputs = self.flow.read.get(row, ()), self.flow.made.get(row, ())
        if not 1 < len(outputs) <= MAX_CALLS or len(read) != len(outputs) or self.ends[row] > row + 1:
            return 1
        layer = self.layers[row]
        one_to_one = layer.calls == len(outputs) and len(layer.inputs) == len(layer.outputs) == 1
        return layer.calls if one_to_one else 1

    def _find_hidden_rows(self) -> bytearray:
        """Returns for each row, as 0 or 1, whether it is hidden: it only processes constants and shapes.

        A value that depends on an input of the model is data, unless it only depends on the size of the
        input. If no row reads data, all rows are visible.
        """
        layers, flow = self.layers, self.flow
        has_data = bytearray(len(layers))
        for row, values in flow.read.items():
            if layers[row].kind in _SHAPE_OPERATORS:
                continue
            for value in values:
                maker = value.maker
                is_group = maker >= 0 and self.ends[maker] > maker + 1
                if value.source == "input" or (maker >= 0 and (has_data[maker] or is_group)):
                    has_data[row] = True
                    break
        if not any(has_data):
            return bytearray(len(layers))
        for row in range(len(layers)):
            if has_data[row] or self.ends[row] > row + 1:
                continue
            # rows without data stay visible if they compute an output of the model or multiply weights
            is_output = any(value.is_output for value in flow.made.get(row, ()))
            has_data[row] = bool(is_output or layers[row].macs)
        return bytearray(not row_has_data for row_has_data in has_data)


def _find_ends(depths: Sequence[int]) -> array[int]:
    """Returns for each row the index after its last descendant."""
    ends = array("q", bytes(8 * len(depths)))
    open_rows: list[int] = []
    for row, depth in enumerate(depths):
        while open_rows and depths[open_rows[-1]] >= depth:
            ends[open_rows.pop()] = row
        open_rows.append(row)
    for row in open_rows:
        ends[row] = len(depths)
    return ends


def _sum_known(values: Sequence[int | None]) -> int | None:
    """Returns the sum of the known values; None if all are unknown, 0 for no values."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers or not values else None


def find_tensor_index(values: Sequence[FlowingValue], value: FlowingValue) -> int:
    """Returns the index of a tensor in `values`. Tensors are compared by identity."""
    return next(index for index, candidate in enumerate(values) if candidate is value)
