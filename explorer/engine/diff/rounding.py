"""Folds the rounding nodes of a quantized graph into its layers, to compare it with the float original.

Rounding nodes are QuantizeLinear and DequantizeLinear pairs, Casts to narrow types, and quantizer functions.
After the folding, a quantized layer is one row of the diff. Readers of a rounded value become readers of the
value before rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.engine.diff.def_use import DefUse
from explorer.engine.diff.quantizers import MX_DOMAIN, compute_quantizer_values
from explorer.engine.graph.model import DTYPES, Node, Tensor
from explorer.engine.graph.output_channels import count_channels_per_scale
from explorer.engine.graph.tile_metadata import DOMAIN as TILES
from explorer.engine.values.agreement import Agreement
from explorer.engine.values.numbers import Numbers
from explorer.engine.values.slices.packed_weights import build_unpackers

QUANTIZERS = frozenset({"qonnx.custom_op.general", MX_DOMAIN})
"""Domains of functions that round a value to a number format."""

OPERATORS = (TILES, *QUANTIZERS)
"""Domains of functions whose calls count as one operator and are not inlined."""

MATMUL_NBITS = "MatMulNBits"
"""Operator for a MatMul or Gemm with a weight in blocks of codes of 2 to 8 bits; a bias is the last input."""

_FLOAT_OPERATORS = {"QLinearConv": "Conv", "QLinearMatMul": "MatMul", "QGemm": "Gemm"}
"""Float operator of each QOperator layer. These layers read, compute and write integers."""

_INPUT_POSITIONS: Mapping[str, tuple[int, ...]] = {
    MATMUL_NBITS: (0, 1, 5),
    "QLinearConv": (0, 3, 8),
    "QLinearMatMul": (0, 3),
    "QGemm": (0, 3, 6),
}
"""Positions of the float operator's inputs in each quantized operator: two operands, then an optional bias.
In a QOperator layer, a scale and a zero point follow each operand."""

ABSORBED = ("Relu", "Clip")
"""Activations that a quantizer can drop if the range of its integers has the same effect."""

_NARROW_TYPES = ("float16", "bfloat16", "float8", "float4", "float6")
"""First characters of the names of float types that are narrower than float32."""

_MULTIPLYING = frozenset((
    "Attention", "Conv", "ConvTranspose", "Einsum", "FusedMatMul", "GRU", "Gather", "Gemm", "LSTM", "MatMul",
    "MultiHeadAttention", "RNN", *_FLOAT_OPERATORS,
))  # fmt: skip
"""Layers to which the rounding of an input belongs. For other readers, it belongs to the value's producer, or
to the reader if no node produces the value."""

_SLAB = 1 << 20
"""Number of elements of a weight that are compared at a time."""


class Rounding(Struct, frozen=True):
    """Rounding of one value.

    Attributes:
        source: Name of the value before rounding, or of the stored weight or its stored codes.
        format: Number format, such as 'int8'.
        nodes: Indices of the nodes that round the value.
        scale, zero: Names of the scale and zero point, or '' if there are none.
        axis: Axis of the scales.
        block: Number of elements per scale along the axis, or 0 without blocks.
        packed: MatMulNBits node that stores this weight, or None for other weights.
    """

    source: str
    format: str
    nodes: tuple[int, ...]
    scale: str = ""
    zero: str = ""
    axis: int = 1
    block: int = 0
    packed: Node | None = None


class RoundedNode(Struct):
    """Rounding of a layer.

    Attributes:
        inputs: Rounding of each rounded input, by slot.
        output: Number format of the output, or '' if it is not rounded.
        nodes: Indices of the nodes that round its inputs and output.
    """

    inputs: dict[int, Rounding] = field(default_factory=dict)
    output: str = ""
    nodes: set[int] = field(default_factory=set)


class RoundedSide(Struct):
    """A quantized graph that is compared with its float original.

    Attributes:
        side: Quantized graph, whose nodes read the values before rounding.
        nodes: Rounding of each layer with rounded inputs or outputs, by node index.
        folded: Indices of the nodes that only round.
    """

    side: DefUse
    nodes: dict[int, RoundedNode]
    folded: set[int]


def fold_rounding(first: DefUse, second: DefUse) -> RoundedSide | None:
    """Folds the rounding nodes of the quantized graph, which is changed in place.

    Returns:
        The quantized graph, or None if neither or both of the graphs round values. If both do, the roundings
        themselves may differ and are compared as nodes.
    """
    roundings = [_find_roundings(side) for side in (first, second)]
    quantized_layers = [_find_packed_products(side) | _find_integer_layers(side) for side in (first, second)]
    is_quantized = [bool(roundings[index] or quantized_layers[index]) for index in (0, 1)]
    if is_quantized[0] == is_quantized[1]:
        return None
    index = is_quantized.index(True)
    side, rounded, quantized_nodes = (first, second)[index], roundings[index], quantized_layers[index]
    for i in quantized_nodes:
        input_names = side.input_names[i]
        side.input_names[i] = tuple(
            input_names[index] for index in _INPUT_POSITIONS[side.nodes[i].op] if index < len(input_names)
        )
    side.nodes = [_convert_to_float_node(node) for node in side.nodes]
    for i, input_names in enumerate(side.input_names):
        for slot, name in enumerate(input_names):
            rounding = rounded.get(name)
            if rounding is None:
                continue
            producer = side.producer.get(rounding.source)
            is_stored = rounding.source in side.stored
            if side.nodes[i].op in _MULTIPLYING or is_stored or producer is None:
                node = quantized_nodes.setdefault(i, RoundedNode())
                node.inputs[slot] = rounding
            else:
                node = quantized_nodes.setdefault(producer[0], RoundedNode())
                node.output = rounding.format
            node.nodes.update(rounding.nodes)
    for value in side.outputs:
        rounding = rounded.get(value.name)
        if rounding is not None:
            producer = side.producer[rounding.source]
            node = quantized_nodes.setdefault(producer[0], RoundedNode())
            node.output = rounding.format
            node.nodes.update(rounding.nodes)
            side.producer[value.name] = producer
    folded = _find_rounding_nodes(side, rounded)
    quantized_nodes = {i: node for i, node in quantized_nodes.items() if i not in folded}
    _read_through(side, rounded)
    return RoundedSide(side, quantized_nodes, folded)


def _find_packed_products(side: DefUse) -> dict[int, RoundedNode]:
    """Finds the MatMulNBits nodes with a stored weight; returns their rounding by node index."""
    products: dict[int, RoundedNode] = {}
    for i, node in enumerate(side.nodes):
        if node.op == MATMUL_NBITS and len(node.inputs) > 2 and node.inputs[1] in side.stored:
            bits, block = (int(node.attributes.get(name, 0)) for name in ("bits", "block_size"))
            # without zero points, the middle of the range of codes stands for 0, as for signed integers
            sign = "u" if len(node.inputs) > 3 and node.inputs[3] else ""
            scales = side.stored.get(node.inputs[2])
            rows = int(node.attributes.get("N", 0))
            if scales is not None and scales.payload is not None and rows and scales.elements % rows == 0:
                node_scales = scales.array().reshape(rows, -1)
                # if all blocks of a channel have the same scale, it is a scale per channel
                block = 0 if (node_scales == node_scales[:, :1]).all() else block
            weight = Rounding(
                node.inputs[1], f"{sign}int{bits}", (), node.inputs[2], block=block, packed=node
            )
            products[i] = RoundedNode({1: weight})
    return products


def _find_integer_layers(side: DefUse) -> dict[int, RoundedNode]:
    """Finds the QOperator layers; returns the rounding of their inputs and output by node index."""
    layers: dict[int, RoundedNode] = {}
    for i, node in enumerate(side.nodes):
        if node.op not in _FLOAT_OPERATORS:
            continue
        layer = layers[i] = RoundedNode()
        axis = 0 if node.op == "QLinearConv" or node.attributes.get("transB") else 1
        for slot, position in enumerate(_INPUT_POSITIONS[node.op]):
            codes = _get_input(node, position)
            # the scale of a bias follows from the scales of the two operands
            if slot == 2 and codes in side.stored:
                layer.inputs[slot] = Rounding(codes, side.stored[codes].dtype, ())
            elif slot < 2 and codes:
                scale, zero = _get_input(node, position + 1), _get_input(node, position + 2)
                layer.inputs[slot] = Rounding(codes, _get_code_type(side, zero), (), scale, zero, axis)
        output_zero = _get_input(node, 8 if node.op == "QGemm" else 7)
        if output_zero:
            layer.output = _get_code_type(side, output_zero)
    return layers


def _convert_to_float_node(node: Node) -> Node:
    """Converts a QOperator layer to its float operator; returns other nodes unchanged."""
    if node.op not in _FLOAT_OPERATORS:
        return node
    defaults = {"beta": 1.0} if node.op == "QGemm" else {}
    attributes = {**defaults, **node.attributes}
    op, ends = _FLOAT_OPERATORS[node.op], (node.inputs, node.outputs)
    return Node(op, *ends, name=node.name, attributes=attributes, metadata=node.metadata)


def _get_input(node: Node, index: int) -> str:
    return node.inputs[index] if index < len(node.inputs) else ""


def _get_code_type(side: DefUse, zero: str) -> str:
    """Returns the element type of the zero point, which is the type of the codes; uint8 without one."""
    return side.stored[zero].dtype if zero in side.stored else "uint8"


def _find_roundings(side: DefUse) -> dict[str, Rounding]:
    """Finds the roundings in a graph, by name of the rounded value; joins consecutive roundings."""
    by_value: dict[str, Rounding] = {}
    for i, node in enumerate(side.nodes):
        rounding = _read_rounding(side, i, node) or _read_cast_back(side, i, node, by_value)
        if rounding is None:
            continue
        inner = by_value.get(rounding.source)
        if inner is not None:
            rounding = Rounding(inner.source, rounding.format, (*inner.nodes, *rounding.nodes))
        by_value[node.outputs[0]] = rounding
    output_names = {value.name for value in side.outputs}
    # no layer owns the rounding of an unread value, or of a graph input that becomes a graph output
    return {
        name: rounding
        for name, rounding in by_value.items()
        if (rounding.source in side.producer if name in output_names else name in side.users)
    }


def _read_cast_back(side: DefUse, i: int, node: Node, roundings: Mapping[str, Rounding]) -> Rounding | None:
    """Returns the rounding that ends with this Cast, or None.

    The value is cast to float32, rounded, and cast back to its own float type.
    """
    inner = roundings.get(node.inputs[0]) if node.inputs and node.op == "Cast" and not node.domain else None
    if inner is None or _read_element_type(node, "to") not in ("float16", "float64"):
        return None
    output_of = side.producer.get(inner.source)
    producer = side.nodes[output_of[0]] if output_of is not None else None
    if (
        output_of is not None
        and producer is not None
        and producer.op == "Cast"
        and _read_element_type(producer, "to") == "float32"
    ):
        return replace(inner, source=producer.inputs[0], nodes=(i, output_of[0], *inner.nodes))
    return replace(inner, nodes=(i, *inner.nodes)) if inner.source in side.stored else None


def _read_rounding(side: DefUse, i: int, node: Node) -> Rounding | None:
    """Returns the rounding that ends with this node, or None if the node does not round."""
    if not node.inputs:
        return None
    source = node.inputs[0]
    producer_slot = side.producer.get(source)
    producer = side.nodes[producer_slot[0]] if producer_slot is not None else None
    if node.domain in QUANTIZERS:
        name = _read_quantizer(side, node)
        # the name of a fixed-point or float format gives the scale
        is_scale_in_name = name.startswith(("fixed", "float")) or len(node.inputs) < 2
        return Rounding(source, name, (i,), scale="" if is_scale_in_name else node.inputs[1])
    if node.op == "DequantizeLinear":
        scale, zero = (*node.inputs[1:3], "", "")[:2]
        fields = {"scale": scale, "zero": zero, "axis": int(node.attributes.get("axis", 1))}
        fields["block"] = int(node.attributes.get("block_size", 0))
        if source in side.stored:
            return Rounding(source, side.stored[source].dtype, (i,), **fields)  # type: ignore[arg-type]
        if producer is not None and producer_slot is not None and producer.op == "QuantizeLinear":
            zero_point = side.stored.get(_get_input(producer, 2))
            code_dtype = (
                _read_element_type(producer, "output_dtype") if zero_point is None else zero_point.dtype
            )
            return Rounding(producer.inputs[0], code_dtype or "uint8", (producer_slot[0], i))
        if producer is not None and producer.op in _FLOAT_OPERATORS:
            return Rounding(source, _get_code_type(side, zero), (i,))
    if node.op == "QuantizeLinear":
        users = side.users.get(node.outputs[0], ())
        if any(side.nodes[user].op in _FLOAT_OPERATORS for user, _ in users):
            return Rounding(source, _get_code_type(side, _get_input(node, 2)), (i,))
    if node.op == "Cast" and not node.domain and _read_element_type(node, "to") == "float32":
        if source in side.stored and side.stored[source].dtype.startswith(_NARROW_TYPES):
            return Rounding(source, side.stored[source].dtype, (i,))
        if producer is not None and producer_slot is not None and producer.op == "Cast" and producer.inputs:
            narrow = _read_element_type(producer, "to")
            if narrow.startswith(_NARROW_TYPES):
                return Rounding(producer.inputs[0], narrow, (producer_slot[0], i))
            return None
    return None


def _read_element_type(node: Node, name: str) -> str:
    """Returns the name of the element type in an attribute, or '' if it is absent."""
    code = node.attributes.get(name, 0)
    return DTYPES[code].name if code in DTYPES else ""


def _read_quantizer(side: DefUse, node: Node) -> str:
    """Returns the number format of a quantizer call. For QONNX it follows from the operands."""

    def number(index: int) -> float | None:
        tensor = side.stored.get(node.inputs[index]) if len(node.inputs) > index else None
        return float(tensor.array().reshape(-1)[0]) if tensor is not None and tensor.elements else None

    if node.op == "IntQuant" and (bits := number(3)) is not None:
        signed, scale = bool(node.attributes.get("signed", 1)), side.stored.get(node.inputs[1])
        if bits == 2 and signed and node.attributes.get("narrow", 0):
            return "ternary"
        if scale is not None and scale.elements == 1 and signed and number(2) == 0:
            # a scale of 2^-n is a fixed-point format with n fraction bits; frexp(2^-n) is (0.5, 1 - n)
            mantissa, exponent = math.frexp(number(1) or 0.0)
            if mantissa == 0.5 and exponent <= 1:
                return f"fixed{bits:g}.{1 - exponent}"
        return f"{'' if signed else 'u'}int{bits:g}"
    if node.op == "FloatQuant" and (e := number(2)) is not None and (m := number(3)) is not None:
        return f"floatE{e:g}M{m:g}"
    return {"BipolarQuant": "binary"}.get(node.op, node.op)


def _find_rounding_nodes(side: DefUse, rounded: Mapping[str, Rounding]) -> set[int]:
    """Returns the rounding nodes whose intermediate values only other rounding nodes read."""
    rounding_nodes = {i for rounding in rounded.values() for i in rounding.nodes}
    output_names = {value.name for value in side.outputs}
    for i in sorted(rounding_nodes, reverse=True):
        for name in side.nodes[i].outputs:
            users = {user for user, _ in side.users.get(name, ())}
            if name not in rounded and (name in output_names or not users <= rounding_nodes):
                rounding_nodes.discard(i)
    return rounding_nodes


def _read_through(side: DefUse, rounded: Mapping[str, Rounding]) -> None:
    """Makes every reader of a rounded value read the value before rounding."""
    for i, input_names in enumerate(side.input_names):
        if any(name in rounded for name in input_names):
            side.input_names[i] = tuple(
                rounded[name].source if name in rounded else name for name in input_names
            )
    side.users.clear()
    for i, input_names in enumerate(side.input_names):
        for slot, name in enumerate(input_names):
            if name:
                side.users.setdefault(name, []).append((i, slot))


def find_absorbed_activations(
    original: DefUse, partners: Sequence[int | None], rounded: RoundedSide
) -> dict[int, int]:
    """Finds activations that the quantized graph dropped because its integer range has the same effect.

    Args:
        original: Float graph.
        partners: Partner in the quantized graph of each node of the float graph, or None.
        rounded: Quantized graph.

    Returns:
        Index of the node that rounds the value, by node index of the activation.
    """
    quantized_graph = DefUse(rounded.side.model)  # unlike rounded.side, its nodes read the rounded values
    nodes, output_names = quantized_graph.nodes, {value.name for value in quantized_graph.outputs}
    quantizer_by_activation: dict[int, int] = {}
    for index, node in enumerate(original.nodes):
        if node.domain or node.op not in ABSORBED or partners[index] is not None:
            continue
        source = original.producer.get(node.inputs[0])
        # skip earlier activations, such as a Relu before a Clip
        while source is not None and source[0] in quantizer_by_activation:
            source = original.producer.get(original.nodes[source[0]].inputs[0])
        layer_index = None if source is None else partners[source[0]]
        limits = _read_limits(original, node)
        if source is None or layer_index is None or limits is None:
            continue
        layer, name = nodes[layer_index], nodes[layer_index].outputs[source[1]]
        quantizer_indices = (
            [layer_index]
            if layer.op in _FLOAT_OPERATORS
            else [reader for reader, _ in quantized_graph.users.get(name, ())]
        )
        if (
            quantizer_indices
            and name not in output_names
            and all(
                _covers_integer_range(nodes[index], quantized_graph, limits) for index in quantizer_indices
            )
        ):
            quantizer_by_activation[index] = quantizer_indices[0]
    return quantizer_by_activation


def _read_limits(side: DefUse, node: Node) -> tuple[float, float] | None:
    """Returns the smallest and the largest output of a Relu or Clip, or None if a limit is computed."""
    smallest, largest = (0.0 if node.op == "Relu" else -math.inf), math.inf
    if node.op == "Relu":
        return smallest, largest
    limits = [node.attributes.get("min", smallest), node.attributes.get("max", largest)]
    for slot, name in enumerate(node.inputs[1:3]):
        values = _read_constant(side, name) if name else None
        if name and (values is None or values.size != 1):
            return None
        limits[slot] = limits[slot] if values is None else values.reshape(-1)[0]
    return float(limits[0]), float(limits[1])


def _read_constant(side: DefUse, name: str) -> Any:
    """Returns the array of a stored value or of a Constant, through Casts; None for other values."""
    if name in side.stored:
        return side.stored[name].array()
    producer = side.producer.get(name)
    node = None if producer is None else side.nodes[producer[0]]
    if node is not None and node.op == "Cast" and not node.domain:
        return _read_constant(side, node.inputs[0])
    value = node.attributes.get("value") if node is not None and node.op == "Constant" else None
    return value.array() if isinstance(value, Tensor) else None


def _covers_integer_range(node: Node, side: DefUse, limits: tuple[float, float]) -> bool:
    """Whether rounding gives the same integers with and without clipping the value to the limits."""
    # slot of the output scale, which precedes the output zero point; 0 if the node is no quantizer
    slot = {"QuantizeLinear": 1, "QGemm": 7}.get(node.op, 6 if node.op in _FLOAT_OPERATORS else 0)
    scale, zero = _get_input(node, slot), _get_input(node, slot + 1)
    if (
        not slot
        or node.domain not in ("", "com.microsoft")
        or scale not in side.stored
        or zero not in side.stored
    ):
        return False
    code_dtype = side.stored[zero].dtype
    bits = code_dtype.removeprefix("u").removeprefix("int")
    if not bits.isdigit():
        return False
    half = 2 ** (int(bits) - 1)
    first = 0 if code_dtype.startswith("u") else -half
    steps, zeros = side.stored[scale].array(), side.stored[zero].array().astype(np.float64)
    with np.errstate(all="ignore"):
        low, high = (np.rint(np.asarray(end, steps.dtype) / steps) + zeros for end in limits)
    return bool((low <= first).all() and (high >= first + 2 * half - 1).all())


def describe_rounding(
    node: Node, rounded_node: RoundedNode, side: DefUse, original: Mapping[int, Tensor]
) -> str:
    """Describes formats, scales and signal-to-noise ratio of a layer: 'int8, per channel, 38.2 dB'.

    Args:
        node: Layer of the float original.
        rounded_node: Rounding of the layer.
        side: Quantized graph.
        original: Weights of the float original, by input slot.
    """
    agreement = Agreement()
    for slot, rounding in _find_weight_roundings(rounded_node, side)[1].items():
        if rounding.packed is not None:
            _compare_packed(agreement, side, rounding.packed, node, original.get(slot))
        else:
            _compare(agreement, side, rounding, original.get(slot))
    snr = agreement.snr_db if agreement.elements else None
    snr_text = "" if snr is None else f", {snr:.1f} dB" if math.isfinite(snr) else ", exact"
    return f"{describe_formats(node, rounded_node, side)}{snr_text}"


def _find_weight_roundings(
    rounded_node: RoundedNode, side: DefUse
) -> tuple[dict[int, Rounding], dict[int, Rounding]]:
    """Returns the roundings of a layer's stored inputs, and of those with several axes, by slot.

    Biases have one axis. If all stored inputs have one axis, the second mapping contains all of them, too.
    """
    weights = {slot: r for slot, r in rounded_node.inputs.items() if r.source in side.stored}
    return weights, {s: r for s, r in weights.items() if len(side.stored[r.source].shape) > 1} or weights


def describe_formats(node: Node, rounded_node: RoundedNode, side: DefUse) -> str:
    """Returns the formats of a layer and the granularity of its scales: 'int8, per channel'.

    Args:
        node: Layer of the float original.
        rounded_node: Rounding of the layer.
        side: Quantized graph.
    """
    weights, main = _find_weight_roundings(rounded_node, side)
    inputs = list(dict.fromkeys(r.format for s, r in rounded_node.inputs.items() if s not in weights))
    weight_formats = list(dict.fromkeys(r.format for r in main.values()))
    if weight_formats and inputs:
        text = (
            weight_formats[0]
            if weight_formats == inputs
            else f"{'/'.join(weight_formats)} x {'/'.join(inputs)}"
        )
    else:
        text = (
            f"weight {'/'.join(weight_formats)}"
            if weight_formats
            else f"input {'/'.join(inputs)}"
            if inputs
            else ""
        )
    parts = [text] if text else []
    if rounded_node.output:
        parts.append(f"output {rounded_node.output}")
    scaled = [(slot, r) for slot, r in main.items() if r.scale in side.stored]
    if scaled:
        slot, rounding = scaled[0]
        scales = side.stored[rounding.scale].elements
        shape = tuple(side.stored[rounding.source].shape)
        # MatMulNBits stores its weight as (N, blocks, bytes), with scales for each of the N channels
        channel_count = (
            1 if rounding.packed is not None else count_channels_per_scale(node, slot, shape, scales)
        )
        channels = "per channel" if channel_count == 1 else f"per {channel_count} channels"
        parts.append(
            f"block {rounding.block}" if rounding.block else "per tensor" if scales == 1 else channels
        )
    return ", ".join(parts)


def _compare(agreement: Agreement, side: DefUse, rounding: Rounding, original: Tensor | None) -> None:
    """Adds the comparison of a dequantized weight with the original to `agreement`, if both can be read."""
    codes = side.stored[rounding.source]
    if original is None or original.shape != codes.shape or not codes.shape:
        return
    quantizer = side.nodes[rounding.nodes[-1]] if rounding.nodes else None
    try:
        if quantizer is not None and quantizer.domain in QUANTIZERS:
            rounded = None
            if quantizer.inputs[0] == rounding.source:
                rounded = compute_quantizer_values(quantizer, side.stored)
            if rounded is not None:
                agreement.add(original.array().reshape(-1, 1), rounded.reshape(-1, 1))
            return
        original_values, code_values = original.array(), codes.array()
        scale, zero = (
            side.stored[n].array() if n in side.stored else None for n in (rounding.scale, rounding.zero)
        )
    except BadModel:
        return
    if scale is None and not codes.dtype.startswith(_NARROW_TYPES):
        return
    axis = rounding.axis % len(codes.shape)
    rows = max(1, _SLAB // max(1, codes.elements // max(1, codes.shape[0])))
    rows = -(-rows // max(1, rounding.block)) * max(1, rounding.block)
    for start in range(0, codes.shape[0], rows):
        part = slice(start, start + rows)
        values = code_values[part].astype(np.float32)
        for operation, table in ((np.subtract, zero), (np.multiply, scale)):
            if table is not None:
                values = operation(
                    values, _broadcast_parameters(table, values.shape, axis, rounding.block, part)
                )
        agreement.add(original_values[part].reshape(-1, 1), values.reshape(-1, 1))


def _compare_packed(
    agreement: Agreement, side: DefUse, packed: Node, node: Node, original: Tensor | None
) -> None:
    """Adds the comparison of a packed MatMulNBits weight with the original to `agreement`.

    The attribute transB of `node`, the float layer, tells whether the original is stored as (N, K).
    """
    name = packed.inputs[1]
    unpack = build_unpackers([packed], side.stored).get(name)
    if original is None or unpack is None:
        return
    codes = side.stored[name]
    numbers = unpack(Numbers(name, codes.dtype, codes.shape, codes.nbytes, lambda: iter(())))
    (k, n), scales = numbers.shape, numbers.scales
    try:
        original_values = original.array()
        original_values = original_values.T if node.attributes.get("transB") else original_values
        if original_values.shape != (k, n) or scales is None or scales.zero is None or numbers.part is None:
            return
        scale, zero = scales.scale().astype(np.float32), scales.zero().astype(np.float32)
        rows = max(1, _SLAB // n // scales.block) * scales.block
        for start in range(0, k, rows):
            end = min(start + rows, k)
            values = np.concatenate(list(numbers.part(start * n, end * n))).reshape(-1, n).astype(np.float32)
            block_range = slice(start // scales.block, -(-end // scales.block))
            values -= np.repeat(zero[block_range], scales.block, 0)[: end - start]
            values *= np.repeat(scale[block_range], scales.block, 0)[: end - start]
            agreement.add(original_values[start:end].reshape(-1, 1), values.reshape(-1, 1))
    except BadModel:
        return


def _broadcast_parameters(table: Any, shape: tuple[int, ...], axis: int, block: int, rows: slice) -> Any:
    """Reshapes the scales or zero points of a range of rows so that they broadcast to `shape`."""
    table = table.astype(np.float32)
    if table.ndim == 0 or table.size == 1:
        return table.reshape(())
    if block:
        blocks = slice(rows.start // block, -(-rows.stop // block)) if axis == 0 else rows
        return np.repeat(table[blocks], block, axis)[tuple(slice(n) for n in shape)]
    return (table[rows] if axis == 0 else table).reshape(
        [-1 if index == axis else 1 for index in range(len(shape))]
    )
