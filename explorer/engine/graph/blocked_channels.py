"""Blocked channels: finds the number of channels that an onnxruntime `ReorderInput` writes.

`ReorderInput` and the convolutions of the domain `NCHWC` store channels in blocks of 8 or 16.
"""

from __future__ import annotations

from collections.abc import Mapping

from explorer.engine.graph.layouts import NCHWC
from explorer.engine.graph.model import Graph, Node

_KEEPS_CHANNELS = frozenset(
    str.split("""
    Add AveragePool Clip GlobalAveragePool GlobalMaxPool HardSigmoid LeakyRelu MaxPool Mul Relu Sigmoid Sum
    Tanh Upsample
    """)
)
"""Operators between blocked convolutions that do not change the number of channels."""


def find_blocked_channels(graph: Graph) -> Mapping[int, int]:
    """Returns the number of channels that each `ReorderInput` node writes, by `id` of the node.

    Channels are padded to full blocks of 8 or 16, depending on the processor that wrote the file. The node
    does not store their number. It is the number of input channels of a later convolution that reads them, or
    of output channels of a convolution whose result is added to them. A node without such a convolution is
    left out.
    """
    if not any(node.domain == NCHWC for node in graph.nodes):
        return {}
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    channels_by_node: dict[int, int] = {}
    for node in graph.nodes:
        if (node.domain, node.op) == (NCHWC, "ReorderInput"):
            channels = _find_channels(graph, readers, node)
            if channels is not None:
                channels_by_node[id(node)] = channels
    return channels_by_node


def _find_channels(graph: Graph, readers: Mapping[str, list[Node]], start: Node) -> int | None:
    """Returns the number of channels that a node writes, or None if unknown.

    The number comes from the weight of the first later convolution that the search finds.
    """
    waiting, visited = [*start.outputs], set(start.outputs)
    while waiting:
        name = waiting.pop()
        for node in readers.get(name, ()):
            if (node.domain, node.op) == (NCHWC, "Conv"):
                weight = graph.initializers.get(node.inputs[1]) if len(node.inputs) > 1 else None
                if weight is None or len(weight.shape) < 2:
                    continue
                group = node.attributes.get("group", 1)
                return weight.shape[1] * group if node.inputs[0] == name else weight.shape[0]
            if node.op in _KEEPS_CHANNELS:
                waiting += [output for output in node.outputs if output not in visited]
                visited.update(node.outputs)
    return None
