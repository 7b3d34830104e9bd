"""Rounding of a node's inputs: QuantizeLinear and DequantizeLinear, Casts, quantizers.

Compared with its float original, a quantized layer is one row: nodes that round its weight and inputs have no
row, and readers of a rounded value count as readers of the value.
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
from explorer.engine.diff.quantizers import MX_DOMAIN, quantizer_values
from explorer.engine.graph.model import DTYPES, Node, Tensor
from explorer.engine.graph.output_channels import channels_per_scale
from explorer.engine.graph.tile_metadata import DOMAIN as TILES
from explorer.engine.values.agreement import Agreement
from explorer.engine.values.numbers import Numbers
from explorer.engine.values.slices.packed_weights import opened_weights

QUANTIZERS = frozenset({"qonnx.custom_op.general", MX_DOMAIN})
"""Domains of functions that round a value to a format."""

OPERATORS = (TILES, *QUANTIZERS)
"""Domains of functions that count as one operator."""

BLOCKED = "MatMulNBits"
"""A MatMul, or a Gemm with its bias last, whose weight is stored in blocks of a few bits."""

_INTEGER = {"QLinearConv": "Conv", "QLinearMatMul": "MatMul", "QGemm": "Gemm"}
"""QOperator's layers, which compute with integers throughout, and the float operators they stand for."""

_PLACES: Mapping[str, tuple[int, ...]] = {
    BLOCKED: (0, 1, 5),
    "QLinearConv": (0, 3, 8),
    "QLinearMatMul": (0, 3),
    "QGemm": (0, 3, 6),
}
"""Positions in a quantized operator of the float operator's inputs; scale and zero point follow each."""

ABSORBED = ("Relu", "Clip")
"""Operators that a quantizer drops where the range of its integers has the same effect."""

_NARROW = ("float16", "bfloat16", "float8", "float4", "float6")

_MULTIPLYING = frozenset((
    "Attention", "Conv", "ConvTranspose", "Einsum", "FusedMatMul", "GRU", "Gather", "Gemm", "LSTM", "MatMul",
    "MultiHeadAttention", "RNN", *_INTEGER,
))  # fmt: skip
"""Layers to which the rounding of their inputs belongs; elsewhere it belongs to the value's producer."""

_SLAB = 1 << 20
"""Elements of a weight that are compared at a time."""


