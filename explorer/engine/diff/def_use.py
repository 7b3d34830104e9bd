"""Def-use index of one graph of a diff: the producer and the users of each value."""

from __future__ import annotations

import re
from collections.abc import Sequence

from explorer.engine.graph.interpreter import free_names
from explorer.engine.graph.model import CONTROL_FLOW, Model, Node, Value, subgraphs

_COUNTED = re.compile(r"/?(node_|onnx::)?([A-Za-z_]*?)([._-]?)\d+")
_NO_NAMES = frozenset({"", "n", "node", "val", "op", "value", "tmp", "t"})


class DefUse:
    """One graph of a diff, indexed.

    Attributes:
        takes: For each node its values: inputs without trailing absent ones, then the values that its
            subgraphs capture.
        producer: For each value the node and the output that make it.
        users: For each value the nodes and inputs that read it.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.nodes: Sequence[Node] = model.graph.nodes
        self.stored = model.graph.initializers
        self.inputs: Sequence[Value] = model.graph.feeds
        self.outputs: Sequence[Value] = model.graph.outputs
        self.producer: dict[str, tuple[int, int]] = {}
        self.users: dict[str, list[tuple[int, int]]] = {}
        self.takes: list[tuple[str, ...]] = []
        for i, node in enumerate(self.nodes):
            for slot, name in enumerate(node.outputs):
                if name:
                    self.producer[name] = i, slot
            takes = node.inputs
            if takes and not takes[-1]:
                takes = takes[: max((count for count, name in enumerate(takes, 1) if name), default=0)]
            if (node.domain or node.op in CONTROL_FLOW) and subgraphs(node):
                bodies = sorted(subgraphs(node), key=lambda pair: pair[0])
                takes = (*takes, *dict.fromkeys(name for _, body in bodies for name in free_names(body)))
            self.takes.append(takes)
            for slot, name in enumerate(takes):
                if name:
                    self.users.setdefault(name, []).append((i, slot))


def is_counted(name: str, op: str) -> bool:
    """Whether a name only numbers nodes or values: 'Conv_17', 'node_Conv_17', 'input.8', '123'.

    'conv1' is a name from a person, and so is a name with a path before it.
    """
    match = _COUNTED.fullmatch(name)
    if match is None:
        return False
    prefix, base, separator = match.groups()
    if prefix or separator == ".":
        return True
    return base in _NO_NAMES or (bool(separator) and base.lower() == op.lower())
