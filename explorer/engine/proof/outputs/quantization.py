"""Dequantized values: those of a quantised model as the floats that they stand for, to be compared.

Where a quantiser put integer operators in place of float ones ('QLinearConv'), no value of the original is
left in the graph: 'x' became 'x_quantized', with a scale and a zero point beside it. Each such value is
turned into floats and back, which changes no bit of it, and the floats are what the original's value is
compared with.
"""

from __future__ import annotations

from msgspec.structs import replace

from explorer.engine.graph.model import Model, Node
from explorer.engine.proof.structure.probes import GraphProducers

_QUANTISED, _SCALE, _ZERO = "_quantized", "_scale", "_zero_point"
"""What onnxruntime's quantiser appends to the name of a value."""

_ABSORBED = ("Relu", "Clip")
"""Operators that a quantiser drops where the range of the integers does the same."""


def with_floats(before: GraphProducers, after: GraphProducers) -> tuple[Model, dict[str, str]]:
    """The second model with floats beside its integers.

    Args:
        before: The original.
        after: The other model.

    Returns:
        (the model, as it was if it has no such integers; values of the original by the name of their floats
        in it).
    """
    initializers = after.model.graph.initializers
    ends = {value.name for value in after.model.graph.outputs}
    users: dict[str, list[Node]] = {}
    for node, read in zip(before.nodes, before.reads, strict=True):
        for name in read:
            users.setdefault(name, []).append(node)
    integers = {}
    for name in before.producer:
        quantised, scale, zero = (name + end for end in (_QUANTISED, _SCALE, _ZERO))
        gone = name in before.live and name not in after.producer
        if not gone or quantised not in after.producer or quantised in ends:
            continue
        if {scale, zero} <= initializers.keys() and initializers[scale].elements == 1:
            integers[quantised] = name
    if not integers:
        return after.model, {}
    nodes: list[Node] = []
    pairs: dict[str, str] = {}
    for node in after.nodes:
        renamed = {name: f"{integers[name]}/integers" for name in node.outputs if name in integers}
        if not renamed:
            nodes.append(node)
            continue
        nodes.append(node.with_values(node.inputs, [renamed.get(name, name) for name in node.outputs]))
        for name, whole in renamed.items():
            value = integers[name]
            floats, scale_and_zero = f"{value}/floats", (value + _SCALE, value + _ZERO)
            nodes.append(Node("DequantizeLinear", [whole, *scale_and_zero], [floats]))
            nodes.append(Node("QuantizeLinear", [floats, *scale_and_zero], [name]))
            pairs[_behind(value, users, after)] = floats
    return replace(after.model, graph=replace(after.model.graph, nodes=tuple(nodes))), pairs


def _behind(value: str, users: dict[str, list[Node]], after: GraphProducers) -> str:
    """The value that integers called after `value` hold: behind an activation that was dropped."""
    following = users.get(value, [])
    if len(following) == 1 and following[0].op in _ABSORBED and len(following[0].outputs) == 1:
        dropped = following[0].outputs[0]
        if dropped not in after.producer and dropped + _QUANTISED not in after.producer:
            return dropped
    return value
