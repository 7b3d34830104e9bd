"""Indexes the producer and the users of each value in one graph of a diff."""

from __future__ import annotations

import re
from collections.abc import Sequence

from explorer.engine.graph.interpreter import list_free_names
from explorer.engine.graph.model import CONTROL_FLOW, Model, Node, Value, list_bodies

_NUMBERED_NAME = re.compile(r"/?(node_|onnx::)?([A-Za-z_]*?)([._-]?)\d+")
"""Name that ends with a number; the groups are a prefix, the word before the number, and a separator."""
_NO_NAMES = frozenset({"", "n", "node", "val", "op", "value", "tmp", "t"})
"""Words that exporters write before the number of a node without a name."""


class DefUse:
    """A graph with an index of its values.

    Attributes:
        model: Model whose main graph is indexed.
        nodes: Nodes of the main graph.
        stored: Initializers by name.
        inputs: Graph inputs.
        outputs: Graph outputs.
        producer: Node index and output slot that compute each value, by value name.
        users: Node indices and input slots that read each value, by value name.
        input_names: Names of the values that each node reads, by node index. Trailing absent inputs are
            removed. Values that the node's subgraphs capture follow its inputs.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.nodes: Sequence[Node] = model.graph.nodes
        self.stored = model.graph.initializers
        self.inputs: Sequence[Value] = model.graph.required_inputs
        self.outputs: Sequence[Value] = model.graph.outputs
        self.producer: dict[str, tuple[int, int]] = {}
        self.users: dict[str, list[tuple[int, int]]] = {}
        self.input_names: list[tuple[str, ...]] = []
        for i, node in enumerate(self.nodes):
            for slot, name in enumerate(node.outputs):
                if name:
                    self.producer[name] = i, slot
            input_names = node.inputs
            if input_names and not input_names[-1]:
                input_names = input_names[
                    : max((count for count, name in enumerate(input_names, 1) if name), default=0)
                ]
            if (node.domain or node.op in CONTROL_FLOW) and list_bodies(node):
                bodies = sorted(list_bodies(node), key=lambda pair: pair[0])
                input_names = (
                    *input_names,
                    *dict.fromkeys(name for _, body in bodies for name in list_free_names(body)),
                )
            self.input_names.append(input_names)
            for slot, name in enumerate(input_names):
                if name:
                    self.users.setdefault(name, []).append((i, slot))


def is_numbered(name: str, op: str) -> bool:
    """Whether an exporter made a name by numbering: 'Conv_17', 'node_Conv_17', 'input.8', '123'.

    A person chose a name such as 'conv1' or a name with a path.
    """
    match = _NUMBERED_NAME.fullmatch(name)
    if match is None:
        return False
    prefix, base, separator = match.groups()
    if prefix or separator == ".":
        return True
    return base in _NO_NAMES or (bool(separator) and base.lower() == op.lower())
