"""Finds the parts of a region that its runs may not exercise, from the graphs.

Examples are a branch not taken, a body that never runs, and a limit never reached. The results tell the tests
which values to vary and which numbers to include.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from explorer.engine.graph.model import Model, Node
from explorer.engine.graph.random_operators import list_all_nodes
from explorer.engine.proof.regions.stored_numbers import collect_constants

_MAX_SEARCHED = 64
"""Largest number of elements of a stored tensor that is searched for limits."""

Sides = tuple[Sequence[Node], Sequence[Node]]
"""The nodes of a region in the two graphs."""


class NodeContents:
    """The control flow and the stored numbers of the nodes of two graphs.

    Args:
        before, after: The models.
    """

    def __init__(self, before: Model, after: Model) -> None:
        self.models = before, after
        self._stored = tuple(collect_constants(m.graph.nodes, m.graph.initializers) for m in self.models)

    def leaves_branch_undecided(self, nodes: Sides, varied: Sequence[Collection[str]]) -> bool:
        """Whether the trials left a branch or a trip count undecided.

        Args:
            nodes: Nodes of the region in the two graphs.
            varied: Names of the values in either graph for which the trials ran both settings.
        """
        for index, (model, side) in enumerate(zip(self.models, nodes, strict=True)):
            constants = self._stored[index]
            top_level_ids = {id(node) for node in side}
            for node in list_all_nodes(model, side):
                if node.domain or node.op not in ("If", "Loop"):
                    continue
                if id(node) in top_level_ids and all(
                    n in varied[index] or n in constants for n in find_control_inputs([node])
                ):
                    continue
                if node.op == "If" or not all(n in constants or not n for n in node.inputs[:2]):
                    return True
        return False

    def collect_numbers(self, nodes: Sides) -> list[float]:
        """Collects the numbers in small constants and attributes, such as limits, slopes and epsilons."""
        numbers: set[float] = set()
        for index, side in enumerate(nodes):
            for node in side:
                tensors = [self._stored[index][n] for n in node.inputs if n in self._stored[index]]
                small_tensors = [
                    t for t in tensors if "float" in t.dtype and (t.elements or 0) <= _MAX_SEARCHED
                ]
                numbers.update(
                    float(v) for t in small_tensors for v in np.asarray(t.array(), np.float64).reshape(-1)
                )
                numbers.update(v for v in node.attributes.values() if isinstance(v, float))
        return sorted(v for v in numbers if np.isfinite(v))


def find_control_inputs(nodes: Sequence[Node]) -> list[str]:
    """Finds the values that choose the branches of If nodes and the trip counts of loops."""
    names = dict.fromkeys(
        name
        for node in nodes
        if not node.domain and node.op in ("If", "Loop")
        for name in node.inputs[: 1 if node.op == "If" else 2]
        if name
    )
    return list(names)
