"""Signal to noise in decibels, of powers and of relative errors.

Apart from `units`, which is imported at start: no logarithms are needed there.
"""

from __future__ import annotations

import math


def decibels(signal: float, noise: float) -> float:
    """Signal-to-noise ratio of two powers (sums of squares), both above 0."""
    # their quotient may exceed a float
    return 10 * (math.log10(signal) - math.log10(noise))


def relative_decibels(error: float) -> float:
    """Signal-to-noise ratio of an error, given as amplitude relative to the value."""
    return 2 * decibels(1, error)
