"""Number formats as local ONNX functions of standard operators, which an unmodified onnxruntime runs.

IntQuant, FloatQuant and BipolarQuant are operators of QONNX with its inputs and attributes. QONNX therefore
reads the file and computes the same numbers. QONNX has no block formats: they have a domain of their own. A
16-bit float needs no function: two Casts round to it.
"""

from __future__ import annotations

from collections.abc import Sequence

from explorer.engine.graph.model import Function
from explorer.engine.number_formats.integer import Integer
from explorer.engine.number_formats.microscaling import Microscaling
from explorer.engine.number_formats.minifloat import Half, Minifloat
from explorer.engine.number_formats.narrow import Binary
from explorer.engine.number_formats.number_format import Grid, NumberFormat
from explorer.engine.quantize.functions import microscaling, qonnx
from explorer.engine.quantize.functions.call import FormatCall, build_casts
from explorer.facts import Dim

__all__ = ["MIN_OPSET", "FormatCall", "build_function", "call"]

MIN_OPSET = 13
"""Lowest version of the default operator set in which the functions' bodies are valid."""

DOMAIN_VERSION = 1
"""Version of the functions' domains that a calling model imports."""


def build_function(fmt: NumberFormat, opset: int) -> Function | None:
    """Returns the function that rounds to a format, or None for a 16-bit float, which two Casts round to.

    Formats of one family share a function. Its inputs and attributes distinguish them.

    Args:
        fmt: Number format.
        opset: Version of the default operator set that the model imports, at least `MIN_OPSET`.

    Raises:
        ValueError: `opset` is older than `MIN_OPSET`.
    """
    if opset < MIN_OPSET:
        raise ValueError(f"a format as a function needs operator set {MIN_OPSET}, not {opset}")
    match fmt:
        case Integer():
            return qonnx.build_int_quant(opset)
        case Minifloat():
            return qonnx.build_float_quant(opset)
        case Binary():
            return qonnx.build_bipolar_quant(opset)
        case Microscaling():
            return microscaling.build_function(fmt, opset)
    return None


def call(
    fmt: NumberFormat, grid: Grid, source: str, target: str, shape: Sequence[Dim], *, axis: int = -1
) -> FormatCall:
    """Builds the nodes that round the value `source` to a format and names the result `target`.

    Source and target are float32 and have the same shape. Names of added values begin with `target` and a
    slash.

    Args:
        fmt: Number format.
        grid: Grid of the format's numbers.
        source: Name of the value to round.
        target: Name of the rounded value.
        shape: Shape of both values. The size of an axis with a scale for each block must be known.
        axis: Axis of the format's own blocks.
    """
    match fmt:
        case Half():
            return build_casts(fmt, source, target, shape)
        case Microscaling():
            return microscaling.build_block_call(fmt, source, target, axis)
        case Integer():
            return qonnx.build_integer_call(fmt, grid, source, target, shape)
        case Minifloat():
            return qonnx.build_float_call(fmt, grid, source, target, shape)
        case Binary():
            return qonnx.build_bipolar_call(grid, source, target, shape)
    raise TypeError(fmt)
