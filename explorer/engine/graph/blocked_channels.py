"""Blocked channels: how many a `ReorderInput` of onnxruntime writes, which only the weights behind it say."""

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
"""Operators between blocked convolutions that leave the number of channels as it is."""


def blocked_channels(graph: Graph) -> Mapping[int, int]:
    """How many channels the `ReorderInput` nodes of a graph write, by the ids of the nodes.

    Channels are filled up to whole blocks, of 8 or of 16 as the processor has it that the file was written
    on. Only weights tell it: of the convolution that reads the channels, or of one that adds to them.
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
            channels = _channels_read(graph, readers, node)
            if channels is not None:
                channels_by_node[id(node)] = channels
    return channels_by_node


def _channels_read(graph: Graph, readers: Mapping[str, list[Node]], start: Node) -> int | None:
    """How many channels the weights behind a node say that it writes; None if none says it."""
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
