"""Observability: what stands in a region that runs of it may not show.

A branch that is not taken, a body that never runs, a limit that is never reached: what is to be varied, and
which numbers are to be met, stands in the graphs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from explorer.engine.graph.model import Model, Node
from explorer.engine.graph.random_operators import all_nodes
from explorer.engine.proof.regions.stored_numbers import constants_of

_FEW = 64
"""Numbers that a stored tensor may hold to be taken for limits."""

Sides = tuple[Sequence[Node], Sequence[Node]]
"""Nodes of both graphs."""


class NodeContents:
    """What stands in the nodes of one graph and another beside what they read.

    Args:
        before, after: The models.
    """

    def __init__(self, before: Model, after: Model) -> None:
        self.models = before, after
        self._stored = tuple(constants_of(m.graph.nodes, m.graph.initializers) for m in self.models)

    def undecided(self, nodes: Sides, varied: Sequence[Collection[str]]) -> bool:
        """Whether what is run, or how often, was decided in one way only by what was tried.

        Args:
            nodes: Of both graphs.
            varied: Values of either that were tried in all ways.
        """
        for at, (model, side) in enumerate(zip(self.models, nodes, strict=True)):
            constants = self._stored[at]
            top = {id(node) for node in side}
            for node in all_nodes(model, side):
                if node.domain or node.op not in ("If", "Loop"):
                    continue
                if id(node) in top and all(n in varied[at] or n in constants for n in controls([node])):
                    continue
                if node.op == "If" or not all(n in constants or not n for n in node.inputs[:2]):
                    return True
        return False

    def numbers(self, nodes: Sides) -> list[float]:
        """The few numbers that stand in nodes: limits, slopes, what is added to keep a root from zero."""
        numbers: set[float] = set()
        for at, side in enumerate(nodes):
            for node in side:
                tensors = [self._stored[at][n] for n in node.inputs if n in self._stored[at]]
                small = [t for t in tensors if "float" in t.dtype and (t.elements or 0) <= _FEW]
                numbers.update(float(v) for t in small for v in np.asarray(t.array(), np.float64).reshape(-1))
                numbers.update(v for v in node.attributes.values() if isinstance(v, float))
        return sorted(v for v in numbers if np.isfinite(v))


def controls(nodes: Sequence[Node]) -> list[str]:
    """The values that decide which branches of nodes run and how often their loops."""
    names = dict.fromkeys(
        name
        for node in nodes
        if not node.domain and node.op in ("If", "Loop")
        for name in node.inputs[: 1 if node.op == "If" else 2]
        if name
    )
    return list(names)
