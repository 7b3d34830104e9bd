"""Binary numbers (scale or -scale) and ternary numbers (scale, 0 or -scale)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from explorer.engine.number_formats.integer import Integer
from explorer.engine.number_formats.minifloat import find_largest_magnitude
from explorer.engine.number_formats.number_format import (
    Array,
    Grid,
    NamePattern,
    NumberFormat,
    Writing,
    build_scale_grid,
    reshape_for_tensor,
)

SLAB_ELEMENTS = 1 << 20
"""Number of elements summed at a time."""


class Binary(NumberFormat, frozen=True):
    """Two values: +scale for numbers >= 0, -scale for other numbers and NaN, as in QONNX's BipolarQuant."""

    scaled: ClassVar[bool] = True

    def build_grid(self, low: Array, high: Array, *, axis: int | None = None, symmetric: bool = True) -> Grid:
        """Returns a grid whose scale is half of the largest magnitude.

        This scale is the best for uniformly distributed magnitudes.
        """
        return _build_grid(find_largest_magnitude(low, high) / np.float32(2), axis)

    def fit_grid(
        self, values: Array, *, axis: int | None = None, block: int = 0, symmetric: bool = True
    ) -> Grid:
        """Returns a grid with the mean magnitude as scale, which has the least squared error (XNOR-Net)."""
        channels = _iterate_channels(values, axis)
        means = [np.asarray(_sum_magnitudes(channel) / max(1, channel.size)) for channel in channels]
        return _build_grid(np.stack(means), axis)

    def round_values(self, values: Array, grid: Grid, axis: int = -1) -> Array:
        """Returns the sign times the scale."""
        scale = reshape_for_tensor(grid.scale, values.shape, grid)
        return np.where(values >= 0, scale, -scale)

    def find_limits(self, grid: Grid) -> tuple[Array, Array]:
        """Returns the two values of the format."""
        return -grid.scale, grid.scale


class Ternary(Integer, frozen=True):
    """The nearest of -scale, 0 and +scale: a 2-bit integer without its smallest code."""

    @property
    def writing(self) -> Writing:
        """Returns 'function': QuantizeLinear has no integer type without its smallest code."""
        return "function"

    @property
    def least(self) -> int:
        """The smallest code, -1."""
        return -1

    def build_grid(self, low: Array, high: Array, *, axis: int | None = None, symmetric: bool = True) -> Grid:
        """Returns a grid whose scale is 2/3 of the largest magnitude.

        Each of the codes -1, 0 and 1 then stands for a third of the range.
        """
        return _build_grid(find_largest_magnitude(low, high) * np.float32(2) / np.float32(3), axis)

    def fit_grid(
        self, values: Array, *, axis: int | None = None, block: int = 0, symmetric: bool = True
    ) -> Grid:
        """Returns the grid whose scale has the least squared error.

        If the n largest magnitudes are rounded to +-scale, their mean is the best scale, and the squared
        error is sum w**2 - (their sum)**2 / n. The best n therefore has the largest (sum)**2 / n.
        """
        channels = _iterate_channels(values, axis)
        return _build_grid(np.stack([np.asarray(_find_ternary_scale(channel)) for channel in channels]), axis)


def _build_grid(scale: Array, axis: int | None) -> Grid:
    """Returns a grid with these scales in float32; without an axis there is a single scale."""
    scale = scale.astype(np.float32)
    return build_scale_grid(scale.reshape(()) if axis is None else scale, axis)


def _iterate_channels(values: Array, axis: int | None) -> Iterator[Array]:
    """Yields the values that share a scale, flattened."""
    if axis is None:
        yield values.reshape(-1)
        return
    for channel in np.moveaxis(values, axis, 0):
        yield channel.reshape(-1)


def _sum_magnitudes(values: Array) -> float:
    """Returns the sum of magnitudes, in float64."""
    pieces = (values[start : start + SLAB_ELEMENTS] for start in range(0, values.size, SLAB_ELEMENTS))
    return float(sum(float(np.abs(piece).sum(dtype=np.float64)) for piece in pieces))


def _find_ternary_scale(values: Array) -> float:
    """Returns the scale with the least squared error; a gain is the (sum)**2 / n of `Ternary.fit_grid`."""
    ordered = np.abs(values)
    ordered.sort()
    best_gain, scale, total = 0.0, 0.0, 0.0
    for stop in range(ordered.size, 0, -SLAB_ELEMENTS):  # from the largest magnitude down
        piece = ordered[max(0, stop - SLAB_ELEMENTS) : stop][::-1]
        sums = total + np.cumsum(piece, dtype=np.float64)
        counts = np.arange(ordered.size - stop + 1, ordered.size - stop + 1 + piece.size, dtype=np.float64)
        gains = sums * sums / counts
        best_index = int(np.argmax(gains))
        if gains[best_index] > best_gain:
            best_gain, scale = float(gains[best_index]), float(sums[best_index] / counts[best_index])
        total = float(sums[-1])
    return scale


NAME_PATTERNS: Sequence[NamePattern] = (
    (r"binary", lambda match: Binary(match[0], 1)),
    (r"ternary", lambda match: Ternary(match[0], 2)),
)

EXAMPLES = ("binary", "ternary")
