"""QDQ: a layer between QuantizeLinear and DequantizeLinear nodes, or Casts there and back, or functions.

A weight is stored as its codes behind a DequantizeLinear; an activation passes a QuantizeLinear and a
DequantizeLinear in front of the layer, once for all layers that want it so; a bias is int32 with the product
of both scales. The layer itself stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from explorer.engine.quantize.choice import BIAS, LayerChoice
from explorer.engine.quantize.grids import Grids, bias_values
from explorer.engine.quantize.layers import Operand
from explorer.engine.quantize.number_formats.number_format import Grid, NumberFormat
from explorer.engine.quantize.weights import quantized_weight
from explorer.engine.quantize.write.additions import Additions, cast_to


def write(choice: LayerChoice, grids: Grids, to: Additions) -> None:
    """Adds a layer with what it reads in its formats."""
    node, inputs = choice.layer.node, list(choice.layer.node.inputs)
    for operand in choice.layer.operands:
        fmt: NumberFormat | None = getattr(choice, operand.part)
        if fmt is not None:
            inputs[operand.at] = _OPERANDS[operand.part](operand, fmt, grids.of(choice, operand), to)
    to.nodes.append(node.with_values(inputs, node.outputs))


def _activation(operand: Operand, fmt: NumberFormat, grid: Grid, to: Additions) -> str:
    depth = operand.depth if fmt.writing == "function" else None
    key = "activation", operand.value, fmt, grid.scale.tobytes(), grid.zero.tobytes(), depth
    return to.known(key) or to.made(key, _rounded(operand.value, fmt, grid, to))


def _rounded(value: str, fmt: NumberFormat, grid: Grid, to: Additions) -> str:
    """A value rounded to a format, in float32."""
    if fmt.writing == "cast":
        narrow = to.add(
            "Cast", (value,), f"{value}_{fmt.name}", like=value, dtype=fmt.element_type,
            attributes=cast_to(fmt.element_type),
        )  # fmt: skip
        return to.add(
            "Cast", (narrow,), f"{narrow}_wide", like=value, dtype="float32", attributes=cast_to("float32")
        )
    scale = to.scale(value, fmt, grid)
    codes = to.add(
        "QuantizeLinear", (value, *scale), f"{value}_quantized", like=value, dtype=fmt.element_type
    )
    return to.add("DequantizeLinear", (codes, *scale), f"{value}_dequantized", like=value, dtype="float32")


def _weight(operand: Operand, fmt: NumberFormat, grid: Grid, to: Additions) -> str:
    key = (
        "weight",
        operand.stored,
        operand.axes,
        fmt,
        grid.scale.tobytes(),
        grid.zero.tobytes(),
        grid.axis,
        grid.block,
    )
    return to.known(key) or to.made(key, _stored_weight(operand, fmt, grid, to))


def _stored_weight(operand: Operand, fmt: NumberFormat, grid: Grid, to: Additions) -> str:
    base = operand.stored
    codes = to.store(
        quantized_weight(f"{base}_{'quantized' if fmt.writing == 'linear' else fmt.name}", operand, fmt, grid)
    )
    if fmt.writing == "cast":
        return to.add("Cast", (codes,), f"{base}_wide", dtype="float32", attributes=cast_to("float32"))
    return _dequantized(codes, base, fmt, grid, len(operand.shape), to)


def _dequantized(codes: str, base: str, fmt: NumberFormat, grid: Grid, rank: int, to: Additions) -> str:
    how: dict[str, Any] = {}
    if grid.axis is not None:
        how = {"axis": grid.axis % rank, **({"block_size": grid.block} if grid.block else {})}
    return to.add(
        "DequantizeLinear", (codes, *to.scale(base, fmt, grid)), f"{base}_dequantized", attributes=how
    )


def _bias(operand: Operand, fmt: NumberFormat, grid: Grid, to: Additions) -> str:
    if fmt is not BIAS:
        return _weight(operand, fmt, grid, to)
    # beyond what float32 holds exactly: in float64
    codes = np.rint(bias_values(operand).astype(np.float64) / grid.scale.astype(np.float64))
    codes = np.clip(codes, -(2**31) + 1, 2**31 - 1).astype(np.int32)
    key = "bias", operand.stored, operand.axes, codes.tobytes(), grid.scale.tobytes()
    found = to.known(key)
    if found is None:
        stored = to.number(f"{operand.stored}_quantized", codes)
        found = to.made(key, _dequantized(stored, operand.stored, fmt, grid, len(operand.shape), to))
    return found


_OPERANDS: Mapping[str, Callable[[Operand, NumberFormat, Grid, Additions], str]] = {
    "input": _activation,
    "weight": _weight,
    "bias": _bias,
}
