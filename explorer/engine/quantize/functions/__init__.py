"""Number formats as local functions of standard operators, which stock onnxruntime runs as they stand.

IntQuant, FloatQuant and BipolarQuant are QONNX's operators, with its inputs and attributes, so that QONNX
reads the file and computes the same; block formats, which QONNX has not, are in a domain of their own. A
16-bit float needs no function: a Cast there and a Cast back say it.
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
from explorer.engine.quantize.functions.call import FormatCall, casts
from explorer.facts import Dim

__all__ = ["LEAST_OPSET", "FormatCall", "call", "function_for"]

LEAST_OPSET = 13
"""Version of the default operator set from which on the functions' bodies are understood."""

DOMAIN_VERSION = 1
"""Version of the functions' domains, which a model that calls them imports."""


def function_for(fmt: NumberFormat, opset: int) -> Function | None:
    """The function that computes a format; None for a 16-bit float.

    Formats of one family share a function: its inputs and attributes distinguish them.

    Args:
        fmt: The format.
        opset: Version of the default operator set that the model imports, at least `LEAST_OPSET`.

    Raises:
        ValueError: The operator set is older.
    """
    if opset < LEAST_OPSET:
        raise ValueError(f"a format as a function needs operator set {LEAST_OPSET}, not {opset}")
    match fmt:
        case Integer():
            return qonnx.int_quant(opset)
        case Minifloat():
            return qonnx.float_quant(opset)
        case Binary():
            return qonnx.bipolar_quant(opset)
        case Microscaling():
            return microscaling.function(fmt, opset)
    return None


def call(
    fmt: NumberFormat, grid: Grid, source: str, target: str, shape: Sequence[Dim], *, axis: int = -1
) -> FormatCall:
    """The nodes that round the value `source` to a format, as `target`, and their inputs.

    Both are float32, of the same shape. Names of added values begin with `target` and a slash.

    Args:
        fmt: The format.
        grid: The grid of its numbers.
        source: Name of the value to round.
        target: Name of the rounded value.
        shape: Shape of both. Sizes along an axis with a scale for each block must be known.
        axis: The axis of the format's own blocks.
    """
    match fmt:
        case Half():
            return casts(fmt, source, target, shape)
        case Microscaling():
            return microscaling.block_call(fmt, source, target, axis)
        case Integer():
            return qonnx.called_integer(fmt, grid, source, target, shape)
        case Minifloat():
            return qonnx.called_float(fmt, grid, source, target, shape)
        case Binary():
            return qonnx.called_bipolar(grid, source, target, shape)
    raise TypeError(fmt)
