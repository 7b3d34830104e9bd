"""QONNX's quantizers IntQuant, FloatQuant and BipolarQuant as ONNX functions of standard operators.

Specification: https://github.com/fastmachinelearning/qonnx/tree/main/docs/qonnx-custom-ops. The functions
compute in float32, in the same order as QONNX's code. They support one rounding mode, half to even.

They differ from QONNX in one case: if x / scale is infinite, FloatQuant saturates here. QONNX returns NaN.
Codes of more than 24 bits (an int32 bias) are rounded, because a float32 has 24 significant bits.
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
from explorer.engine.quantize.functions.body import FunctionBody, add_step
from explorer.engine.quantize.functions.call import FormatCall, build_call, make_broadcastable
from explorer.facts import Dim

DOMAIN = "qonnx.custom_op.general"

ROUNDING = "ROUND"
"""QONNX's name of the rounding mode half to even."""


def _build_function(
    name: str, inputs: Sequence[str], body: FunctionBody, defaults: Mapping[str, Any], *required: str
) -> Function:
    """Returns the function with a body.

    Args:
        name: Name of the function.
        inputs: Names of its inputs.
        body: Operators of the function, which compute Y.
        defaults: Optional attributes and their default values.
        required: Names of the required attributes.
    """
    nodes, opsets = tuple(body.nodes), {"": body.emission.opset}
    return Function(DOMAIN, name, tuple(inputs), ("Y",), nodes, opsets, required, defaults)


def build_int_quant(opset: int) -> Function:
    """Returns the function IntQuant.

    It computes (round(clip(x / scale + zeropt)) - zeropt) x scale. It clips to the integers of `bitwidth`
    bits. With the attribute `narrow`, it also excludes the smallest signed or the largest unsigned integer.

    Args:
        opset: Version of the default operator set.
    """
    body = FunctionBody.create(opset)
    one, signed, narrow = body.real(1, "one"), body.flag("signed"), body.flag("narrow")
    unsigned = body.op("Sub", "unsigned", one, signed)
    half = body.op("Pow", "half", body.real(2, "two"), body.op("Sub", "bits_but_one", "bitwidth", one))
    # signed codes: narrow - half to half - 1; unsigned codes: 0 to 2 half - 1 - narrow
    upper_end = body.op("Mul", "count", half, body.op("Add", "halves", one, unsigned))
    excluded = body.op("Add", "left_out", one, body.op("Mul", "narrow_above", unsigned, narrow))
    largest = body.op("Sub", "largest", upper_end, excluded)
    smallest = body.op("Mul", "least", signed, body.op("Sub", "narrow_below", narrow, half))
    shifted = body.op("Add", "moved", body.op("Div", "scaled", "X", "scale"), "zeropt")
    clipped = body.op("Max", "clipped", body.op("Min", "clipped_above", shifted, largest), smallest)
    centered = body.op("Sub", "whole", body.op("Round", "code", clipped), "zeropt")
    body.op("Mul", "Y", centered, "scale")
    inputs = ("X", "scale", "zeropt", "bitwidth")
    return _build_function("IntQuant", inputs, body, {"rounding_mode": ROUNDING}, "signed", "narrow")


def build_integer_call(
    fmt: Integer, grid: Grid, source: str, target: str, shape: Sequence[Dim]
) -> FormatCall:
    """Returns the call of IntQuant for an integer, fixed-point or ternary format.

    Args:
        fmt: Number format.
        grid: Scales and zero points.
        source: Name of the value to round.
        target: Name of the rounded value.
        shape: Shape of both values.
    """
    operands = {
        "scale": make_broadcastable(grid.scale, grid, shape),
        "zeropt": make_broadcastable(grid.zero, grid, shape),
        "bitwidth": np.asarray(fmt.bits),
    }
    narrow = int(isinstance(fmt, Ternary))
    attributes = {"signed": int(fmt.signed), "narrow": narrow, "rounding_mode": ROUNDING}
    return build_call(DOMAIN, "IntQuant", source, target, operands, attributes)


