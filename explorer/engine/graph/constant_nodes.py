"""Constant nodes: reads the tensor of a Constant from whichever attribute holds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from explorer.engine.graph.model import AttributeRef, Node, Tensor, build_tensor

_SCALARS: Mapping[str, Callable[[Any], Any]] = {
    "value_float": np.float32,
    "value_floats": lambda values: np.asarray(values, np.float32),
    "value_int": np.int64,
    "value_ints": lambda values: np.asarray(values, np.int64),
}
"""Conversions to numpy for the attributes of a Constant that hold numbers without a tensor, by attribute."""


def read_constant(node: Node) -> Tensor | None:
    """Returns the tensor of a Constant node, or None.

    None means that the node is no Constant, holds strings or a sparse tensor, or takes its value from the
    enclosing function's call.
    """
    if node.op != "Constant" or node.domain:
        return None
    for name, value in node.attributes.items():
        if isinstance(value, Tensor):
            return value
        if name in _SCALARS and not isinstance(value, AttributeRef):
            return build_tensor(name, np.asarray(_SCALARS[name](value)))
    return None
