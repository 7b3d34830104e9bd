"""Wires of a graph's nodes: who makes a value, what a node reads, and the nodes between some values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from explorer.engine.graph.interpreter import reads
from explorer.engine.graph.model import Node


class NodeWires:
    """Who makes and who reads the values of one graph; what a body reads its node does.

    Args:
        nodes: Of the graph.
        stored: Names of values that are known before anything runs.

    Attributes:
        maker: Place of the node that makes a value.
        reads: Values that each node needs.
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
        """The nodes between values that an optimised node makes and those that there are without it."""
        mine = {self.maker[value] for value in ends if value in self.maker}
        todo = [*mine]
        while todo:
            for name in self.reads[todo.pop()]:
                at = self.maker.get(name)
                # what is there is made by another, and a constant was computed
                if at is not None and name not in there and at not in mine and not self.constant[at]:
                    mine.add(at)
                    todo.append(at)
        return mine