def build_float_quant(opset: int) -> Function:
    """Returns the function FloatQuant.

    It divides x by the scale, rounds to the nearest number of a minifloat, saturates, and multiplies by the
    scale. The exponent comes from a logarithm, which may be off by one close to a power of two. The result is
    still correct, because both exponents round to that power of two.

    Args:
        opset: Version of the default operator set.
    """
    body = FunctionBody.create(opset)
    two, one = body.real(2, "two"), body.real(1, "one")
    last_bit = body.op("Neg", "last_bit", "mantissa_bitwidth")
    # largest number of the bit widths: 2 ** (2 ** exponent bits - 1 - bias) x (2 - 2 ** -mantissa bits)
    top_code = body.op("Sub", "top_code", body.op("Pow", "exponents", two, "exponent_bitwidth"), one)
    top_power = body.op("Pow", "top_power", two, body.op("Sub", "top_exponent", top_code, "exponent_bias"))
    top_mantissa = body.op("Sub", "top_mantissa", two, body.op("Pow", "ulp", two, last_bit))
    top = body.op("Mul", "top", top_power, top_mantissa)
    largest = body.op("Min", "largest", top, "max_val")
    scaled = body.op("Div", "scaled", "X", "scale")
    clipped_above = body.op("Min", "clipped_above", scaled, largest)
    clipped = body.op("Max", "clipped", clipped_above, body.op("Neg", "least", largest))
    step = add_step(body, clipped, body.op("Sub", "least_exponent", one, "exponent_bias"), last_bit)
    rounded_steps = body.op("Round", "code", body.op("Div", "steps", clipped, step))
    nearest = body.op("Mul", "near", rounded_steps, step)
    body.op("Mul", "Y", nearest, "scale")
    inputs = ("X", "scale", "exponent_bitwidth", "mantissa_bitwidth", "exponent_bias", "max_val")
    flags = {"has_inf": 0, "has_nan": 0, "has_subnormal": 1, "saturation": 1}
    return _build_function("FloatQuant", inputs, body, {**flags, "rounding_mode": ROUNDING})


def build_float_call(
    fmt: Minifloat, grid: Grid, source: str, target: str, shape: Sequence[Dim]
) -> FormatCall:
    """Returns the call of FloatQuant for a minifloat, such as float8. See `build_integer_call`."""
    operands = {
        "scale": make_broadcastable(grid.scale, grid, shape),
        "exponent_bitwidth": np.asarray(fmt.exponent),
        "mantissa_bitwidth": np.asarray(fmt.mantissa),
        "exponent_bias": np.asarray(fmt.bias),
        "max_val": np.asarray(fmt.largest),
    }
    is_float8 = isinstance(fmt, Float8)
    attributes = {
        "rounding_mode": ROUNDING,
        "has_inf": int(is_float8 and fmt.mantissa == 2),  # of the float8 formats, only E5M2 has infinities
        "has_nan": int(is_float8),
        "has_subnormal": 1,
        "saturation": 1,
    }
    return build_call(DOMAIN, "FloatQuant", source, target, operands, attributes)


def build_bipolar_quant(opset: int) -> Function:
    """Returns the function BipolarQuant: `scale` for numbers at or above zero, and `-scale` for others.

    Args:
        opset: Version of the default operator set.
    """
    body = FunctionBody.create(opset)
    is_nonnegative = body.op("GreaterOrEqual", "above", "X", body.real(0, "zero"))
    sign = body.op("Where", "sign", is_nonnegative, body.real(1, "one"), body.real(-1, "minus_one"))
    body.op("Mul", "Y", sign, "scale")
    return _build_function("BipolarQuant", ("X", "scale"), body, {})


def build_bipolar_call(grid: Grid, source: str, target: str, shape: Sequence[Dim]) -> FormatCall:
    """Returns the call of BipolarQuant for the binary format. See `build_integer_call`."""
    return build_call(
        DOMAIN, "BipolarQuant", source, target, {"scale": make_broadcastable(grid.scale, grid, shape)}
    )
