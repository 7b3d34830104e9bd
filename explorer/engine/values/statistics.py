"""Statistics of a tensor that is read a slab at a time.

All figures are exact, including quantiles, for a tensor of any size. A type of at most 16 bits has at most
65,536 values: one pass counts them, and the counts give every figure. Wider types take several passes
(`quantiles`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from explorer.engine.progress import Cancel
from explorer.engine.values.figures.code_counts import compute_from_codes
from explorer.engine.values.figures.intervals import QUANTILES
from explorer.engine.values.figures.moments import compute_moments, compute_statistics
from explorer.engine.values.figures.quantiles import NOTHING, WideStatistics
from explorer.engine.values.numbers import Array, Numbers, read_chunks
from explorer.facts import TensorInfo
from explorer.facts.values import TensorStats
from explorer.settings.statistics import STATISTICS, Choice


def measure(
    numbers: Numbers,
    *,
    bins: int = 32,
    call: int = 0,
    origin: str = "observed",
    choices: Sequence[Choice] = (),
    axis: int | None = None,
    cancel: Cancel = None,
) -> TensorStats:
    """Computes the statistics of one tensor.

    Args:
        numbers: The tensor.
        bins: Number of intervals of the histogram.
        call: Index of the layer's call that computed the tensor.
        origin: Origin of type and shape, for `TensorInfo`.
        choices: Additional statistics.
        axis: Axis whose indices get one additional statistic each, or None for one over all numbers. A
            negative axis counts from the last one. A tensor without the axis has no additional statistics.
        cancel: Function called at every slab; True cancels.

    Raises:
        Cancelled: `cancel` returned True.
        BadModel: The tensor cannot be read.
    """
    levels = list_quantile_levels(choices)
    stats_fields = compute_figures(numbers, bins, levels, cancel)
    quantiles = dict(stats_fields.pop("quantiles", ()))
    return TensorStats(
        TensorInfo(numbers.name, numbers.dtype, numbers.shape, origin),
        numbers.layer,
        numbers.elements,
        numbers.nbytes,
        call=call,
        trainable=numbers.trainable,
        quantiles=select_reported_quantiles(quantiles),
        chosen=_compute_statistics(numbers, choices, axis, quantiles, levels, cancel) if choices else {},
        **stats_fields,
    )


def list_quantile_levels(choices: Iterable[Choice]) -> list[float]:
    """Returns the level of every requested quantile (0.5 for the median), ascending."""
    return sorted({choice.argument for choice in choices if STATISTICS[choice.name].is_quantile})


def select_reported_quantiles(quantiles: Mapping[float, float]) -> tuple[tuple[float, float], ...]:
    """Returns the quantiles that are reported for every tensor."""
    return tuple((q, quantiles[q]) for q in QUANTILES if q in quantiles)


def compute_figures(
    numbers: Numbers, bins: int, levels: Collection[float] = (), cancel: Cancel = None
) -> dict[str, Any]:
    """Computes the figures of a tensor, as fields of `TensorStats`.

    Args:
        numbers: The tensor.
        bins: Number of intervals of the histogram.
        levels: Levels of additional quantiles, such as 0.5 for the median.
        cancel: Function called at every slab; True cancels.

    Raises:
        Cancelled: `cancel` returned True.
        BadModel: The tensor cannot be read.
    """
    first = next(numbers.slabs(), None)
    dtype = np.dtype(np.float32) if first is None else first.dtype
    if first is None and not numbers.unstored_zeros:
        return dict(NOTHING)
    del first
    if numbers.dtype == "string" or dtype.kind in "cOUSM":
        return dict(_compute_unordered_figures(numbers, dtype, cancel))
    all_levels = sorted({*QUANTILES, *levels})
    if dtype.itemsize <= 2:
        return compute_from_codes(numbers, dtype, bins, all_levels, cancel)
    return dict(WideStatistics(numbers, dtype, bins, all_levels, cancel).compute_figures())


def _compute_statistics(
    numbers: Numbers,
    choices: Sequence[Choice],
    axis: int | None,
    quantiles: Mapping[float, float],
    levels: Sequence[float],
    cancel: Cancel,
) -> dict[str, tuple[float | None, ...]]:
    """Computes the requested statistics of a tensor, or of each index of an axis."""
    rank = len(numbers.shape)
    if axis is not None and not -rank <= axis < rank:
        return {}
    positive_axis = None if axis is None else axis % rank
    sums = compute_moments(numbers, positive_axis, cancel)
    if sums is None or int(sums.elements.sum()) != numbers.elements:
        return {}  # text, complex numbers, or numbers that cannot be read
    if positive_axis is None:
        return compute_statistics(sums, choices, {q: (value,) for q, value in quantiles.items()})
    return compute_statistics(
        sums, choices, compute_quantiles_along([numbers], positive_axis, levels) if levels else {}
    )


def compute_quantiles_along(
    tensors: Sequence[Numbers], axis: int, levels: Sequence[float]
) -> dict[float, tuple[float | None, ...]]:
    """Computes the quantiles of each index of an axis, over tensors in which the axis has the same length.

    The tensors are loaded into memory, in their stored type. An index without finite numbers has None.
    """
    parts = [np.moveaxis(_load_numbers(numbers), axis, 0) for numbers in tensors]
    rows: list[list[float | None]] = []
    for index in range(parts[0].shape[0]):
        values = np.concatenate([part[index].astype(np.float64).reshape(-1) for part in parts])
        values = values[np.isfinite(values)]
        rows.append(np.quantile(values, levels).tolist() if values.size else [None] * len(levels))
    return {q: tuple(row[index] for row in rows) for index, q in enumerate(levels)}


def _load_numbers(numbers: Numbers) -> Array:
    """Returns all numbers of a tensor, in its shape."""
    slabs = list(numbers.slabs())
    return (np.concatenate(slabs) if slabs else np.zeros(0)).reshape(numbers.shape)


def _compute_unordered_figures(numbers: Numbers, dtype: np.dtype[Any], cancel: Cancel) -> Mapping[str, Any]:
    """Returns figures of types without an order: counts of zero, NaN and Inf for complex numbers.

    Strings have no figures.
    """
    if dtype.kind != "c":
        return NOTHING
    nan = inf = 0
    zeros = numbers.unstored_zeros
    for chunk in read_chunks(numbers, cancel):
        is_nan = np.isnan(chunk)
        nan += int(is_nan.sum())
        inf += int((np.isinf(chunk) & ~is_nan).sum())
        zeros += int((chunk == 0).sum())
    return {**NOTHING, "zeros": zeros / numbers.elements, "nan": nan, "inf": inf}
