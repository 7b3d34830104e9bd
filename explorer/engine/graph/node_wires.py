"""Edges between the nodes of a graph: producers of values, reads of nodes, and the nodes between values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from explorer.engine.graph.interpreter import list_reads
from explorer.engine.graph.model import Node


class NodeWires:
    """Producer of each value, and values that each node reads. A node reads what its bodies read, too.

    Args:
        nodes: Nodes of the graph.
        constants: Names of values that are known before a run.

    Attributes:
        producers: Index of the node that produces a value, by name.
        reads: Names of the values that each node reads.
        is_constant: For each node, whether all its inputs are known before a run.
    """

    def __init__(self, nodes: Sequence[Node], constants: Collection[str]) -> None:
        self.producers = {name: index for index, node in enumerate(nodes) for name in node.outputs if name}
        self.reads = [tuple(dict.fromkeys(list_reads(node))) for node in nodes]
        self.is_constant: list[bool] = []
        for names in self.reads:
            are_known = (
                self.is_constant[self.producers[n]] if n in self.producers else n in constants for n in names
            )
            self.is_constant.append(all(are_known))

    def find_nodes_between(self, outputs: Iterable[str], inputs: Collection[str]) -> set[int]:
        """Returns the indices of the nodes that compute `outputs` from the values `inputs`.

        The search goes backward from the producers of `outputs`, which are always included. It stops at the
        values in `inputs` and at constant nodes.
        """
        indices = {self.producers[value] for value in outputs if value in self.producers}
        pending = [*indices]
        while pending:
            for name in self.reads[pending.pop()]:
                index = self.producers.get(name)
                if index is None or name in inputs or index in indices:
                    continue
                # a runtime folds a constant node before the run
                if not self.is_constant[index]:
                    indices.add(index)
                    pending.append(index)
        return indices
