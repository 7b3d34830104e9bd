"""Adds dequantized floats to a quantized model, so that they can be compared with the original's values.

A quantizer may replace float operators by integer operators such as 'QLinearConv'. The graph then lacks the
value 'x' and has 'x_quantized', with a scale and a zero point. This module converts each such value to floats
and back, which changes no bit. The floats are compared with the original's value.
"""

from __future__ import annotations

from msgspec.structs import replace

from explorer.engine.graph.model import Model, Node
from explorer.engine.proof.structure.probes import GraphProducers

_QUANTIZED, _SCALE, _ZERO = "_quantized", "_scale", "_zero_point"
"""Suffixes that onnxruntime's quantizer appends to the name of a value."""

_ABSORBED = ("Relu", "Clip")
"""Operators that a quantizer drops if the range of the integers has the same effect."""


def add_float_outputs(before: GraphProducers, after: GraphProducers) -> tuple[Model, dict[str, str]]:
    """Adds floats for the integers of a quantized model.

    Args:
        before: Original model.
        after: Quantized model.

    Returns:
        The model, unchanged if it has no such integers, and the name of the added float by the original's
        name.
    """
    initializers = after.model.graph.initializers
    output_names = {value.name for value in after.model.graph.outputs}
    users: dict[str, list[Node]] = {}
    for node, read in zip(before.nodes, before.reads, strict=True):
        for name in read:
            users.setdefault(name, []).append(node)
    integers = {}
    for name in before.producer:
        quantized, scale, zero = (name + end for end in (_QUANTIZED, _SCALE, _ZERO))
        is_missing = name in before.input_dependent and name not in after.producer
        if not is_missing or quantized not in after.producer or quantized in output_names:
            continue
        if {scale, zero} <= initializers.keys() and initializers[scale].elements == 1:
            integers[quantized] = name
    if not integers:
        return after.model, {}
    nodes: list[Node] = []
    pairs: dict[str, str] = {}
    for node in after.nodes:
        renamed = {name: f"{integers[name]}/integers" for name in node.outputs if name in integers}
        if not renamed:
            nodes.append(node)
            continue
        nodes.append(node.replace_values(node.inputs, [renamed.get(name, name) for name in node.outputs]))
        for name, integer_name in renamed.items():
            value = integers[name]
            floats, scale_and_zero = f"{value}/floats", (value + _SCALE, value + _ZERO)
            nodes.append(Node("DequantizeLinear", [integer_name, *scale_and_zero], [floats]))
            nodes.append(Node("QuantizeLinear", [floats, *scale_and_zero], [name]))
            pairs[_find_quantized_value(value, users, after)] = floats
    return replace(after.model, graph=replace(after.model.graph, nodes=tuple(nodes))), pairs


def _find_quantized_value(value: str, users: dict[str, list[Node]], after: GraphProducers) -> str:
    """Finds the original's value that the integers named after `value` represent.

    It may be the output of an activation that the quantizer dropped.
    """
    following = users.get(value, [])
    if len(following) == 1 and following[0].op in _ABSORBED and len(following[0].outputs) == 1:
        dropped = following[0].outputs[0]
        if dropped not in after.producer and dropped + _QUANTIZED not in after.producer:
            return dropped
    return value
