"""Signal-to-noise ratios in decibels, of powers and of relative errors.

This module is separate from `units`, which is imported at startup and needs no logarithms.
"""

from __future__ import annotations

import math


def compute_decibels(signal: float, noise: float) -> float:
    """Computes the signal-to-noise ratio of two powers (sums of squares), both above 0."""
    # the quotient may overflow a float
    return 10 * (math.log10(signal) - math.log10(noise))


def compute_relative_decibels(error: float) -> float:
    """Computes the signal-to-noise ratio of a relative error, given as amplitude."""
    return 2 * compute_decibels(1, error)
