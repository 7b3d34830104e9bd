"""The rows of the layer tree for nodes: of the main graph, of a called function, of a body.

A value's name is unique in a graph. So the row of a node is the row below its carrier (the call, the If, the
Loop) that makes a value of this name. If the tree has no row for a node, because a call stayed closed, it is
the row of its carrier.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from explorer.engine.costs.layer_rows import end_of
from explorer.engine.graph.model import Node, subgraphs
from explorer.facts import Layer


class NodeRows:
    """Finds rows.

    Args:
        layers: Rows of a tree, in pre-order.
        functions: The model's functions, by the keys of nodes that call them.
    """

    def __init__(self, layers: Sequence[Layer], functions: Collection[tuple[str, str, str]]) -> None:
        self.layers = tuple(layers)
        self._functions = functions
        self._below: dict[int, dict[str, list[int]]] = {}

    def of(self, nodes: Sequence[Node], around: int | None, branch: str = "") -> list[int | None]:
        """The row of each node of one graph.

        Args:
            nodes: The nodes of the main graph, a function's body or the body of a node.
            around: Row of the node that carries them; None for the main graph.
            branch: The attribute that holds this graph, where the node carries several.
        """
        if around is not None and branch:
            around = self._branch(around, branch)
        carriers = [at for at, node in enumerate(nodes) if node.key in self._functions or subgraphs(node)]
        node_rows: list[int | None] = [None] * len(nodes)
        taken: list[tuple[int, int]] = []
        for at in carriers:
            row = self._row(nodes[at], around, ())
            node_rows[at] = row
            if row is not None:
                taken.append((row, end_of(self.layers, row)))
        inside = {row for start, end in taken for row in range(start, end)}
        for at, node in enumerate(nodes):
            if node_rows[at] is None:
                row = self._row(node, around, inside)
                node_rows[at] = around if row is None else row
        return node_rows

    def _branch(self, around: int, branch: str) -> int:
        """The row of one graph of several, else that of their node."""
        for at in range(around + 1, end_of(self.layers, around)):
            if self.layers[at].kind == "branch" and self.layers[at].name == branch:
                return at
        return around

    def _row(self, node: Node, around: int | None, inside: Collection[int]) -> int | None:
        """The row with the outputs of a node that fits its name and operator best."""
        makers = self._makers(-1 if around is None else around)
        rows = [at for name in node.outputs if name for at in makers.get(name, ())]
        rows = [at for at in dict.fromkeys(rows) if at not in inside]
        # a group has the outputs that leave it; a tiled product keeps the operator that it had
        return max(rows, key=lambda at: _fit(node, self.layers[at]), default=None)

    def _makers(self, around: int) -> dict[str, list[int]]:
        if around not in self._below:
            makers: dict[str, list[int]] = {}
            last = len(self.layers) if around < 0 else end_of(self.layers, around)
            for at in range(around + 1, last):
                for tensor in self.layers[at].outputs:
                    makers.setdefault(tensor.name, []).append(at)
            self._below[around] = makers
        return self._below[around]


def _fit(node: Node, layer: Layer) -> tuple[bool, bool, bool]:
    return layer.kind == node.op, node.label in (layer.path, layer.name), layer.tiled or not layer.group
