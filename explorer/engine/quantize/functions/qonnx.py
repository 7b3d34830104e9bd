"""QONNX's quantizers: IntQuant, FloatQuant and BipolarQuant, with a body of standard operators.

Specification: https://github.com/fastmachinelearning/qonnx/tree/main/docs/qonnx-custom-ops. The bodies
compute in float32 and in the order of QONNX's own code, for the one rounding mode that is written here, half
to even. They differ in one case: where x / scale is infinite, FloatQuant saturates here and gives NaN in
QONNX. Codes of more than 24 bits (an int32 bias) are as exact as float32.
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
from explorer.engine.quantize.functions.body import FunctionBody, step_of
from explorer.engine.quantize.functions.call import FormatCall, calling, spread
from explorer.facts import Dim

DOMAIN = "qonnx.custom_op.general"

ROUNDING = "ROUND"
"""QONNX's name of half to even."""


def _function(
    name: str, inputs: Sequence[str], body: FunctionBody, defaults: Mapping[str, Any], *needed: str
) -> Function:
    """A function with optional attributes, in `defaults`, and required attributes, in `needed`."""
    nodes, opsets = tuple(body.nodes), {"": body.emission.opset}
    return Function(DOMAIN, name, tuple(inputs), ("Y",), nodes, opsets, needed, defaults)


def int_quant(opset: int) -> Function:
    """IntQuant: (clip(x / scale + zeropt) rounded - zeropt) x scale.

    Clipped to the integers of `bitwidth` bits; `narrow` leaves out the least of them (unsigned: the largest).
    """
    to = FunctionBody.of_opset(opset)
    one, signed, narrow = to.real(1, "one"), to.flag("signed"), to.flag("narrow")
    unsigned = to.of("Sub", "unsigned", one, signed)
    half = to.of("Pow", "half", to.real(2, "two"), to.of("Sub", "bits_but_one", "bitwidth", one))
    # signed: half - 1, -half + narrow; unsigned: 2 half - 1 - narrow, 0
    count = to.of("Mul", "count", half, to.of("Add", "halves", one, unsigned))
    left_out = to.of("Add", "left_out", one, to.of("Mul", "narrow_above", unsigned, narrow))
    largest = to.of("Sub", "largest", count, left_out)
    least = to.of("Mul", "least", signed, to.of("Sub", "narrow_below", narrow, half))
    moved = to.of("Add", "moved", to.of("Div", "scaled", "X", "scale"), "zeropt")
    clipped = to.of("Max", "clipped", to.of("Min", "clipped_above", moved, largest), least)
    whole = to.of("Sub", "whole", to.of("Round", "code", clipped), "zeropt")
    to.of("Mul", "Y", whole, "scale")
    inputs = ("X", "scale", "zeropt", "bitwidth")
    return _function("IntQuant", inputs, to, {"rounding_mode": ROUNDING}, "signed", "narrow")


def called_integer(fmt: Integer, grid: Grid, source: str, target: str, shape: Sequence[Dim]) -> FormatCall:
    """An integer, fixed point, or a ternary number."""
    operands = {
        "scale": spread(grid.scale, grid, shape),
        "zeropt": spread(grid.zero, grid, shape),
        "bitwidth": np.asarray(fmt.bits),
    }
    attributes = {
        "signed": int(fmt.signed),
        "narrow": int(isinstance(fmt, Ternary)),
        "rounding_mode": ROUNDING,
    }
    return calling(DOMAIN, "IntQuant", source, target, operands, attributes)


def float_quant(opset: int) -> Function:
    """FloatQuant: x / scale to the nearest number of a minifloat, saturated, times scale.

    The exponent comes from a logarithm, which may be off by one just beside a power of two. There, the
    nearest number is the power itself, with either step.
    """
    to = FunctionBody.of_opset(opset)
    two, one = to.real(2, "two"), to.real(1, "one")
    last = to.of("Neg", "last_bit", "mantissa_bitwidth")
    codes = to.of("Sub", "top_code", to.of("Pow", "exponents", two, "exponent_bitwidth"), one)
    power = to.of("Pow", "top_power", two, to.of("Sub", "top_exponent", codes, "exponent_bias"))
    top = to.of("Mul", "top", power, to.of("Sub", "top_mantissa", two, to.of("Pow", "ulp", two, last)))
    largest = to.of("Min", "largest", top, "max_val")
    scaled = to.of("Div", "scaled", "X", "scale")
    above = to.of("Min", "clipped_above", scaled, largest)
    clipped = to.of("Max", "clipped", above, to.of("Neg", "least", largest))
    step = step_of(to, clipped, to.of("Sub", "least_exponent", one, "exponent_bias"), last)
    near = to.of("Mul", "near", to.of("Round", "code", to.of("Div", "steps", clipped, step)), step)
    to.of("Mul", "Y", near, "scale")
    inputs = ("X", "scale", "exponent_bitwidth", "mantissa_bitwidth", "exponent_bias", "max_val")
    flags = {"has_inf": 0, "has_nan": 0, "has_subnormal": 1, "saturation": 1}
    return _function("FloatQuant", inputs, to, {**flags, "rounding_mode": ROUNDING})


def called_float(fmt: Minifloat, grid: Grid, source: str, target: str, shape: Sequence[Dim]) -> FormatCall:
    """A minifloat, or float8 with its scale."""
    operands = {
        "scale": spread(grid.scale, grid, shape),
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
    return calling(DOMAIN, "FloatQuant", source, target, operands, attributes)


def bipolar_quant(opset: int) -> Function:
    """BipolarQuant: scale for numbers from zero on, else -scale."""
    to = FunctionBody.of_opset(opset)
    above = to.of("GreaterOrEqual", "above", "X", to.real(0, "zero"))
    sign = to.of("Where", "sign", above, to.real(1, "one"), to.real(-1, "minus_one"))
    to.of("Mul", "Y", sign, "scale")
    return _function("BipolarQuant", ("X", "scale"), to, {})


def called_bipolar(grid: Grid, source: str, target: str, shape: Sequence[Dim]) -> FormatCall:
    """A binary number."""
    return calling(DOMAIN, "BipolarQuant", source, target, {"scale": spread(grid.scale, grid, shape)})
