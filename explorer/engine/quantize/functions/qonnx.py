"""QONNX's quantizers: IntQuant, FloatQuant and BipolarQuant, with bodies of standard operators.

Specification: https://github.com/fastmachinelearning/qonnx/tree/main/docs/qonnx-custom-ops. The bodies
compute in float32, in the order of QONNX's own code. They support one rounding mode, half to even. They
differ from QONNX in one case: if x / scale is infinite, FloatQuant saturates here, but gives NaN in QONNX.
Codes of more than 24 bits (an int32 bias) are only as exact as float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from explorer.engine.graph.model import Function
from explorer.engine.number_formats.integer import Integer
from explorer.engine.number_formats.minifloat import Float8, Minifloat
from explorer.engine.number_formats.narrow import Ternary
from explorer.engine.number_formats.number_format import Grid
from explorer.engine.quantize.functions.body import FunctionBody, step_at
from explorer.engine.quantize.functions.call import FormatCall, broadcastable, build_call
from explorer.facts import Dim

DOMAIN = "qonnx.custom_op.general"

ROUNDING = "ROUND"
"""QONNX's name of the rounding mode half to even."""


def _function(
    name: str, inputs: Sequence[str], body: FunctionBody, defaults: Mapping[str, Any], *needed: str
) -> Function:
    """Build a function with required attributes `needed` and optional attributes `defaults`."""
    nodes, opsets = tuple(body.nodes), {"": body.emission.opset}
    return Function(DOMAIN, name, tuple(inputs), ("Y",), nodes, opsets, needed, defaults)


def int_quant(opset: int) -> Function:
    """Build IntQuant: (round(clip(x / scale + zeropt)) - zeropt) x scale.

    Clipping is to the integers of `bitwidth` bits. `narrow` excludes the smallest signed or the largest
    unsigned one.
    """
    body = FunctionBody.of_opset(opset)
    one, signed, narrow = body.real(1, "one"), body.flag("signed"), body.flag("narrow")
    unsigned = body.op("Sub", "unsigned", one, signed)
    half = body.op("Pow", "half", body.real(2, "two"), body.op("Sub", "bits_but_one", "bitwidth", one))
    # signed: half - 1, -half + narrow; unsigned: 2 half - 1 - narrow, 0
    count = body.op("Mul", "count", half, body.op("Add", "halves", one, unsigned))
    left_out = body.op("Add", "left_out", one, body.op("Mul", "narrow_above", unsigned, narrow))
    largest = body.op("Sub", "largest", count, left_out)
    least = body.op("Mul", "least", signed, body.op("Sub", "narrow_below", narrow, half))
    moved = body.op("Add", "moved", body.op("Div", "scaled", "X", "scale"), "zeropt")
    clipped = body.op("Max", "clipped", body.op("Min", "clipped_above", moved, largest), least)
    centered = body.op("Sub", "whole", body.op("Round", "code", clipped), "zeropt")
    body.op("Mul", "Y", centered, "scale")
    inputs = ("X", "scale", "zeropt", "bitwidth")
    return _function("IntQuant", inputs, body, {"rounding_mode": ROUNDING}, "signed", "narrow")


def integer_call(fmt: Integer, grid: Grid, source: str, target: str, shape: Sequence[Dim]) -> FormatCall:
    """Build the call for an integer, fixed-point or ternary format."""
    operands = {
        "scale": broadcastable(grid.scale, grid, shape),
        "zeropt": broadcastable(grid.zero, grid, shape),
        "bitwidth": np.asarray(fmt.bits),
    }
    attributes = {
        "signed": int(fmt.signed),
        "narrow": int(isinstance(fmt, Ternary)),
        "rounding_mode": ROUNDING,
    }
    return build_call(DOMAIN, "IntQuant", source, target, operands, attributes)


def float_quant(opset: int) -> Function:
    """Build FloatQuant: x / scale, rounded to the nearest number of a minifloat and saturated, times scale.

    The exponent comes from a logarithm, which may be off by one right next to a power of two. The result is
    still right there: the nearest number is the power itself, with either exponent.
    """
    body = FunctionBody.of_opset(opset)
    two, one = body.real(2, "two"), body.real(1, "one")
    last = body.op("Neg", "last_bit", "mantissa_bitwidth")
    codes = body.op("Sub", "top_code", body.op("Pow", "exponents", two, "exponent_bitwidth"), one)
    power = body.op("Pow", "top_power", two, body.op("Sub", "top_exponent", codes, "exponent_bias"))
    top = body.op("Mul", "top", power, body.op("Sub", "top_mantissa", two, body.op("Pow", "ulp", two, last)))
    largest = body.op("Min", "largest", top, "max_val")
    scaled = body.op("Div", "scaled", "X", "scale")
    above = body.op("Min", "clipped_above", scaled, largest)
    clipped = body.op("Max", "clipped", above, body.op("Neg", "least", largest))
    step = step_at(body, clipped, body.op("Sub", "least_exponent", one, "exponent_bias"), last)
    near = body.op("Mul", "near", body.op("Round", "code", body.op("Div", "steps", clipped, step)), step)
    body.op("Mul", "Y", near, "scale")
    inputs = ("X", "scale", "exponent_bitwidth", "mantissa_bitwidth", "exponent_bias", "max_val")
    flags = {"has_inf": 0, "has_nan": 0, "has_subnormal": 1, "saturation": 1}
    return _function("FloatQuant", inputs, body, {**flags, "rounding_mode": ROUNDING})


def float_call(fmt: Minifloat, grid: Grid, source: str, target: str, shape: Sequence[Dim]) -> FormatCall:
    """Build the call for a minifloat, or for float8 with its scale."""
    operands = {
        "scale": broadcastable(grid.scale, grid, shape),
        "exponent_bitwidth": np.asarray(fmt.exponent),
        "mantissa_bitwidth": np.asarray(fmt.mantissa),
        "exponent_bias": np.asarray(fmt.bias),
        "max_val": np.asarray(fmt.largest),
    }
    special = isinstance(fmt, Float8)
    attributes = {
        "rounding_mode": ROUNDING,
        "has_inf": int(special and fmt.mantissa == 2),
        "has_nan": int(special),
        "has_subnormal": 1,
        "saturation": 1,
    }
    return build_call(DOMAIN, "FloatQuant", source, target, operands, attributes)


def bipolar_quant(opset: int) -> Function:
    """Build BipolarQuant: scale for numbers at or above zero, else -scale."""
    body = FunctionBody.of_opset(opset)
    above = body.op("GreaterOrEqual", "above", "X", body.real(0, "zero"))
    sign = body.op("Where", "sign", above, body.real(1, "one"), body.real(-1, "minus_one"))
    body.op("Mul", "Y", sign, "scale")
    return _function("BipolarQuant", ("X", "scale"), body, {})


def bipolar_call(grid: Grid, source: str, target: str, shape: Sequence[Dim]) -> FormatCall:
    """Build the call for the binary format."""
    return build_call(
        DOMAIN, "BipolarQuant", source, target, {"scale": broadcastable(grid.scale, grid, shape)}
    )
