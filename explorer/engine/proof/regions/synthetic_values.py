"""Draws synthetic inputs of a region: dense random values, values at limits, and settings of branches."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from explorer.engine.proof.regions.trials import FLOATS
from explorer.engine.runtime.onnxruntime import Array

DRAWN_FLOATS = (*FLOATS, "bfloat16")
"""Float types of the values that are replaced by drawn values."""

Feeds = dict[str, Array]


def compute_spreads(values: Feeds) -> dict[str, float]:
    """Computes the spread of each float value: the standard deviation, or the largest magnitude, or 1."""
    deviations = {}
    for name, value in values.items():
        if value.dtype.name in DRAWN_FLOATS:
            finite = value[np.isfinite(value)].astype(np.float64)
            deviation = float(np.std(finite)) if finite.size else 0.0
            deviations[name] = deviation or float(np.abs(finite).max(initial=0.0)) or 1.0
    return deviations


def draw_dense_values(values: Feeds, spreads: Mapping[str, float], factor: float, seed: int) -> Feeds:
    """Replaces floats by normal random numbers of standard deviation `spreads[name]` times `factor`."""
    drawn_values: Feeds = {}
    for name, value in values.items():
        if name not in spreads:
            drawn_values[name] = value
            continue
        generator = np.random.default_rng((seed, zlib.crc32(name.encode())))
        with np.errstate(over="ignore"):
            drawn = generator.standard_normal(value.shape) * spreads[name] * factor
            drawn_values[name] = np.asarray(drawn).astype(value.dtype)
    return drawn_values


def draw_values_at_limits(values: Feeds, numbers: Sequence[float], seed: int) -> Feeds:
    """Draws values at which comparisons change: zeros, halves, equal values and numbers stored in the region.

    Args:
        values: Original values by name. Only floats are replaced.
        numbers: Numbers that the region stores, such as limits.
        seed: Seed of the random numbers.
    """
    drawn_values: Feeds = {}
    limits = [v * factor for v in numbers for factor in (1, 0.5, 1.5)]
    for name, value in values.items():
        if value.dtype.name not in DRAWN_FLOATS:
            drawn_values[name] = value
            continue
        generator = np.random.default_rng((seed, zlib.crc32(name.encode())))
        turning_points = generator.choice([0.0, -0.5, 0.5, -1.0, 1.0, 2.0, *limits], value.shape)
        is_normal = generator.random(value.shape) < 0.25
        with np.errstate(over="ignore"):
            numbers_drawn = np.asarray(
                np.where(is_normal, generator.standard_normal(value.shape), turning_points)
            ).astype(value.dtype)
        drawn_values[name] = np.where(np.isfinite(numbers_drawn), numbers_drawn, np.zeros_like(numbers_drawn))
    return drawn_values


def draw_ordered_values(values: Feeds, seed: int) -> list[Feeds]:
    """Draws floats in orders that random values do not have.

    The sets have rows in ascending and in descending order, rows and columns of one number, tensors of one
    number, one nonzero number in each row, rows with a sum of 0, and the same numbers in all inputs.
    """
    names = [name for name, value in values.items() if value.dtype.name in DRAWN_FLOATS and value.ndim]
    numbers = {name: _draw_normal(values[name], name, seed) for name in names}

    def use_alike(name: str) -> Array:
        count = min(numbers[name].size, 1 << 20)
        alike = np.random.default_rng(seed).standard_normal(count) if count else np.zeros(0)
        rows = np.resize(alike, values[name].shape)
        sizes: tuple[int, ...] = rows.shape
        is_square = rows.ndim > 1 and sizes[-1] == sizes[-2]
        return np.asarray(rows + np.swapaxes(rows, -1, -2)) if is_square else np.asarray(rows)

    orders: Sequence[Callable[[str], Array]] = (
        lambda name: np.sort(numbers[name], axis=-1),
        lambda name: np.sort(numbers[name], axis=-1)[..., ::-1],
        lambda name: np.broadcast_to(numbers[name][..., :1], values[name].shape),
        lambda name: np.broadcast_to(numbers[name][:1], values[name].shape),
        lambda name: np.broadcast_to(numbers[name].reshape(-1)[:1], values[name].shape),
        lambda name: np.where(np.arange(values[name].shape[-1]) == 0, 1.0, 0.0) * np.ones(values[name].shape),
        use_alike,
        lambda name: (numbers[name] - numbers[name][..., ::-1]).astype(np.float16),  # exact sums
    )
    filled = [name for name in names if values[name].size]
    return [
        {**values, **{name: np.array(order(name)).astype(values[name].dtype) for name in filled}}
        for order in (orders if filled else ())
    ]


def _draw_normal(value: Array, name: str, seed: int) -> Array:
    generator = np.random.default_rng((seed, zlib.crc32(name.encode())))
    return np.asarray(generator.standard_normal(value.shape))


def set_conditions(values: Feeds, names: Sequence[str], setting: bool) -> Feeds:
    """Sets every condition to true and every loop count to 3, or to false and 1."""
    settings = {n: setting if values[n].dtype.kind == "b" else (3 if setting else 1) for n in names}
    return {**values, **{n: np.full_like(values[n], value) for n, value in settings.items()}}