class Rounding(Struct, frozen=True):
    """A value that is a rounded form of another value.

    Attributes:
        source: The other value, or the stored codes, or the stored weight.
        format: Its number format.
        nodes: The nodes that round it.
        scale, zero: Stored tensors of a DequantizeLinear, or a quantizer's scale; '' without one.
        axis, block: Its attributes.
        packed: The MatMulNBits whose weight it is.
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
    """The rounding of a node: by input slot; of its output; and the nodes that round."""

    inputs: dict[int, Rounding] = field(default_factory=dict)
    output: str = ""
    nodes: set[int] = field(default_factory=set)


class RoundedSide(Struct):
    """A quantized graph beside its float original.

    Attributes:
        side: The graph; its nodes read the values before rounding.
        nodes: The nodes with rounded inputs or outputs.
        folded: The nodes that only round.
    """

    side: DefUse
    nodes: dict[int, RoundedNode]
    folded: set[int]


def fold_rounding(first: DefUse, second: DefUse) -> RoundedSide | None:
    """The graph that is a quantized form of the other, with its rounding nodes folded; None if neither is.

    If both graphs round values, the roundings themselves may differ, and nothing is folded.
    """
    roundings = [_roundings(side) for side in (first, second)]
    blocks = [_blocks(side) | _integers(side) for side in (first, second)]
    quantized = [bool(roundings[at] or blocks[at]) for at in (0, 1)]
    if quantized[0] == quantized[1]:
        return None
    at = quantized.index(True)
    side, rounded, taken = (first, second)[at], roundings[at], blocks[at]
    for i in taken:
        takes = side.takes[i]
        side.takes[i] = tuple(takes[at] for at in _PLACES[side.nodes[i].op] if at < len(takes))
    side.nodes = [_as_float(node) for node in side.nodes]
    for i, takes in enumerate(side.takes):
        for slot, name in enumerate(takes):
            rounding = rounded.get(name)
            if rounding is None:
                continue
            maker = side.producer.get(rounding.source)
            is_stored = rounding.source in side.stored
            if side.nodes[i].op in _MULTIPLYING or is_stored or maker is None:
                node = taken.setdefault(i, RoundedNode())
                node.inputs[slot] = rounding
            else:
                node = taken.setdefault(maker[0], RoundedNode())
                node.output = rounding.format
            node.nodes.update(rounding.nodes)
    for value in side.outputs:
        rounding = rounded.get(value.name)
        if rounding is not None:
            maker = side.producer[rounding.source]
            node = taken.setdefault(maker[0], RoundedNode())
            node.output = rounding.format
            node.nodes.update(rounding.nodes)
            side.producer[value.name] = maker
    folded = _rounding_nodes(side, rounded)
    taken = {i: node for i, node in taken.items() if i not in folded}
    _read_through(side, rounded)
    return RoundedSide(side, taken, folded)


def _blocks(side: DefUse) -> dict[int, RoundedNode]:
    """Products whose weight is stored in blocks of a few bits, with the weight."""
    products: dict[int, RoundedNode] = {}
    for i, node in enumerate(side.nodes):
        if node.op == BLOCKED and len(node.inputs) > 2 and node.inputs[1] in side.stored:
            bits, block = (int(node.attributes.get(name, 0)) for name in ("bits", "block_size"))
            sign = "u" if len(node.inputs) > 3 and node.inputs[3] else ""
            scales = side.stored.get(node.inputs[2])
            rows = int(node.attributes.get("N", 0))
            if scales is not None and scales.payload is not None and rows and scales.elements % rows == 0:
                each = scales.array().reshape(rows, -1)
                # a scale for each channel, equal in all of its blocks
                block = 0 if (each == each[:, :1]).all() else block
            weight = Rounding(
                node.inputs[1], f"{sign}int{bits}", (), node.inputs[2], block=block, packed=node
            )
            products[i] = RoundedNode({1: weight})
    return products


def _integers(side: DefUse) -> dict[int, RoundedNode]:
    """Layers that compute with integers throughout, with the codes of their inputs and output."""
    layers: dict[int, RoundedNode] = {}
    for i, node in enumerate(side.nodes):
        if node.op not in _INTEGER:
            continue
        layer = layers[i] = RoundedNode()
        axis = 0 if node.op == "QLinearConv" or node.attributes.get("transB") else 1
        for slot, at in enumerate(_PLACES[node.op]):
            codes = _input(node, at)
            if slot == 2 and codes in side.stored:  # a bias has the scales of both operands
                layer.inputs[slot] = Rounding(codes, side.stored[codes].dtype, ())
            elif slot < 2 and codes:
                scale, zero = _input(node, at + 1), _input(node, at + 2)
                layer.inputs[slot] = Rounding(codes, _codes(side, zero), (), scale, zero, axis)
        output_zero = _input(node, 8 if node.op == "QGemm" else 7)
        if output_zero:
            layer.output = _codes(side, output_zero)
    return layers


def _as_float(node: Node) -> Node:
    """A QOperator layer as the float operator that it stands for; other nodes unchanged."""
    if node.op not in _INTEGER:
        return node
    defaults = {"beta": 1.0} if node.op == "QGemm" else {}
    attributes = {**defaults, **node.attributes}
    op, ends = _INTEGER[node.op], (node.inputs, node.outputs)
    return Node(op, *ends, name=node.name, attributes=attributes, metadata=node.metadata)


def _input(node: Node, at: int) -> str:
    return node.inputs[at] if at < len(node.inputs) else ""


def _codes(side: DefUse, zero: str) -> str:
    """The type of codes, from their zero point; uint8 without one."""
    return side.stored[zero].dtype if zero in side.stored else "uint8"


def _roundings(side: DefUse) -> dict[str, Rounding]:
    """Roundings by the rounded value; several in a row are joined."""
    by_value: dict[str, Rounding] = {}
    for i, node in enumerate(side.nodes):
        rounding = _rounding(side, i, node) or _cast_back(side, i, node, by_value)
        if rounding is None:
            continue
        inner = by_value.get(rounding.source)
        if inner is not None:
            rounding = Rounding(inner.source, rounding.format, (*inner.nodes, *rounding.nodes))
        by_value[node.outputs[0]] = rounding
    ends = {value.name for value in side.outputs}
    # an unread value, and an input that is a rounded output, get rows of their own: no layer has them
    return {
        name: rounding
        for name, rounding in by_value.items()
        if (rounding.source in side.producer if name in ends else name in side.users)
    }


def _cast_back(side: DefUse, i: int, node: Node, roundings: Mapping[str, Rounding]) -> Rounding | None:
    """A value that was cast to float32, rounded, and cast back to its float type."""
    inner = roundings.get(node.inputs[0]) if node.inputs and node.op == "Cast" and not node.domain else None
    if inner is None or _code(node, "to") not in ("float16", "float64"):
        return None
    before = side.producer.get(inner.source)
    maker = side.nodes[before[0]] if before is not None else None
    if before is not None and maker is not None and maker.op == "Cast" and _code(maker, "to") == "float32":
        return replace(inner, source=maker.inputs[0], nodes=(i, before[0], *inner.nodes))
    return replace(inner, nodes=(i, *inner.nodes)) if inner.source in side.stored else None


def _rounding(side: DefUse, i: int, node: Node) -> Rounding | None:
    """The rounding whose last node this is; None for any other node."""
    if not node.inputs:
        return None
    source = node.inputs[0]
    before = side.producer.get(source)
    maker = side.nodes[before[0]] if before is not None else None
    if node.domain in QUANTIZERS:
        name = _quantizer(side, node)
        named_scale = (
            name.startswith(("fixed", "float")) or len(node.inputs) < 2
        )  # the name of the format gives the scale
        return Rounding(source, name, (i,), scale="" if named_scale else node.inputs[1])
    if node.op == "DequantizeLinear":
        scale, zero = (*node.inputs[1:3], "", "")[:2]
        fields = {"scale": scale, "zero": zero, "axis": int(node.attributes.get("axis", 1))}
        fields["block"] = int(node.attributes.get("block_size", 0))
        if source in side.stored:
            return Rounding(source, side.stored[source].dtype, (i,), **fields)  # type: ignore[arg-type]
        if maker is not None and before is not None and maker.op == "QuantizeLinear":
            zero_point = side.stored.get(_input(maker, 2))
            kind = _code(maker, "output_dtype") if zero_point is None else zero_point.dtype
            return Rounding(maker.inputs[0], kind or "uint8", (before[0], i))
        if maker is not None and maker.op in _INTEGER:
            return Rounding(source, _codes(side, zero), (i,))
    if node.op == "QuantizeLinear":
        users = side.users.get(node.outputs[0], ())
        if any(side.nodes[user].op in _INTEGER for user, _ in users):
            return Rounding(source, _codes(side, _input(node, 2)), (i,))
    if node.op == "Cast" and not node.domain and _code(node, "to") == "float32":
        if source in side.stored and side.stored[source].dtype.startswith(_NARROW):
            return Rounding(source, side.stored[source].dtype, (i,))
        if maker is not None and before is not None and maker.op == "Cast" and maker.inputs:
            narrow = _code(maker, "to")
            return Rounding(maker.inputs[0], narrow, (before[0], i)) if narrow.startswith(_NARROW) else None
    return None


def _code(node: Node, name: str) -> str:
    """The element type that an attribute names; '' for none."""
    code = node.attributes.get(name, 0)
    return DTYPES[code].name if code in DTYPES else ""


def _quantizer(side: DefUse, node: Node) -> str:
    """The format of a quantizer's call; for QONNX, from its operands."""

    def number(at: int) -> float | None:
        tensor = side.stored.get(node.inputs[at]) if len(node.inputs) > at else None
        return float(tensor.array().reshape(-1)[0]) if tensor is not None and tensor.elements else None

    if node.op == "IntQuant" and (bits := number(3)) is not None:
        signed, scale = bool(node.attributes.get("signed", 1)), side.stored.get(node.inputs[1])
        if bits == 2 and signed and node.attributes.get("narrow", 0):
            return "ternary"
        if scale is not None and scale.elements == 1 and signed and number(2) == 0:
            share, exponent = math.frexp(number(1) or 0.0)
            if share == 0.5 and exponent <= 1:
                return f"fixed{bits:g}.{1 - exponent}"
        return f"{'' if signed else 'u'}int{bits:g}"
    if node.op == "FloatQuant" and (e := number(2)) is not None and (m := number(3)) is not None:
        return f"floatE{e:g}M{m:g}"
    return {"BipolarQuant": "binary"}.get(node.op, node.op)


