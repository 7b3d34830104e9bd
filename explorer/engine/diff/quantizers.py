"""Computes the result of a quantizer call for a stored weight: QONNX quantizers and MX block formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from explorer.engine.graph.model import Node, Tensor
from explorer.engine.number_formats import find_format, microscaling

Array = np.ndarray[Any, np.dtype[Any]]

MX_DOMAIN = "explorer.mx"
"""Domain of the functions for block formats. Each function has the name of its format."""


def compute_quantizer_values(node: Node, tensors: Mapping[str, Tensor]) -> Array | None:
    """Computes the result of a quantizer call.

    Args:
        node: Call of IntQuant, FloatQuant, BipolarQuant or a block format.
        tensors: Stored tensors of the graph, by name, including the call's first input.

    Returns:
        The rounded values, or None if an input is not stored or the call is not supported.

    Raises:
        BadModel: A tensor cannot be read.
    """
    if any(name and name not in tensors for name in node.inputs):
        return None
    x, *parameters = (tensors[name].array().astype(np.float32) for name in node.inputs)
    attribute = node.attributes.get
    if node.domain == MX_DOMAIN:
        number_format = find_format(node.op) if node.op in microscaling.EXAMPLES else None
        if number_format is None:
            return None
        return number_format.round_values(x, number_format.fit_grid(x), int(attribute("axis", -1)))
    if not parameters:
        return None
    scale = parameters[0]
    parameter_values = [float(values.reshape(-1)[0]) for values in parameters[1:] if values.size]
    if node.op == "BipolarQuant":
        return np.where(x >= 0, scale, -scale)
    if attribute("rounding_mode", "ROUND") not in ("ROUND", b"ROUND"):
        return None
    if node.op == "IntQuant" and len(parameters) == 3:
        signed = bool(attribute("signed", 1))
        narrow = int(attribute("narrow", 0))
        half = 2.0 ** (parameter_values[1] - 1)
        smallest, largest = (narrow - half, half - 1) if signed else (0.0, 2 * half - 1 - narrow)
        with np.errstate(all="ignore"):
            codes: Array = np.rint(np.clip(x / scale + parameters[1], smallest, largest)) - parameters[1]
            values: Array = codes * scale
        return values
    if node.op == "FloatQuant" and len(parameters) == 5:
        with np.errstate(all="ignore"):
            scaled = x / scale
            # numbers below the smallest exponent are subnormal
            exponents = np.maximum(np.frexp(scaled)[1] - 1, 1 - int(parameter_values[2]))
            step = np.ldexp(np.float64(1), exponents - int(parameter_values[1]))
            rounded_values: Array = (
                np.clip(np.rint(scaled / step) * step, -parameters[4], parameters[4]) * scale
            )
        return rounded_values
    return None
