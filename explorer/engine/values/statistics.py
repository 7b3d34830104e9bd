"""Statistics of a tensor that is read a slab at a time.

Everything is exact, quantiles too, so no tensor is too large. A type of at most 16 bits has at most 65,536
values: how often each occurs says all there is to know, in one pass. Wider types take several (`wide`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from explorer.engine.progress import Cancel
from explorer.engine.values.intervals import edges_of, places, quantiles
from explorer.engine.values.numbers import Array, Numbers, chunks
from explorer.engine.values.wide import NOTHING, WideStatistics
from explorer.facts import TensorInfo
from explorer.facts.values import Histogram, TensorStats


def measure(
    numbers: Numbers, *, bins: int = 32, call: int = 0, origin: str = "observed", cancel: Cancel = None
) -> TensorStats:
    """What there is to say about the numbers of one tensor.

    Args:
        numbers: The tensor.
        bins: Intervals of the histogram.
        call: Which call of its layer made it.
        origin: Who says so, for `TensorInfo`.
        cancel: Asked at every slab; True stops.

    Raises:
        Cancelled: `cancel` said so.
        BadModel: The tensor cannot be read.
    """
    first = next(numbers.slabs(), None)
    kind = np.dtype(np.float32) if first is None else first.dtype
    empty = first is None and not numbers.zeros
    del first
    found: Mapping[str, Any]
    if empty:
        found = NOTHING
    elif numbers.dtype == "string" or kind.kind in "cOUSM":
        found = _counted_only(numbers, kind, cancel)
    elif kind.itemsize <= 2:
        found = _by_value(numbers, kind, bins, cancel)
    else:
        found = WideStatistics(numbers, kind, bins, cancel).figures()
    return TensorStats(
        TensorInfo(numbers.name, numbers.dtype, numbers.shape, origin),
        numbers.layer,
        numbers.elements,
        numbers.nbytes,
        call=call,
        trainable=numbers.trainable,
        **found,
    )


def _counted_only(numbers: Numbers, kind: np.dtype[Any], cancel: Cancel) -> Mapping[str, Any]:
    """Strings have no figures, complex numbers no order: of these only what is zero, NaN or infinite."""
    if kind.kind != "c":
        return NOTHING
    nan = inf = 0
    zeros = numbers.zeros
    for chunk in chunks(numbers, cancel):
        bad = np.isnan(chunk)
        nan += int(bad.sum())
        inf += int((np.isinf(chunk) & ~bad).sum())
        zeros += int((chunk == 0).sum())
    return {**NOTHING, "zeros": zeros / numbers.elements, "nan": nan, "inf": inf}


def _by_value(numbers: Numbers, kind: np.dtype[Any], bins: int, cancel: Cancel) -> Mapping[str, Any]:
    """Of a type of one or two bytes: from how often each of its values occurs."""
    code = np.dtype(np.uint8 if kind.itemsize == 1 else np.uint16)
    counts = np.zeros(1 << (8 * kind.itemsize), np.int64)
    for chunk in chunks(numbers, cancel):
        counts += np.bincount(np.ascontiguousarray(chunk).view(code), minlength=counts.size)
    values = np.arange(counts.size).astype(code)
    codes = np.flatnonzero(counts)
    with np.errstate(invalid="ignore"):
        numeric = values[codes].view(np.bool_ if kind.kind == "b" else kind).astype(np.float64)
    counts = counts[codes]
    nan, inf = int(counts[np.isnan(numeric)].sum()), int(counts[np.isinf(numeric)].sum())
    finite = np.isfinite(numeric)
    # -0.0 and 0.0 are two codes and one value
    numeric, where = np.unique(numeric[finite], return_inverse=True)
    merged = np.zeros(numeric.size, np.int64)
    np.add.at(merged, where, counts[finite])
    if numbers.zeros:
        numeric, merged = _with_zeros(numeric, merged, numbers.zeros)
    total = int(merged.sum())
    if not total:
        return {**NOTHING, "zeros": 0.0, "nan": nan, "inf": inf}
    mean = math.fsum(numeric * merged) / total
    variance = math.fsum((numeric - mean) ** 2 * merged) / total
    cumulative = np.cumsum(merged)
    low, high = float(numeric[0]), float(numeric[-1])
    edges = edges_of(low, high, bins)
    filled = np.zeros(bins, np.int64)
    np.add.at(filled, places(numeric, edges), merged)
    return {
        "minimum": low,
        "maximum": high,
        "mean": mean,
        "std": math.sqrt(variance),
        "zeros": int(merged[numeric == 0].sum()) / numbers.elements,
        "nan": nan,
        "inf": inf,
        "quantiles": quantiles(
            total, lambda rank: float(numeric[np.searchsorted(cumulative, rank, side="right")])
        ),
        "histogram": Histogram(tuple(edges.tolist()), tuple(filled.tolist())),
    }


def _with_zeros(values: Array, counts: Array, zeros: int) -> tuple[Array, Array]:
    """The counts of sorted values with `zeros` more zeros."""
    at = int(np.searchsorted(values, 0.0))
    if at == values.size or values[at] != 0:
        values, counts = np.insert(values, at, 0.0), np.insert(counts, at, 0)
    counts[at] += zeros
    return values, counts