def _rounding_nodes(side: DefUse, rounded: Mapping[str, Rounding]) -> set[int]:
    """The rounding nodes that no other node reads."""
    places = {i for rounding in rounded.values() for i in rounding.nodes}
    ends = {value.name for value in side.outputs}
    for i in sorted(places, reverse=True):
        for name in side.nodes[i].outputs:
            users = {user for user, _ in side.users.get(name, ())}
            if name not in rounded and (name in ends or not users <= places):
                places.discard(i)
    return places


def _read_through(side: DefUse, rounded: Mapping[str, Rounding]) -> None:
    """Makes every reader of a rounded value read its source."""
    for i, takes in enumerate(side.takes):
        if any(name in rounded for name in takes):
            side.takes[i] = tuple(rounded[name].source if name in rounded else name for name in takes)
    side.users.clear()
    for i, takes in enumerate(side.takes):
        for slot, name in enumerate(takes):
            if name:
                side.users.setdefault(name, []).append((i, slot))


def in_range(original: DefUse, partners: Sequence[int | None], rounded: RoundedSide) -> dict[int, int]:
    """Activations that a quantizer dropped because the range of its integers includes their limits.

    Args:
        original: The float graph.
        partners: Of its nodes, in the quantized graph.
        rounded: The quantized graph.

    Returns:
        By position of each activation: the position of the node that rounds.
    """
    written = DefUse(rounded.side.model)  # with every node's own inputs
    nodes, ends = written.nodes, {value.name for value in written.outputs}
    absorbed: dict[int, int] = {}
    for at, node in enumerate(original.nodes):
        if node.domain or node.op not in ABSORBED or partners[at] is not None:
            continue
        source = original.producer.get(node.inputs[0])
        while source is not None and source[0] in absorbed:  # a Clip behind a Relu
            source = original.producer.get(original.nodes[source[0]].inputs[0])
        maker = None if source is None else partners[source[0]]
        limits = _limits(original, node)
        if source is None or maker is None or limits is None:
            continue
        layer, name = nodes[maker], nodes[maker].outputs[source[1]]
        after = [maker] if layer.op in _INTEGER else [reader for reader, _ in written.users.get(name, ())]
        if after and name not in ends and all(_keeps(nodes[place], written, limits) for place in after):
            absorbed[at] = after[0]
    return absorbed


