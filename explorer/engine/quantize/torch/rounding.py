"""Rounding of a layer's input in torch, by standard operators: the same numbers as `rounded` gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from explorer.engine.number_formats.integer import Integer
from explorer.engine.number_formats.microscaling import BLOCK, LEAST_EXPONENT, Microscaling
from explorer.engine.number_formats.minifloat import Half, Minifloat
from explorer.engine.number_formats.narrow import Binary
from explorer.engine.number_formats.number_format import Grid, NumberFormat


class InputRounding:
    """A forward pre-hook that rounds a layer's input to a number format.

    Args:
        format: Any number format.
        grid: A grid with one scale.
        depth: The axis of the format's own blocks.
    """

    def __init__(self, format: NumberFormat, grid: Grid, depth: int) -> None:
        self.format = format
        self.scale, self.zero = float(grid.scale), float(grid.zero)
        self.depth = depth

    def __call__(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the layer, with its input rounded."""
        if args:
            return (self.rounded(args[0]), *args[1:]), dict(kwargs)
        return (), {**kwargs, "input": self.rounded(kwargs["input"])}

    def rounded(self, x: Tensor) -> Tensor:
        """Float32 numbers of the format, saturated; a NaN stays one."""
        way = next(way for kind, way in _WAYS.items() if isinstance(self.format, kind))
        return way(self, self.format, x)

    def __repr__(self) -> str:
        return f"to {self.format.name}, scale {self.scale:g}"


def _integer(rounding: InputRounding, fmt: Any, x: Tensor) -> Tensor:
    """Divided, not multiplied by the inverse, which ties would show."""
    whole = torch.round(x / rounding.scale)
    return (torch.clamp(whole + rounding.zero, fmt.least, fmt.largest) - rounding.zero) * rounding.scale


def _binary(rounding: InputRounding, fmt: Any, x: Tensor) -> Tensor:
    scale = torch.full_like(x, rounding.scale)
    return torch.where(x >= 0, scale, -scale)


def _nearest(fmt: Minifloat, x: Tensor) -> Tensor:
    """Rounds as `Minifloat.nearest` does; the exponent comes from the bits of a float32."""
    near = torch.clamp(x, -fmt.largest, fmt.largest)
    step = torch.clamp(_exponent(near), min=1 - fmt.bias) - fmt.mantissa
    return torch.round(near * _power_of_two(-step)) * _power_of_two(step)


def _blocks(rounding: InputRounding, fmt: Any, x: Tensor) -> Tensor:
    """Rounds in blocks; the last block is filled with zeros, which do not change its scale."""
    moved = x.movedim(rounding.depth, -1)
    length = moved.shape[-1]
    whole = nn.functional.pad(moved, (0, -length % BLOCK))
    parts = whole.reshape(*whole.shape[:-1], -1, BLOCK)
    largest = parts.abs().amax(-1, keepdim=True)
    shared = torch.clamp(_exponent(largest) - fmt.reach, min=LEAST_EXPONENT)
    # 2**-127 is half of the least power of two that has an exponent of its own
    scale = _power_of_two(shared + 1) * 0.5
    # `largest * 0` is NaN if the block has an infinite number or NaN, else 0
    near = _nearest(fmt.element, parts / scale) * scale + largest * 0
    return near.flatten(-2)[..., :length].movedim(-1, rounding.depth)


def _exponent(x: Tensor) -> Tensor:
    bits: Tensor = x.contiguous().view(torch.int32)
    return (bits >> 23 & 255) - 127


def _power_of_two(exponent: Tensor) -> Tensor:
    """2**exponent, float32, of an int32 between -126 and 127."""
    bits: Tensor = exponent + 127 << 23
    return bits.view(torch.float32)


_WAYS: Mapping[type[NumberFormat], Callable[[InputRounding, Any, Tensor], Tensor]] = {
    Binary: _binary,
    Integer: _integer,
    Half: lambda how, fmt, x: x.to(getattr(torch, fmt.name)).to(torch.float32),
    Minifloat: lambda how, fmt, x: _nearest(fmt, x / how.scale) * how.scale,
    Microscaling: _blocks,
}
"""The rounding function of each family; a subclass with its own function comes before its base."""
