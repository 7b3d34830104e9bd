"""Writer for QDQ: QuantizeLinear and DequantizeLinear nodes, Casts, or function calls before a layer.

A weight is stored as codes, and a DequantizeLinear converts them. An activation passes a QuantizeLinear and a
DequantizeLinear, which all layers with the same format and grid share. A bias is int32 with the product of
both scales. The layer's own node stays unchanged except for its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from explorer.engine.graph.model import Value, get_dtype_code
from explorer.engine.number_formats.number_format import Grid, NumberFormat
from explorer.engine.quantize.choice import BIAS, LayerChoice, is_function_call
from explorer.engine.quantize.functions import MIN_OPSET
from explorer.engine.quantize.grids import Grids, read_bias
from explorer.engine.quantize.layers import Operand
from explorer.engine.quantize.weights import quantize_weight
from explorer.engine.quantize.write.additions import Additions
from explorer.facts import Shape


def write(choice: LayerChoice, grids: Grids, additions: Additions) -> None:
    """Adds a layer that reads its operands in their formats."""
    node = choice.layer.node
    additions.nodes.append(
        node.replace_values(convert_operands(choice, choice.layer.operands, grids, additions), node.outputs)
    )


def convert_operands(
    choice: LayerChoice, operands: Sequence[Operand], grids: Grids, additions: Additions
) -> list[str]:
    """Returns the input names of a layer, after adding the nodes that convert `operands` to their formats."""
    inputs = list(choice.layer.node.inputs)
    for operand in operands:
        fmt: NumberFormat | None = getattr(choice, operand.part)
        if fmt is not None:
            grid = grids.find_operand_grid(choice, operand)
            if operand.part == "weight" and _has_float_activation(choice):
                grid = _prevent_fusion(operand, grid)
            is_call = is_function_call(choice, operand.part) or _would_lose_clip(
                operand, fmt, grid, additions
            )
            writer = _write_call if is_call else _WRITERS_BY_PART[operand.part]
            inputs[operand.input_index] = _wrap_in_casts(writer, is_call, operand, fmt, grid, additions)
    return inputs


_WriteOperand = Callable[[Operand, NumberFormat, Grid, Additions], str]


def _wrap_in_casts(
    write_operand: _WriteOperand,
    is_call: bool,
    operand: Operand,
    fmt: NumberFormat,
    grid: Grid,
    additions: Additions,
) -> str:
    """Writes an operand and a cast of the result to the layer's type, and returns the last value.

    A cast to float32 precedes the operand, unless the operand is stored as codes.
    """
    if operand.dtype == "float32":
        return write_operand(operand, fmt, grid, additions)
    is_activation = operand.tensor is None
    source = operand.value
    shape = additions.find_shape(source) if is_activation else operand.shape
    if is_activation or is_call:
        operand = replace(operand, value=_add_cast(source, "float32", f"{source}_float32", shape, additions))
    float_value = write_operand(operand, fmt, grid, additions)
    return _add_cast(float_value, operand.dtype, f"{float_value}_{operand.dtype}", shape, additions)


def _add_cast(value: str, dtype: str, target: str, shape: Shape | None, additions: Additions) -> str:
    """Adds a Cast, or returns the result of an equal one."""

    def make() -> str:
        cast_value = additions.add("Cast", (value,), target, attributes=_cast_to(dtype))
        if shape is not None:
            additions.declare(Value(cast_value, dtype, shape))  # a later node may ask for its shape
        return cast_value

    return additions.get_or_add(("cast", value, dtype), make)


def _has_float_activation(choice: LayerChoice) -> bool:
    """Whether a matrix product has a dequantized weight and an activation in floats."""
    is_product = choice.layer.op in ("MatMul", "Gemm") and choice.weight is not None
    return is_product and (choice.input is None or is_function_call(choice, "input"))


def _prevent_fusion(operand: Operand, grid: Grid) -> Grid:
    """Returns the same grid in a form that onnxruntime does not fuse into a MatMulNBits.

    Version 1.32 also fuses an 8-bit weight, and then rounds the activation to 8 bits unless a session option
    prevents it. The fusion requires a scalar scale or a nonnegative axis.
    """
    if grid.axis is None:
        return replace(grid, scale=grid.scale.reshape(1), zero=grid.zero.reshape(1))
    return replace(grid, axis=grid.axis - len(operand.shape))


def _would_lose_clip(operand: Operand, fmt: NumberFormat, grid: Grid, additions: Additions) -> bool:
    """Whether onnxruntime would wrongly remove the Clip before a QuantizeLinear of this value.

    onnxruntime removes a Clip if the QuantizeLinear clips to the same range. Version 1.31 treats the ends of
    ranges as equal if they differ by less than float32's epsilon. Tiny activations therefore lose a Clip to
    [0, max], and numbers below zero reappear. A function call instead of the QuantizeLinear avoids this.
    """
    if operand.value not in additions.clipped or additions.opset < MIN_OPSET or fmt.writing != "linear":
        return False
    return bool(np.max(np.abs(fmt.find_limits(grid))) < 2 * np.finfo(np.float32).eps)


def write_activation(operand: Operand, fmt: NumberFormat, grid: Grid, additions: Additions) -> str:
    """Adds the rounding of a layer's input, and returns the rounded value as float32."""
    value = operand.value

    def make() -> str:
        if fmt.writing == "cast":
            narrow, narrow_type = f"{value}_{fmt.name}", fmt.element_type
            narrow = additions.add(
                "Cast", (value,), narrow, like=value, dtype=narrow_type, attributes=_cast_to(narrow_type)
            )
            float_value = f"{narrow}_wide"
            return additions.add(
                "Cast", (narrow,), float_value, like=value, dtype="float32", attributes=_cast_to("float32")
            )
        scale = additions.store_grid(value, fmt, grid)
        codes = add_quantized_activation(value, fmt, grid, additions)
        float_value = f"{value}_dequantized"
        return additions.add("DequantizeLinear", (codes, *scale), float_value, like=value, dtype="float32")

    return additions.get_or_add(("activation", value, fmt, grid.scale.tobytes(), grid.zero.tobytes()), make)


