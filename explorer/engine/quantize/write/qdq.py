"""QDQ: a layer between QuantizeLinear and DequantizeLinear nodes, or Casts there and back, or functions.

A weight is stored as its codes behind a DequantizeLinear; an activation passes a QuantizeLinear and a
DequantizeLinear in front of the layer, once for all layers that want it so; a bias is int32 with the product
of both scales. The layer itself stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from explorer.engine.graph.model import Value, dtype_code
from explorer.engine.number_formats.number_format import Grid, NumberFormat
from explorer.engine.quantize.choice import BIAS, LayerChoice, is_called
from explorer.engine.quantize.functions import LEAST_OPSET
from explorer.engine.quantize.grids import Grids, bias_values
from explorer.engine.quantize.layers import Operand
from explorer.engine.quantize.weights import quantized_weight
from explorer.engine.quantize.write.additions import Additions
from explorer.facts import Shape


def write(choice: LayerChoice, grids: Grids, to: Additions) -> None:
    """Adds a layer that reads its operands in their formats."""
    node = choice.layer.node
    to.nodes.append(node.with_values(read(choice, choice.layer.operands, grids, to), node.outputs))


def read(choice: LayerChoice, operands: Sequence[Operand], grids: Grids, to: Additions) -> list[str]:
    """The inputs of a layer, with `operands` in their formats."""
    inputs = list(choice.layer.node.inputs)
    for operand in operands:
        fmt: NumberFormat | None = getattr(choice, operand.part)
        if fmt is not None:
            grid = grids.of(choice, operand)
            if operand.part == "weight" and _flows_in_float(choice):
                grid = _unfused(operand, grid)
            called = is_called(choice, operand.part) or _is_lost(operand, fmt, grid, to)
            make = _called if called else _OPERANDS[operand.part]
            inputs[operand.at] = _between_casts(make, called, operand, fmt, grid, to)
    return inputs


_Make = Callable[[Operand, NumberFormat, Grid, Additions], str]


def _between_casts(
    make: _Make, called: bool, operand: Operand, fmt: NumberFormat, grid: Grid, to: Additions
) -> str:
    """The result of `make` for an operand, between casts to float32 and back to the layer's type."""
    if operand.dtype == "float32":
        return make(operand, fmt, grid, to)
    flows = operand.tensor is None
    source = operand.value
    if flows or called:
        shape = to.shape(source) if flows else operand.shape
        operand = replace(operand, value=_cast(source, "float32", f"{source}_float32", shape, to))
    shape = to.shape(source) if flows else operand.shape
    float_value = make(operand, fmt, grid, to)
    return _cast(float_value, operand.dtype, f"{float_value}_{operand.dtype}", shape, to)


def _cast(value: str, dtype: str, target: str, shape: Shape | None, to: Additions) -> str:
    def make() -> str:
        cast_value = to.add("Cast", (value,), target, attributes=_to(dtype))
        if shape is not None:
            to.declare(Value(cast_value, dtype, shape))
        return cast_value

    return to.once(("cast", value, dtype), make)


def _flows_in_float(choice: LayerChoice) -> bool:
    """Whether a product meets its weight behind a DequantizeLinear with an activation that is behind none."""
    is_product = choice.layer.op in ("MatMul", "Gemm") and choice.weight is not None
    return is_product and (choice.input is None or is_called(choice, "input"))


def _unfused(operand: Operand, grid: Grid) -> Grid:
    """The same grid, in a form that onnxruntime does not recognize as a MatMulNBits.

    Version 1.32 also makes a MatMulNBits of a weight of bytes, which rounds the activation to 8 bits, unless
    a session option prevents it. It looks for an axis that is counted from the front, or for a scalar.
    """
    if grid.axis is None:
        return replace(grid, scale=grid.scale.reshape(1), zero=grid.zero.reshape(1))
    return replace(grid, axis=grid.axis - len(operand.shape))


def _is_lost(operand: Operand, fmt: NumberFormat, grid: Grid, to: Additions) -> bool:
    """Whether onnxruntime drops a Clip because the QuantizeLinear behind it seems to clip, too.

    Version 1.31 treats ends of ranges as equal if they differ by less than float32's epsilon. In a model of
    random weights with only tiny values, the Clip goes, and numbers below zero come back.
    """
    if operand.value not in to.clipped or to.opset < LEAST_OPSET or fmt.writing != "linear":
        return False
    return bool(np.max(np.abs(fmt.limits(grid))) < 2 * np.finfo(np.float32).eps)


