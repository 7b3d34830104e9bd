"""Signal to noise in decibels: of powers, and of errors relative to what they are errors of.

Beside `units`, which a start reads: logarithms are not needed there.
"""

from __future__ import annotations

import math


def decibels(signal: float, noise: float) -> float:
    """Signal to noise, both by power (sums of squares) and above 0."""
    # the quotient of the two may be beyond a float
    return 10 * (math.log10(signal) - math.log10(noise))


def relative_decibels(error: float) -> float:
    """The same of an error by its amplitude, relative to what it is an error of."""
    return 2 * decibels(1, error)
