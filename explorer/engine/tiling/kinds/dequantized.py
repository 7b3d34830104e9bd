"""Gemm, MatMul and Conv between DequantizeLinear nodes, as a quantiser writes them ('QDQ').

Where both operands were quantised, the tiles are products of the stored bytes, and the sum in int32 is turned
into floats once: that is what such a graph tells an accelerator to do. The QuantizeLinear behind it stays.
Where only the weight was, the tiles are of floats, and the weight is stored as the floats that it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.graph.model import Node, tensor_from_array
from explorer.engine.tiling.builder import Region
from explorer.engine.tiling.kinds import conv, linear
from explorer.engine.tiling.kinds.integer import (
    BYTES,
    Spread,
    Tail,
    Terms,
    integral,
    matrix,
    numbers,
    rescaled,
    slid,
)
from explorer.engine.tiling.sites import Look, Site

__all__ = ["KINDS"]

Array = np.ndarray[Any, np.dtype[Any]]


class _Quantised(Struct, frozen=True):
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


def _quantised(look: Look, name: str) -> _Quantised | None:
    """How a value was quantised; None if it was not, or in a way that is not tiled."""
    node = look.constants.producers.get(name)
    if node is None or node.op != "DequantizeLinear" or node.attributes.get("block_size"):
        return None
    scale = numbers(look, node.inputs[1])
    point = node.inputs[2] if len(node.inputs) > 2 else ""
    zero = numbers(look, point) if point else np.zeros((), np.int8)
    if scale is None or zero is None or scale.dtype != np.float32 or scale.ndim > 1:
        return None
    return _Quantised(node, node.inputs[0], scale, zero, int(node.attributes.get("axis", 1)))


def _type(look: Look, name: str) -> str | None:
    stored = look.constants.resolve(name)
    return stored[0].dtype if stored is not None else look.dtype(name)


def _integers(node: Node, look: Look) -> Site | str | None:
    """The site in integers; None where the operator is one of floats."""
    x, w = (_quantised(look, name) for name in node.inputs[:2])
    if x is None or w is None or node.inputs[0] == node.inputs[1]:
        return None
    if _type(look, x.name) not in BYTES or _type(look, w.name) not in BYTES or x.name in look.constants:
        return None
    if x.scale.size != 1 or x.zero.size != 1:
        return None
    attributes = node.attributes
    if any(float(attributes.get(factor, 1.0)) != 1.0 for factor in ("alpha", "beta")):
        return None
    if w.scale.size != 1 or w.zero.size != 1:
        shape = look.shape(w.name)
        rank = len(shape) if not isinstance(shape, str) else 2
        columns = 0 if node.op == "Conv" or attributes.get("transB", 0) else rank - 1
        if w.axis % rank != columns or w.name not in look.constants:
            return None
    scale = (x.scale.reshape(()) * w.scale.reshape(-1)).astype(np.float32)
    absorbed = [x.node, w.node]
    terms = Terms(int(x.zero.reshape(())), _one(w.zero))
    tail = rescaled(scale)
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    if bias:
        found = _bias(look, bias, scale)
        if found is None:
            return None
        stored, maker = found
        absorbed += [maker] if maker is not None else []
        if stored.dtype == np.int32:
            terms = replace(terms, bias=stored)
        else:
            tail = _added(tail, stored)
    if node.op == "Conv":
        base = slid(node, look, x.name, w.name, terms.a)
    else:
        base = matrix(node, look, x.name, w.name, node.op)
    site = integral(node, look, base, terms, tail)
    return replace(site, absorbed=tuple(absorbed)) if isinstance(site, Site) else site


def _one(zero: Array) -> int | Array:
    flat = zero.reshape(-1).astype(np.int64)
    return int(flat[0]) if (flat == flat[0]).all() else flat


def _bias(look: Look, name: str, scale: Array) -> tuple[Array, Node | None] | None:
    """The bias in the integers of the sum if it was quantised so, else in floats; None if it is computed."""
    found = _quantised(look, name)
    if found is None:
        plain = numbers(look, name)
        return None if plain is None else (plain.astype(np.float32), None)
    stored = numbers(look, found.name)
    if stored is None:
        return None
    same = np.array_equal(np.broadcast_to(found.scale, scale.shape), scale) if found.scale.ndim < 2 else False
    if stored.dtype == np.int32 and same and not found.zero.any():
        return stored, found.node
    return ((stored - found.zero.astype(np.int64)).astype(np.float32) * found.scale), found.node


def _added(tail: Tail, bias: Array) -> Tail:
    """A tail with a bias in floats behind it."""

    def both(region: Region, z: str, spread: Spread) -> str:
        z = tail(region, z, spread)
        values = np.ascontiguousarray(spread(bias).astype(np.float32))
        return region.add(
            "Add", (z, region.constant(tensor_from_array("", values), "bias_float")), "float_biased"
        )

    return both


def _or_floats(
    kind: Callable[[Node, Look], Site | str],
) -> Callable[[Node, Look], Site | str]:
    def found(node: Node, look: Look) -> Site | str:
        site = _integers(node, look)
        return kind(node, look) if site is None else site

    return found


KINDS: Mapping[tuple[str, str], Callable[[Node, Look], Site | str]] = {
    ("", "Gemm"): _or_floats(linear.product),
    ("", "MatMul"): _or_floats(linear.product),
    ("", "Conv"): _or_floats(conv.convolution),
}
