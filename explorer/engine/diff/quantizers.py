"""Results of quantizer function calls for a stored weight: QONNX's quantizers, MX blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from explorer.engine.graph.model import Node, Tensor
from explorer.engine.number_formats import format_of, microscaling

Array = np.ndarray[Any, np.dtype[Any]]

MX_DOMAIN = "explorer.mx"
"""Domain of the functions of block formats, which have the names of the formats."""


def quantizer_values(node: Node, tensors: Mapping[str, Tensor]) -> Array | None:
    """The result of a call for its first input; None if stored tensors do not decide it.

    Args:
        node: A call of IntQuant, FloatQuant or BipolarQuant, or of a block format.
        tensors: Tensors of its graph, its first input among them.

    Raises:
        BadModel: A tensor cannot be read.
    """
    if any(name and name not in tensors for name in node.inputs):
        return None
    x, *rest = (tensors[name].array().astype(np.float32) for name in node.inputs)
    say = node.attributes.get
    if node.domain == MX_DOMAIN:
        fmt = format_of(node.op) if node.op in microscaling.EXAMPLES else None
        return None if fmt is None else fmt.rounded(x, fmt.fitted(x), int(say("axis", -1)))
    if not rest:
        return None
    scale, numbers = rest[0], [float(values.reshape(-1)[0]) for values in rest[1:] if values.size]
    if node.op == "BipolarQuant":
        return np.where(x >= 0, scale, -scale)
    if say("rounding_mode", "ROUND") not in ("ROUND", b"ROUND"):
        return None
    if node.op == "IntQuant" and len(rest) == 3:
        signed, narrow, half = bool(say("signed", 1)), int(say("narrow", 0)), 2.0 ** (numbers[1] - 1)
        least, largest = (narrow - half, half - 1) if signed else (0.0, 2 * half - 1 - narrow)
        with np.errstate(all="ignore"):
            codes: Array = np.rint(np.clip(x / scale + rest[1], least, largest)) - rest[1]
            values: Array = codes * scale
        return values
    if node.op == "FloatQuant" and len(rest) == 5:
        with np.errstate(all="ignore"):
            scaled = x / scale
            exponents = np.maximum(np.frexp(scaled)[1] - 1, 1 - int(numbers[2]))  # below: subnormal
            step = np.ldexp(np.float64(1), exponents - int(numbers[1]))
            within: Array = np.clip(np.rint(scaled / step) * step, -rest[4], rest[4]) * scale
        return within
    return None
