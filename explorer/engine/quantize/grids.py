"""Grids (scales and zero points) of a layer's inputs, weights and biases."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.engine.number_formats.integer import Integer
from explorer.engine.number_formats.number_format import Array, Grid
from explorer.engine.quantize.calibration import Range, RangeUse
from explorer.engine.quantize.choice import BIAS, LayerChoice, check_choices
from explorer.engine.quantize.integers.saturation import enlarge_scales
from explorer.engine.quantize.layers import Operand, Part
from explorer.engine.quantize.weights import choose_weight_grid, fit_bias, read_floats, repeat_scales

Ranges = Mapping[RangeUse, Range]
"""Calibrated range (low, high) of each value and format."""


def list_range_uses(choices: Sequence[LayerChoice]) -> dict[RangeUse, RangeUse]:
    """Returns the values with formats that need a calibrated range, each one mapped to itself.

    `calibrate_ranges` returns the ranges by the keys of such a mapping.
    """
    return {use: use for choice in choices for use in _list_uses(choice)}


def _list_uses(choice: LayerChoice) -> Iterator[RangeUse]:
    """Yields the inputs of a layer that need a range, and the outputs that the layer rounds."""
    fmt, symmetric = choice.input, choice.is_symmetric("input")
    if fmt is None or choice.reason or not fmt.scaled:
        return
    for operand in choice.layer.list_operands("input"):
        yield RangeUse(choice.scale_sources.get(operand.value, operand.value), fmt, symmetric)
    if choice.form == "qoperator":
        yield RangeUse(choice.layer.node.outputs[0], fmt, symmetric)
    for value in choice.rounded_values:
        yield RangeUse(choice.scale_sources.get(value, value), fmt, symmetric)


class Grids:
    """Grids of all operands of all layers. Each grid is computed once.

    Args:
        ranges: Ranges of the values in `list_range_uses`. Before calibration they are empty, and inputs get
            the grid of scale 1. Grids of weights are then final, unless an integer bias depends on the
            input's scale.
    """

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._grids: dict[tuple[int, int], Grid] = {}

    def find_operand_grid(self, choice: LayerChoice, operand: Operand) -> Grid:
        """Returns the grid of an operand that has a format.

        Raises:
            BadModel: The operand holds NaN or infinity.
        """
        key = id(choice.layer.node), operand.input_index
        if key not in self._grids:
            if operand.part == "input":
                self._grids[key] = self.find_value_grid(choice, operand.value)
            else:
                compute_grid = (
                    self._compute_weight_grid if operand.part == "weight" else self._compute_bias_grid
                )
                self._grids[key] = compute_grid(choice, operand)
        return self._grids[key]

    def find_value_grid(self, choice: LayerChoice, value: str) -> Grid:
        """Returns the grid of a value in the format of a layer's inputs."""
        assert choice.input is not None
        use = RangeUse(choice.scale_sources.get(value, value), choice.input, choice.is_symmetric("input"))
        low, high = self._ranges[use] if self._ranges and choice.input.scaled else (0.0, 0.0)
        ends = np.asarray(low, np.float32), np.asarray(high, np.float32)
        return choice.input.build_grid(*ends, symmetric=use.symmetric)

    def _compute_weight_grid(self, choice: LayerChoice, operand: Operand) -> Grid:
        """Computes the grid of a weight. With an int32 bias, the bias does not overflow on this grid."""
        assert choice.weight is not None
        grid = choose_weight_grid(
            operand,
            choice.weight,
            per_channel=choice.granularity == "channel",
            symmetric=choice.is_symmetric("weight"),
            block=choice.block,
        )
        if choice.unsaturated and _is_byte_product(choice):
            grid = enlarge_scales(operand, grid, int(choice.layer.node.attributes.get("group", 1)))
        if choice.bias is not BIAS or grid.block:
            return grid
        scale = self.find_operand_grid(choice, choice.layer.list_operands("input")[0]).scale
        formats = (choice.weight, choice.input)
        # a code is at most half of its range away from the zero point
        product = math.prod(fmt.largest - fmt.least for fmt in formats if isinstance(fmt, Integer)) // 4
        return fit_bias(operand, grid, read_bias(choice.layer.list_operands("bias")[0]), scale, product)

    def _compute_bias_grid(self, choice: LayerChoice, operand: Operand) -> Grid:
        """Computes the grid of a bias. An int32 bias has the product of the scales of input and weight."""
        assert choice.bias is not None
        if choice.bias is not BIAS:
            return choose_weight_grid(
                operand, choice.bias, per_channel=False, symmetric=choice.is_symmetric("bias")
            )
        weight = choice.layer.list_operands("weight")[0]
        input_scale, weight_scale = (
            self.find_operand_grid(choice, part).scale
            for part in (choice.layer.list_operands("input")[0], weight)
        )
        scale = np.asarray(input_scale * weight_scale, np.float32)
        if scale.size == 1:
            return Grid(scale.reshape(()), np.zeros((), np.int32))
        scale = repeat_scales(weight, scale, operand.shape[-1])
        return Grid(scale, np.zeros(scale.shape, np.int32), len(operand.shape) - 1)


_PAIR_ADDING_OPERATORS = frozenset(("Conv", "Gemm", "MatMul"))
"""Operators whose integer kernels add two products in 16 bits."""


def _is_byte_product(choice: LayerChoice) -> bool:
    """Whether an integer kernel multiplies int8 weights by 8-bit inputs."""
    if choice.layer.op not in _PAIR_ADDING_OPERATORS:
        return False
    weight, inputs = choice.weight, choice.input
    return (
        isinstance(weight, Integer)
        and weight.element_type == "int8"
        and inputs is not None
        and inputs.element_type in ("int8", "uint8")
    )


def exclude_nonfinite(
    choices: Sequence[LayerChoice], grids: Grids, parts: Sequence[Part] = ("weight", "bias")
) -> tuple[LayerChoice, ...]:
    """Returns the choices, with no format for layers whose weight or bias holds NaN or infinity.

    Args:
        choices: Choices for all layers.
        grids: Grids of the operands of these layers.
        parts: Roles of the operands to check.

    Raises:
        Misuse: No layer takes a format.
    """
    return check_choices([_exclude_nonfinite(choice, grids, parts) for choice in choices])


def _exclude_nonfinite(choice: LayerChoice, grids: Grids, parts: Sequence[Part]) -> LayerChoice:
    stored_operands = [o for o in choice.layer.operands if o.tensor is not None and o.part in parts]
    try:
        for operand in stored_operands if not choice.reason else ():
            if getattr(choice, operand.part) is not None:
                grids.find_operand_grid(choice, operand)
    except BadModel as problem:
        return replace(choice, reason=problem.what)
    return choice


def read_bias(operand: Operand) -> Array:
    """Returns the numbers of a stored bias as float32.

    Raises:
        BadModel: The bias holds NaN or infinity.
    """
    values = read_floats(operand).astype(np.float32, copy=False)
    if not np.isfinite(values).all():
        raise BadModel(f"the bias '{operand.stored}' holds NaN or infinity")
    return values
