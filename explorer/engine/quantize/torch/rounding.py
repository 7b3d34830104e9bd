"""Rounding of a layer's input in torch, with the same numbers as `NumberFormat.round_values`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from explorer.engine.number_formats.integer import Integer
from explorer.engine.number_formats.microscaling import BLOCK, MIN_EXPONENT, Microscaling
from explorer.engine.number_formats.minifloat import Half, Minifloat
from explorer.engine.number_formats.narrow import Binary
from explorer.engine.number_formats.number_format import Grid, NumberFormat


class InputRounding:
    """A forward pre-hook that rounds a layer's input to a number format.

    Args:
        format: Number format.
        grid: Grid with one scale.
        depth: Axis of the format's own blocks.
    """

    def __init__(self, format: NumberFormat, grid: Grid, depth: int) -> None:
        self.format = format
        self.scale, self.zero = float(grid.scale), float(grid.zero)
        self.depth = depth

    def __call__(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments of the layer, with the input rounded."""
        if args:
            return (self.round_values(args[0]), *args[1:]), dict(kwargs)
        return (), {**kwargs, "input": self.round_values(kwargs["input"])}

    def round_values(self, x: Tensor) -> Tensor:
        """Rounds and saturates to numbers of the format, as float32. NaN stays NaN."""
        rounding = next(rounding for kind, rounding in _ROUNDERS.items() if isinstance(self.format, kind))
        return rounding(self, self.format, x)

    def __repr__(self) -> str:
        return f"to {self.format.name}, scale {self.scale:g}"


def _round_to_integers(rounding: InputRounding, fmt: Any, x: Tensor) -> Tensor:
    """Rounds to integer codes. Division by the scale keeps exact ties, which its inverse would not."""
    codes = torch.round(x / rounding.scale)
    return (torch.clamp(codes + rounding.zero, fmt.least, fmt.largest) - rounding.zero) * rounding.scale


def _round_to_binary(rounding: InputRounding, fmt: Any, x: Tensor) -> Tensor:
    scale = torch.full_like(x, rounding.scale)
    return torch.where(x >= 0, scale, -scale)


def _round_to_nearest(fmt: Minifloat, x: Tensor) -> Tensor:
    """Rounds as `Minifloat.round_to_nearest` does. The exponent comes from the bits of the float32 number."""
    near = torch.clamp(x, -fmt.largest, fmt.largest)
    step = torch.clamp(_compute_exponent(near), min=1 - fmt.bias) - fmt.mantissa
    return torch.round(near * _compute_power_of_two(-step)) * _compute_power_of_two(step)


def _round_in_blocks(rounding: InputRounding, fmt: Any, x: Tensor) -> Tensor:
    """Rounds in blocks of `BLOCK`. Zeros pad the last block without changing its scale."""
    moved = x.movedim(rounding.depth, -1)
    length = moved.shape[-1]
    padded = nn.functional.pad(moved, (0, -length % BLOCK))
    parts = padded.reshape(*padded.shape[:-1], -1, BLOCK)
    largest = parts.abs().amax(-1, keepdim=True)
    shared = torch.clamp(_compute_exponent(largest) - fmt.largest_exponent, min=MIN_EXPONENT)
    # 2**-127 is below the least normal float32, so compute it as half of the next power
    scale = _compute_power_of_two(shared + 1) * 0.5
    # `largest * 0` is NaN if the block holds NaN or infinity, else 0
    near = _round_to_nearest(fmt.element, parts / scale) * scale + largest * 0
    return near.flatten(-2)[..., :length].movedim(-1, rounding.depth)


def _compute_exponent(x: Tensor) -> Tensor:
    bits: Tensor = x.contiguous().view(torch.int32)
    return (bits >> 23 & 255) - 127


def _compute_power_of_two(exponent: Tensor) -> Tensor:
    """Returns 2**exponent as float32, for int32 exponents from -126 to 127."""
    bits: Tensor = exponent + 127 << 23
    return bits.view(torch.float32)


_ROUNDERS: Mapping[type[NumberFormat], Callable[[InputRounding, Any, Tensor], Tensor]] = {
    Binary: _round_to_binary,
    Integer: _round_to_integers,
    Half: lambda rounding, fmt, x: x.to(getattr(torch, fmt.name)).to(torch.float32),
    Minifloat: lambda rounding, fmt, x: _round_to_nearest(fmt, x / rounding.scale) * rounding.scale,
    Microscaling: _round_in_blocks,
}
"""Rounding function of each format family. A subclass comes before its base class."""
