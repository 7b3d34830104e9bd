"""Finds the row of the layer tree for each node of a graph, a function or a body.

The carrier of a node is the function call, If or Loop that contains the node. Value names are unique in a
graph, so a node's row is the row below its carrier's row with an output of the same name. A node without such
a row, because its call was not expanded, gets its carrier's row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from explorer.engine.costs.layer_rows import find_subtree_end
from explorer.engine.graph.model import Node, list_bodies
from explorer.facts import Layer


class NodeRows:
    """Finds the rows of nodes.

    Args:
        layers: The rows of the layer tree, in pre-order.
        functions: Keys of the model's functions, as in `Node.key` of their calls.
    """

    def __init__(self, layers: Sequence[Layer], functions: Collection[tuple[str, str, str]]) -> None:
        self.layers = tuple(layers)
        self._functions = functions
        self._below: dict[int, dict[str, list[int]]] = {}

    def find_rows(self, nodes: Sequence[Node], carrier: int | None, branch: str = "") -> list[int | None]:
        """Returns the row id of each node of one graph, or None for a node without a row.

        Args:
            nodes: The nodes of the main graph, of a function or of a body.
            carrier: Row id of the node that contains them, or None for the main graph.
            branch: Name of the attribute that contains this graph, if the carrier has several graphs.
        """
        if carrier is not None and branch:
            carrier = self._find_branch_row(carrier, branch)
        carriers = [
            index for index, node in enumerate(nodes) if node.key in self._functions or list_bodies(node)
        ]
        node_rows: list[int | None] = [None] * len(nodes)
        carrier_spans: list[tuple[int, int]] = []
        for index in carriers:
            row = self._find_row(nodes[index], carrier, ())
            node_rows[index] = row
            if row is not None:
                carrier_spans.append((row, find_subtree_end(self.layers, row)))
        claimed_rows = {row for start, end in carrier_spans for row in range(start, end)}
        for index, node in enumerate(nodes):
            if node_rows[index] is None:
                row = self._find_row(node, carrier, claimed_rows)
                node_rows[index] = carrier if row is None else row
        return node_rows

    def _find_branch_row(self, carrier: int, branch: str) -> int:
        """Returns the row of one of the carrier's graphs, or the carrier's row if the graph has none."""
        for row in range(carrier + 1, find_subtree_end(self.layers, carrier)):
            if self.layers[row].kind == "branch" and self.layers[row].name == branch:
                return row
        return carrier

    def _find_row(self, node: Node, carrier: int | None, claimed_rows: Collection[int]) -> int | None:
        """Returns the row with an output of the node that best fits its name and operator, or None."""
        producers = self._list_producers(-1 if carrier is None else carrier)
        rows = [row for name in node.outputs if name for row in producers.get(name, ())]
        rows = [row for row in dict.fromkeys(rows) if row not in claimed_rows]
        # a group lists its outputs, too, and the group of a tiled matmul keeps the original operator
        return max(rows, key=lambda row: _rate_fit(node, self.layers[row]), default=None)

    def _list_producers(self, carrier: int) -> dict[str, list[int]]:
        """Returns the ids of the rows below a carrier (-1: all rows), by the name of their outputs."""
        if carrier not in self._below:
            producers: dict[str, list[int]] = {}
            last = len(self.layers) if carrier < 0 else find_subtree_end(self.layers, carrier)
            for row in range(carrier + 1, last):
                for tensor in self.layers[row].outputs:
                    producers.setdefault(tensor.name, []).append(row)
            self._below[carrier] = producers
        return self._below[carrier]


def _rate_fit(node: Node, layer: Layer) -> tuple[bool, bool, bool]:
    """Returns a key by which a row that fits a node better compares as greater."""
    return layer.kind == node.op, node.label in (layer.path, layer.name), layer.tiled or not layer.group
