"""Number formats a second way: every number that a format has, written out, and the nearest of them taken."""

from __future__ import annotations

import math

import numpy as np


def nearest(values: np.ndarray, numbers: list[float]) -> np.ndarray:
    """The nearest of `numbers` (ascending, of codes 0, 1, 2 ...), the even code where two are as near."""
    table = np.array(numbers, np.float64)
    wide = np.clip(values.astype(np.float64), table[0], table[-1])
    above = np.clip(np.searchsorted(table, wide), 1, len(table) - 1)
    low, high = table[above - 1], table[above]
    to_low, to_high = np.abs(wide - low), np.abs(high - wide)
    upper = (to_high < to_low) | ((to_high == to_low) & (above % 2 == 0))
    out = np.where(upper, high, low)
    return np.where(np.isnan(values), np.nan, out).astype(np.float32)


def rounded_magnitudes(values: np.ndarray, numbers: list[float]) -> np.ndarray:
    """The same for a format of sign and magnitude, whose `numbers` begin at 0."""
    return np.copysign(nearest(np.abs(values), numbers), values)


def float_numbers(exponent_bits: int, mantissa_bits: int, bias: int) -> list[float]:
    """The numbers of a float without a sign, by their codes: no infinity, no NaN."""
    numbers = []
    for code in range(1 << (exponent_bits + mantissa_bits)):
        exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
        part = mantissa / (1 << mantissa_bits)
        numbers.append(2.0 ** (exponent - bias) * (1 + part) if exponent else 2.0 ** (1 - bias) * part)
    return numbers


MX_ELEMENTS = {
    "mxint8": [k / 64 for k in range(128)],
    "mxfp8": float_numbers(4, 3, 7)[:-1],
    "mxfp8e5m2": float_numbers(5, 2, 15)[:-4],
    "mxfp6": float_numbers(2, 3, 1),
    "mxfp6e3m2": float_numbers(3, 2, 3),
    "mxfp4": float_numbers(2, 1, 1),
}
"""Magnitudes of the elements: 1/64ths up to 127/64; E4M3 without its NaN, E5M2 without infinity and NaNs."""

EMAX = {"mxint8": 0, "mxfp8": 8, "mxfp8e5m2": 15, "mxfp6": 2, "mxfp6e3m2": 4, "mxfp4": 2}
"""Exponent of the largest number of each, from the specification's table."""


def microscaled(block: np.ndarray, name: str) -> np.ndarray:
    """One block of at most 32 numbers in a format of the MX specification, 6.3, in Python's own floats."""
    if not np.isfinite(block).all():
        return np.full(block.shape, np.nan, np.float32)
    largest = max(abs(float(x)) for x in block)
    if largest == 0:
        return block
    shared = max(math.frexp(largest)[1] - 1 - EMAX[name], -127)
    out = rounded_magnitudes(block.astype(np.float64) / 2.0**shared, MX_ELEMENTS[name])
    return (out.astype(np.float64) * 2.0**shared).astype(np.float32)