def activation(operand: Operand, fmt: NumberFormat, grid: Grid, to: Additions) -> str:
    """Adds the rounding of a layer's input, in float32."""
    value = operand.value

    def make() -> str:
        if fmt.writing == "cast":
            narrow, narrow_type = f"{value}_{fmt.name}", fmt.element_type
            narrow = to.add(
                "Cast", (value,), narrow, like=value, dtype=narrow_type, attributes=_to(narrow_type)
            )
            wide = f"{narrow}_wide"
            return to.add("Cast", (narrow,), wide, like=value, dtype="float32", attributes=_to("float32"))
        scale = to.scale(value, fmt, grid)
        codes = quantized_activation(value, fmt, grid, to)
        wide = f"{value}_dequantized"
        return to.add("DequantizeLinear", (codes, *scale), wide, like=value, dtype="float32")

    return to.once(("activation", value, fmt, grid.scale.tobytes(), grid.zero.tobytes()), make)


def quantized_activation(value: str, fmt: NumberFormat, grid: Grid, to: Additions) -> str:
    """The codes of a value that flows."""

    def make() -> str:
        inputs = value, *to.scale(value, fmt, grid)
        return to.add("QuantizeLinear", inputs, f"{value}_quantized", like=value, dtype=fmt.element_type)

    return to.once(("codes", value, fmt, grid.scale.tobytes(), grid.zero.tobytes()), make)


def stored_codes(operand: Operand, fmt: NumberFormat, grid: Grid, to: Additions) -> str:
    """The codes of a stored weight."""
    name = f"{operand.stored}_{'quantized' if fmt.writing == 'linear' else fmt.name}"
    key = "stored", *_same(operand, fmt, grid)
    return to.once(key, lambda: to.store(quantized_weight(name, operand, fmt, grid)))


def stored_bias(operand: Operand, grid: Grid, to: Additions) -> str:
    """The codes of a bias of integers."""
    # in float64: beyond the integers that float32 holds exactly
    codes = np.rint(bias_values(operand).astype(np.float64) / grid.scale.astype(np.float64))
    codes = np.clip(codes, -(2**31) + 1, 2**31 - 1).astype(np.int32)
    return to.number(f"{operand.stored}_quantized", codes)


def _same(operand: Operand, fmt: NumberFormat, grid: Grid) -> tuple[Hashable, ...]:
    """The key of a stored tensor in a format and grid, equal for all readers that can share it."""
    grid_key = grid.scale.tobytes(), grid.zero.tobytes(), grid.axis, grid.block
    return operand.stored, operand.axes, fmt, *grid_key


def _weight(operand: Operand, fmt: NumberFormat, grid: Grid, to: Additions) -> str:
    def make() -> str:
        codes = stored_codes(operand, fmt, grid, to)
        if fmt.writing != "cast":
            return _dequantized(codes, operand, fmt, grid, to)
        wide = to.add("Cast", (codes,), f"{codes}_wide", attributes=_to("float32"))
        to.values.append(Value(wide, "float32", operand.shape))
        return wide

    return to.once(("weight", *_same(operand, fmt, grid)), make)


def _bias(operand: Operand, fmt: NumberFormat, grid: Grid, to: Additions) -> str:
    if fmt is not BIAS:
        return _weight(operand, fmt, grid, to)
    codes = stored_bias(operand, grid, to)
    key = "bias", codes, grid.scale.tobytes()
    return to.once(key, lambda: _dequantized(codes, operand, fmt, grid, to))


def _dequantized(codes: str, operand: Operand, fmt: NumberFormat, grid: Grid, to: Additions) -> str:
    attributes: dict[str, Any] = {}
    if grid.axis is not None:
        attributes = {"axis": grid.axis, **({"block_size": grid.block} if grid.block else {})}
    inputs = codes, *to.scale(operand.stored, fmt, grid)
    wide = to.add("DequantizeLinear", inputs, f"{operand.stored}_dequantized", attributes=attributes)
    to.values.append(Value(wide, "float32", operand.shape))
    return wide


def _called(operand: Operand, fmt: NumberFormat, grid: Grid, to: Additions) -> str:
    """Adds the call of a format's function on a value; returns the rounded value, as the layer reads it."""
    depth = operand.depth
    key = "call", operand.value, fmt, grid.scale.tobytes(), grid.zero.tobytes(), grid.axis, grid.block, depth
    shape = to.shape(operand.value) if operand.tensor is None else operand.shape
    return to.once(
        key, lambda: to.call(fmt, grid, operand.value, f"{operand.value}_{fmt.name}", shape, depth)
    )


def _to(dtype: str) -> Mapping[str, Any]:
    return {"to": dtype_code(dtype)}


_OPERANDS: Mapping[str, _Make] = {"input": activation, "weight": _weight, "bias": _bias}
