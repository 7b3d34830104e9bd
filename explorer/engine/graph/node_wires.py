"""Edges between the nodes of a graph: producers and readers of values, and the nodes between values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from explorer.engine.graph.interpreter import list_reads
from explorer.engine.graph.model import Node


class NodeWires:
    """Producers and readers of the values of one graph. A node also reads the values that its bodies read.

    Args:
        nodes: Nodes of the graph.
        constants: Names of values that are known before a run.

    Attributes:
        maker: Index of the node that produces a value, by name.
        reads: Names of the values that each node reads.
        constant: Whether all inputs of a node are known before a run.
    """

    def __init__(self, nodes: Sequence[Node], constants: Collection[str]) -> None:
        self.maker = {name: index for index, node in enumerate(nodes) for name in node.outputs if name}
        self.reads = [tuple(dict.fromkeys(list_reads(node))) for node in nodes]
        self.constant: list[bool] = []
        for names in self.reads:
            is_constant = (self.constant[self.maker[n]] if n in self.maker else n in constants for n in names)
            self.constant.append(all(is_constant))

    def find_nodes_between(self, outputs: Iterable[str], inputs: Collection[str]) -> set[int]:
        """Returns the indices of the nodes on the paths from the values `inputs` to the values `outputs`."""
        indices = {self.maker[value] for value in outputs if value in self.maker}
        pending = [*indices]
        while pending:
            for name in self.reads[pending.pop()]:
                index = self.maker.get(name)
                if index is None or name in inputs or index in indices:
                    continue
                # a constant node was folded, so it is on no path
                if not self.constant[index]:
                    indices.add(index)
                    pending.append(index)
        return indices
