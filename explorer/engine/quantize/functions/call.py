"""Call of a number format's function: nodes, and the scales that they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.engine.graph.model import Node, Tensor, Value, dtype_code, tensor_from_array
from explorer.engine.number_formats.minifloat import Half
from explorer.engine.number_formats.number_format import Array, Grid, along
from explorer.facts import Dim


class FormatCall(Struct, frozen=True):
    """The additions to a graph for one value.

    Attributes:
        nodes: The last one makes the value.
        tensors: Initializers that they read.
        values: Values between the nodes.
    """

    nodes: tuple[Node, ...]
    tensors: tuple[Tensor, ...] = ()
    values: tuple[Value, ...] = ()


def calling(
    domain: str,
    op: str,
    source: str,
    target: str,
    operands: Mapping[str, Array],
    attributes: Mapping[str, Any] | None = None,
) -> FormatCall:
    """One call of a function whose further inputs are float32 initializers, by their role."""
    tensors = tuple(
        tensor_from_array(f"{target}/{role}", np.asarray(array, np.float32))
        for role, array in operands.items()
    )
    inputs = (source, *(tensor.name for tensor in tensors))
    node = Node(op, inputs, (target,), name=target, domain=domain, attributes=attributes)
    return FormatCall((node,), tensors)


def casts(fmt: Half, source: str, target: str, shape: Sequence[Dim]) -> FormatCall:
    """A Cast there and a Cast back."""
    between = Value(f"{target}/{fmt.name}", fmt.element_type, tuple(shape))
    there = Node(
        "Cast", (source,), (between.name,), between.name, attributes={"to": dtype_code(fmt.element_type)}
    )
    back = Node("Cast", (between.name,), (target,), target, attributes={"to": dtype_code("float32")})
    return FormatCall((there, back), (), (between,))


def spread(values: Array, grid: Grid, shape: Sequence[Dim]) -> Array:
    """Scales or zero points, in a shape that broadcasts to the value's."""
    if not grid.block:
        return along(values, (1,) * len(shape), grid)
    return along(values, tuple(size if isinstance(size, int) else 1 for size in shape), grid)