def _limits(side: DefUse, node: Node) -> tuple[float, float] | None:
    """The least and the largest output of a Relu or a Clip; None where a limit is computed."""
    least, most = (0.0 if node.op == "Relu" else -math.inf), math.inf
    if node.op == "Relu":
        return least, most
    limits = [node.attributes.get("min", least), node.attributes.get("max", most)]
    for slot, name in enumerate(node.inputs[1:3]):
        values = _constant_values(side, name) if name else None
        if name and (values is None or values.size != 1):
            return None
        limits[slot] = limits[slot] if values is None else values.reshape(-1)[0]
    return float(limits[0]), float(limits[1])


def _constant_values(side: DefUse, name: str) -> Any:
    """The numbers of a constant value: stored, or of a Constant, through Casts; None for any other value."""
    if name in side.stored:
        return side.stored[name].array()
    producer = side.producer.get(name)
    node = None if producer is None else side.nodes[producer[0]]
    if node is not None and node.op == "Cast" and not node.domain:
        return _constant_values(side, node.inputs[0])
    value = node.attributes.get("value") if node is not None and node.op == "Constant" else None
    return value.array() if isinstance(value, Tensor) else None


def _keeps(node: Node, side: DefUse, limits: tuple[float, float]) -> bool:
    """Whether a value and its part within the limits round to the same integers."""
    slot = {"QuantizeLinear": 1, "QGemm": 7}.get(node.op, 6 if node.op in _INTEGER else 0)
    scale, zero = _input(node, slot), _input(node, slot + 1)
    if (
        not slot
        or node.domain not in ("", "com.microsoft")
        or scale not in side.stored
        or zero not in side.stored
    ):
        return False
    kind = side.stored[zero].dtype
    bits = kind.removeprefix("u").removeprefix("int")
    if not bits.isdigit():
        return False
    half = 2 ** (int(bits) - 1)
    first = 0 if kind.startswith("u") else -half
    steps, zeros = side.stored[scale].array(), side.stored[zero].array().astype(np.float64)
    with np.errstate(all="ignore"):
        low, high = (np.rint(np.asarray(end, steps.dtype) / steps) + zeros for end in limits)
    return bool((low <= first).all() and (high >= first + 2 * half - 1).all())


def rounded_text(node: Node, rounded_node: RoundedNode, side: DefUse, original: Mapping[int, Tensor]) -> str:
    """'int8, per channel, 38.2 dB': formats, granularity of scales, signal to noise of the weight.

    Args:
        node: The layer of the original.
        rounded_node: The roundings of it.
        side: The quantized graph.
        original: Weights of the float original, by input.
    """
    agreement = Agreement()
    for slot, rounding in _weights(rounded_node, side)[1].items():
        if rounding.packed is not None:
            _compare_packed(agreement, side, rounding.packed, node, original.get(slot))
        else:
            _compare(agreement, side, rounding, original.get(slot))
    snr = agreement.snr_db if agreement.elements else None
    snr_text = "" if snr is None else f", {snr:.1f} dB" if math.isfinite(snr) else ", exact"
    return f"{formats_text(node, rounded_node, side)}{snr_text}"