def add_quantized_activation(value: str, fmt: NumberFormat, grid: Grid, additions: Additions) -> str:
    """Adds a QuantizeLinear for an activation, and returns its codes."""

    def make() -> str:
        inputs = value, *additions.store_grid(value, fmt, grid)
        return additions.add(
            "QuantizeLinear", inputs, f"{value}_quantized", like=value, dtype=fmt.element_type
        )

    return additions.get_or_add(("codes", value, fmt, grid.scale.tobytes(), grid.zero.tobytes()), make)


def store_codes(operand: Operand, fmt: NumberFormat, grid: Grid, additions: Additions) -> str:
    """Stores the codes of a weight, and returns their name."""
    name = f"{operand.stored}_{'quantized' if fmt.writing == 'linear' else fmt.name}"
    key = "stored", *_make_tensor_key(operand, fmt, grid)
    return additions.get_or_add(key, lambda: additions.store(quantize_weight(name, operand, fmt, grid)))


def store_bias(operand: Operand, grid: Grid, additions: Additions) -> str:
    """Stores the codes of an int32 bias, and returns their name."""
    # float64, because codes exceed the integers that float32 represents exactly
    codes = np.rint(read_bias(operand).astype(np.float64) / grid.scale.astype(np.float64))
    codes = np.clip(codes, -(2**31) + 1, 2**31 - 1).astype(np.int32)
    return additions.store_numbers(f"{operand.stored}_quantized", codes)


def _make_tensor_key(operand: Operand, fmt: NumberFormat, grid: Grid) -> tuple[Hashable, ...]:
    """Returns the key under which all layers share a stored tensor of one format and grid."""
    grid_key = grid.scale.tobytes(), grid.zero.tobytes(), grid.axis, grid.block
    return operand.stored, operand.axes, fmt, *grid_key


def _write_weight(operand: Operand, fmt: NumberFormat, grid: Grid, additions: Additions) -> str:
    """Stores a weight in a format, and returns its value as float32."""

    def make() -> str:
        codes = store_codes(operand, fmt, grid, additions)
        if fmt.writing != "cast":
            return _add_dequantization(codes, operand, fmt, grid, additions)
        wide = additions.add("Cast", (codes,), f"{codes}_wide", attributes=_cast_to("float32"))
        additions.values.append(Value(wide, "float32", operand.shape))
        return wide

    return additions.get_or_add(("weight", *_make_tensor_key(operand, fmt, grid)), make)


def _write_bias(operand: Operand, fmt: NumberFormat, grid: Grid, additions: Additions) -> str:
    if fmt is not BIAS:
        return _write_weight(operand, fmt, grid, additions)
    codes = store_bias(operand, grid, additions)
    key = "bias", codes, grid.scale.tobytes()
    return additions.get_or_add(key, lambda: _add_dequantization(codes, operand, fmt, grid, additions))


def _add_dequantization(
    codes: str, operand: Operand, fmt: NumberFormat, grid: Grid, additions: Additions
) -> str:
    """Adds the DequantizeLinear of stored codes, and returns its result."""
    attributes: dict[str, Any] = {}
    if grid.axis is not None:
        attributes = {"axis": grid.axis, **({"block_size": grid.block} if grid.block else {})}
    inputs = codes, *additions.store_grid(operand.stored, fmt, grid)
    wide = additions.add("DequantizeLinear", inputs, f"{operand.stored}_dequantized", attributes=attributes)
    additions.values.append(Value(wide, "float32", operand.shape))
    return wide


def _write_call(operand: Operand, fmt: NumberFormat, grid: Grid, additions: Additions) -> str:
    """Adds the call of a format's function on a value, and returns the rounded value."""
    depth = operand.depth
    key = "call", operand.value, fmt, grid.scale.tobytes(), grid.zero.tobytes(), grid.axis, grid.block, depth
    shape = additions.find_shape(operand.value) if operand.tensor is None else operand.shape
    return additions.get_or_add(
        key, lambda: additions.add_call(fmt, grid, operand.value, f"{operand.value}_{fmt.name}", shape, depth)
    )


def _cast_to(dtype: str) -> Mapping[str, Any]:
    return {"to": get_dtype_code(dtype)}


_WRITERS_BY_PART: Mapping[str, _WriteOperand] = {
    "input": write_activation,
    "weight": _write_weight,
    "bias": _write_bias,
}
