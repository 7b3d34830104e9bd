"""Gemm, MatMul and Conv between DequantizeLinear nodes, as a quantiser writes them ('QDQ').

Where both operands were quantised, the tiles are products of the stored bytes, and the sum in int32 is turned
into floats once: that is what such a graph tells an accelerator to do. The QuantizeLinear behind it stays.
Where only the weight was, the tiles are of floats, and the weight is stored as the floats that it stands for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.graph.model import Node, tensor_from_array
from explorer.engine.tiling.builder import GraphBuilder
from explorer.engine.tiling.kinds import conv, integer, linear
from explorer.engine.tiling.sites import Kinds, Site, SiteContext

Array = np.ndarray[Any, np.dtype[Any]]


class _QuantizedOperand(Struct, frozen=True):
    """An operand behind a DequantizeLinear.

    Attributes:
        node: The DequantizeLinear.
        name: Value name of the integers.
        scale: One number, or one for every element along `axis`.
        zero: The same in integers.
        axis: Along which they differ.
    """

    node: Node
    name: str
    scale: Array
    zero: Array
    axis: int


def _quantised(context: SiteContext, name: str) -> _QuantizedOperand | None:
    """How a value was quantised; None if it was not, or in a way that is not tiled."""
    node = context.constants.producers.get(name)
    if node is None or node.op != "DequantizeLinear" or node.attributes.get("block_size"):
        return None
    scale = integer.numbers(context, node.inputs[1])
    point = node.inputs[2] if len(node.inputs) > 2 else ""
    zero = integer.numbers(context, point) if point else np.zeros((), np.int8)
    if scale is None or zero is None or scale.dtype != np.float32 or scale.ndim > 1:
        return None
    return _QuantizedOperand(node, node.inputs[0], scale, zero, int(node.attributes.get("axis", 1)))


def _type(context: SiteContext, name: str) -> str | None:
    stored = context.constants.resolve(name)
    return stored[0].dtype if stored is not None else context.dtype(name)


def _integers(node: Node, context: SiteContext) -> Site | None:
    """The site in integers; None where the operator is one of floats."""
    x, w = (_quantised(context, name) for name in node.inputs[:2])
    if x is None or w is None or node.inputs[0] == node.inputs[1]:
        return None
    if (
        _type(context, x.name) not in integer.BYTES
        or _type(context, w.name) not in integer.BYTES
        or x.name in context.constants
    ):
        return None
    if x.scale.size != 1 or x.zero.size != 1:
        return None
    attributes = node.attributes
    if any(float(attributes.get(factor, 1.0)) != 1.0 for factor in ("alpha", "beta")):
        return None
    if w.scale.size != 1 or w.zero.size != 1:
        rank = len(context.known(w.name) or (0, 0))
        columns = 0 if node.op == "Conv" or attributes.get("transB", 0) else rank - 1
        if w.axis % rank != columns or w.name not in context.constants:
            return None
    scale = (x.scale.reshape(()) * w.scale.reshape(-1)).astype(np.float32)
    absorbed = [x.node, w.node]
    terms = integer.Terms(int(x.zero.reshape(())), integer.single(w.zero))
    tail = integer.rescaling(scale)
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    if bias:
        found = _bias(context, bias, scale)
        if found is None:
            return None
        stored, maker = found
        absorbed += [maker] if maker is not None else []
        if stored.dtype == np.int32:
            terms = replace(terms, bias=stored)
        else:
            tail = _added(tail, stored)
    if node.op == "Conv":
        base = integer.slid(node, context, x.name, w.name, terms.a)
    else:
        base = integer.matrix(node, context, x.name, w.name, node.op)
    return replace(integer.integral(node, context, base, terms, tail), absorbed=tuple(absorbed))


def _bias(context: SiteContext, name: str, scale: Array) -> tuple[Array, Node | None] | None:
    """The bias in the integers of the sum if it was quantised so, else in floats; None if it is computed."""
    found = _quantised(context, name)
    if found is None:
        plain = integer.numbers(context, name)
        return None if plain is None else (plain.astype(np.float32), None)
    stored = integer.numbers(context, found.name)
    if stored is None:
        return None
    same = np.array_equal(np.broadcast_to(found.scale, scale.shape), scale) if found.scale.ndim < 2 else False
    if stored.dtype == np.int32 and same and not found.zero.any():
        return stored, found.node
    return ((stored - found.zero.astype(np.int64)).astype(np.float32) * found.scale), found.node


def _added(tail: integer.Tail, bias: Array) -> integer.Tail:
    """A tail with a bias in floats behind it."""

    def both(builder: GraphBuilder, z: str, spread: integer.Spread) -> str:
        z = tail(builder, z, spread)
        values = np.ascontiguousarray(spread(bias).astype(np.float32))
        return builder.add(
            "Add", (z, builder.constant(tensor_from_array("", values), "bias_float")), "float_biased"
        )

    return both


def _or_floats(
    kind: Callable[[Node, SiteContext], Site],
) -> Callable[[Node, SiteContext], Site]:
    def found(node: Node, context: SiteContext) -> Site:
        site = _integers(node, context)
        return kind(node, context) if site is None else site

    return found


KINDS: Kinds = {
    ("", "Gemm"): _or_floats(linear.product),
    ("", "MatMul"): _or_floats(linear.product),
    ("", "Conv"): _or_floats(conv.convolution),
}