def _weights(rounded_node: RoundedNode, side: DefUse) -> tuple[dict[int, Rounding], dict[int, Rounding]]:
    """The stored inputs of a layer, and those of them that are not biases."""
    weights = {slot: r for slot, r in rounded_node.inputs.items() if r.source in side.stored}
    return weights, {s: r for s, r in weights.items() if len(side.stored[r.source].shape) > 1} or weights


def formats_text(node: Node, rounded_node: RoundedNode, side: DefUse) -> str:
    """'int8, per channel': the formats of a layer, and the granularity of its scales.

    Args:
        node: The layer.
        rounded_node: The roundings of it.
        side: The quantized graph.
    """
    weights, main = _weights(rounded_node, side)
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
        # MatMulNBits stores (N, blocks, bytes), with scales for each of N
        shared = 1 if rounding.packed is not None else channels_per_scale(node, slot, shape, scales)
        channels = "per channel" if shared == 1 else f"per {shared} channels"
        parts.append(
            f"block {rounding.block}" if rounding.block else "per tensor" if scales == 1 else channels
        )
    return ", ".join(parts)


def _compare(agreement: Agreement, side: DefUse, rounding: Rounding, original: Tensor | None) -> None:
    """Compares a dequantized weight with the original's; does nothing where that is not possible."""
    codes = side.stored[rounding.source]
    if original is None or original.shape != codes.shape or not codes.shape:
        return
    maker = side.nodes[rounding.nodes[-1]] if rounding.nodes else None
    try:
        if maker is not None and maker.domain in QUANTIZERS:
            rounded = quantizer_values(maker, side.stored) if maker.inputs[0] == rounding.source else None
            if rounded is not None:
                agreement.add(original.array().reshape(-1, 1), rounded.reshape(-1, 1))
            return
        was, now = original.array(), codes.array()
        scale, zero = (
            side.stored[n].array() if n in side.stored else None for n in (rounding.scale, rounding.zero)
        )
    except BadModel:
        return
    if scale is None and not codes.dtype.startswith(_NARROW):
        return
    axis = rounding.axis % len(codes.shape)
    rows = max(1, _SLAB // max(1, codes.elements // max(1, codes.shape[0])))
    rows = -(-rows // max(1, rounding.block)) * max(1, rounding.block)
    for at in range(0, codes.shape[0], rows):
        part = slice(at, at + rows)
        values = now[part].astype(np.float32)
        for operation, table in ((np.subtract, zero), (np.multiply, scale)):
            if table is not None:
                values = operation(values, _along(table, values.shape, axis, rounding.block, part))
        agreement.add(was[part].reshape(-1, 1), values.reshape(-1, 1))


def _compare_packed(
    agreement: Agreement, side: DefUse, packed: Node, node: Node, original: Tensor | None
) -> None:
    """The same for a weight in blocks, stored as (N, K); `node` says how the original is stored."""
    name = packed.inputs[1]
    unpack = opened_weights([packed], side.stored).get(name)
    if original is None or unpack is None:
        return
    codes = side.stored[name]
    numbers = unpack(Numbers(name, codes.dtype, codes.shape, codes.nbytes, lambda: iter(())))
    (k, n), scales = numbers.shape, numbers.scales
    try:
        was = original.array()
        was = was.T if node.attributes.get("transB") else was
        if was.shape != (k, n) or scales is None or scales.zero is None or numbers.part is None:
            return
        scale, zero = scales.scale().astype(np.float32), scales.zero().astype(np.float32)
        rows = max(1, _SLAB // n // scales.block) * scales.block
        for at in range(0, k, rows):
            end = min(at + rows, k)
            values = np.concatenate(list(numbers.part(at * n, end * n))).reshape(-1, n).astype(np.float32)
            here = slice(at // scales.block, -(-end // scales.block))
            values -= np.repeat(zero[here], scales.block, 0)[: end - at]
            values *= np.repeat(scale[here], scales.block, 0)[: end - at]
            agreement.add(was[at:end].reshape(-1, 1), values.reshape(-1, 1))
    except BadModel:
        return


def _along(table: Any, shape: tuple[int, ...], axis: int, block: int, rows: slice) -> Any:
    """Scales or zero points of some rows, in a shape that broadcasts to them."""
    table = table.astype(np.float32)
    if table.ndim == 0 or table.size == 1:
        return table.reshape(())
    if block:
        blocks = slice(rows.start // block, -(-rows.stop // block)) if axis == 0 else rows
        return np.repeat(table[blocks], block, axis)[tuple(slice(n) for n in shape)]
    return (table[rows] if axis == 0 else table).reshape(
        [-1 if at == axis else 1 for at in range(len(shape))]
    )
