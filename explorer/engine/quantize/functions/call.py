"""Nodes that call a number format's function, and the scales that they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.engine.graph.model import Node, Tensor, Value, build_tensor, get_dtype_code
from explorer.engine.number_formats.minifloat import Half
from explorer.engine.number_formats.number_format import Array, Grid, reshape_for_tensor
from explorer.facts import Dim


class FormatCall(Struct, frozen=True):
    """Nodes, tensors and values that round one value to a number format.

    Attributes:
        nodes: Nodes in order; the last one produces the rounded value.
        tensors: Initializers that the nodes read.
        values: Values between the nodes.
    """

    nodes: tuple[Node, ...]
    tensors: tuple[Tensor, ...] = ()
    values: tuple[Value, ...] = ()


def build_call(
    domain: str,
    op: str,
    source: str,
    target: str,
    operands: Mapping[str, Array],
    attributes: Mapping[str, Any] | None = None,
) -> FormatCall:
    """Builds the call of a function on `source`, with each of `operands` as a float32 initializer."""
    tensors = tuple(
        build_tensor(f"{target}/{role}", np.asarray(array, np.float32)) for role, array in operands.items()
    )
    inputs = (source, *(tensor.name for tensor in tensors))
    node = Node(op, inputs, (target,), name=target, domain=domain, attributes=attributes)
    return FormatCall((node,), tensors)


def build_casts(fmt: Half, source: str, target: str, shape: Sequence[Dim]) -> FormatCall:
    """Builds a Cast to a 16-bit float and a Cast back to float32."""
    between = Value(f"{target}/{fmt.name}", fmt.element_type, tuple(shape))
    narrowing = Node(
        "Cast", (source,), (between.name,), between.name, attributes={"to": get_dtype_code(fmt.element_type)}
    )
    widening = Node("Cast", (between.name,), (target,), target, attributes={"to": get_dtype_code("float32")})
    return FormatCall((narrowing, widening), (), (between,))


def make_broadcastable(values: Array, grid: Grid, shape: Sequence[Dim]) -> Array:
    """Reshapes scales or zero points so that they broadcast to the shape of the value."""
    if not grid.block:
        return reshape_for_tensor(values, (1,) * len(shape), grid)
    return reshape_for_tensor(values, tuple(size if isinstance(size, int) else 1 for size in shape), grid)
