"""Wires of a graph's nodes: the maker of a value, the values a node reads, and the nodes between values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from explorer.engine.graph.interpreter import reads
from explorer.engine.graph.model import Node


class NodeWires:
    """Makers and readers of the values of one graph; a node also reads what its bodies read.

    Args:
        nodes: The nodes of the graph.
        constants: Names of values that are known before anything runs.

    Attributes:
        maker: Index of the node that makes a value, by name.
        reads: Values that each node reads.
        constant: Whether all that a node reads is known before anything runs.
    """

    def __init__(self, nodes: Sequence[Node], constants: Collection[str]) -> None:
        self.maker = {name: at for at, node in enumerate(nodes) for name in node.outputs if name}
        self.reads = [tuple(dict.fromkeys(reads(node))) for node in nodes]
        self.constant: list[bool] = []
        for names in self.reads:
            is_constant = (self.constant[self.maker[n]] if n in self.maker else n in constants for n in names)
            self.constant.append(all(is_constant))

    def between(self, ends: Iterable[str], there: Collection[str]) -> set[int]:
        """Indices of the nodes between the outputs of an optimized node and the values in `there`."""
        mine = {self.maker[value] for value in ends if value in self.maker}
        todo = [*mine]
        while todo:
            for name in self.reads[todo.pop()]:
                at = self.maker.get(name)
                # a value in `there` has another maker, and constants were folded
                if at is not None and name not in there and at not in mine and not self.constant[at]:
                    mine.add(at)
                    todo.append(at)
        return mine
