"""Limits how far each element of a site's output may be from the float64 reference.

The limit is 8 u (|x| |W|), where u is the unit roundoff of the type. With terms of both signs, the error of a
sum stays below 1 to 5 u of that scale. With terms of one sign, the partial sums grow as fast as the scale, so
the error grows with the square root of the number of consecutive additions. The limit then grows likewise.

The square root follows Higham and Mary, "A new approach to probabilistic rounding error analysis", SISC 2019.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from explorer.engine.proof.compare import LIMIT, SLAB, OutputComparison
from explorer.engine.proof.sites.reference import Reference
from explorer.engine.runtime.onnxruntime import Array
from explorer.facts import SitePlan

_SAME_SIGN_FACTOR = 1.5
"""Factor of the limit for terms of one sign. The limit is this factor times the square root of the number of
consecutive additions, times |x W| / (|x| |W|). Measurements with positive numbers in tiles 4 to 1,024 deep
gave factors of 0.6 to 1.2."""


def count_additions(site: SitePlan) -> int:
    """Counts the consecutive additions that produce one element: inside a tile, then across the tiles."""
    return min(site.tile[1], site.K) + site.grid[1]


def describe_fault(comparison: OutputComparison, ratio: float, limit: float) -> str:
    """Describes the fault in a site's numbers, or returns '' if there is no fault."""
    if comparison.nonfinite:
        return f"{comparison.nonfinite:,} NaN or Inf that the original does not have"
    if not ratio <= limit:  # a NaN must fail, and compares false with everything
        return f"rounding {ratio:.3g} u, limit {limit:.3g} u"
    return ""


def find_largest_ratio(
    outputs: Sequence[Array],
    references: Sequence[Reference],
    roundoff: float,
    chain: int,
    smallest_limit: float,
) -> tuple[float, float]:
    """Finds the error ratio that is closest to its limit among several runs.

    Args:
        outputs: Output of the site for each run, in the compared rows.
        references: Expected output for each run.
        roundoff: Unit roundoff of the output type.
        chain: Number of consecutive additions for one element.
        smallest_limit: Allowed absolute error of numbers too small for a relative limit.

    Returns:
        The ratio and its limit.
    """
    ratio, limit = 0.0, LIMIT
    # for dense rows there is no output of the original to compare with, so the ratio must show a NaN
    for output, reference in zip(outputs, references, strict=True):
        ratio_and_limit = _find_worst_ratio(output, reference, roundoff, chain, smallest_limit)
        if ratio_and_limit[0] / ratio_and_limit[1] >= ratio / limit:
            ratio, limit = ratio_and_limit
    return ratio, limit


def _find_worst_ratio(
    output: Array, reference: Reference, roundoff: float, chain: int, smallest_limit: float
) -> tuple[float, float]:
    """Finds |error| / (u bound) and the limit of the element that is closest to its limit.

    The ratio is infinite if a finite result became NaN or Inf.
    """
    flat = [array.reshape(-1) for array in (output, reference.exact, reference.bound, reference.product)]
    ratio, limit = 0.0, LIMIT
    for first in range(0, output.size, SLAB):
        slabs = [array[first : first + SLAB] for array in flat]
        ratio_and_limit = _find_worst_ratio_of_slab(slabs, roundoff, chain, smallest_limit)
        if ratio_and_limit[0] / ratio_and_limit[1] > ratio / limit:
            ratio, limit = ratio_and_limit
    return ratio, limit


def _find_worst_ratio_of_slab(
    slabs: Sequence[Array], roundoff: float, chain: int, smallest_limit: float
) -> tuple[float, float]:
    """Finds the same ratio and limit in one slab: output, exact result, bound and product."""
    output, exact, bound, product = slabs
    dtype = output.dtype
    is_finite = np.isfinite(exact) & np.isfinite(bound)
    with np.errstate(over="ignore"):
        # a sum that is too large for the type is rightly Inf
        is_finite &= np.isfinite(exact.astype(dtype))
    if not is_finite.all():
        output, exact, bound, product = (array[is_finite] for array in slabs)
    if not output.size:
        return 0.0, LIMIT
    error = np.abs(output.astype(exact.dtype) - exact)
    if not np.isfinite(error).all():
        return float("inf"), LIMIT
    scale = roundoff * bound + smallest_limit
    ratios = error / scale
    coherence = np.abs(product) * roundoff / scale
    limits = np.maximum(LIMIT, _SAME_SIGN_FACTOR * math.sqrt(chain) * coherence)
    worst = int(np.argmax(ratios / limits))
    return float(ratios[worst]), float(limits[worst])


def find_smallest_number(dtype: np.dtype[Any]) -> float:
    """Returns the smallest positive number of a float type, subnormals included."""
    if dtype.kind == "f":
        return float(np.finfo(dtype).smallest_subnormal)
    import ml_dtypes

    limits: Any = ml_dtypes.finfo
    return float(limits(dtype).smallest_subnormal)
