"""Computes medians with 95 % intervals, decides when there are enough runs, and compares samples by rank.

The times of runs have a long tail, so no distribution is assumed. The number of samples below the true median
is binomial with p = 1/2. The interval from the j-th smallest to the j-th largest sample therefore contains
the median with probability 1 - 2 P(B(n, 1/2) < j) (David and Nagaraja, Order Statistics, 7.1). With too few
samples for an interval, a rank test can still tell two models apart (Mann and Whitney, 1947).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import accumulate

from explorer.facts.profile.profile import Spread, Stopped

WITHIN = 0.05
"""Maximum distance of the interval's ends from the median, as a share of the median."""
_ERROR_PROBABILITY = 0.05
"""Probability that the interval does not contain the median."""
_MIN_SAMPLES = 10
_MIN_SECONDS = 0.2
"""Minimum number of samples and of seconds before a narrow interval is trusted, because clocks drift
slowly."""


def compute_spread(samples: Sequence[float]) -> Spread:
    """Computes the median of samples, with its interval.

    Args:
        samples: Seconds; at least one.
    """
    ordered = sorted(samples)
    rank = _compute_rank(len(ordered))
    return Spread(
        _compute_quantile(ordered, 0.5),
        _compute_quantile(ordered, 0.1),
        _compute_quantile(ordered, 0.9),
        ordered[rank],
        ordered[-1 - rank],
        len(ordered),
    )


def is_settled(times: Spread) -> bool:
    """Whether there are enough samples for an interval, and the interval is within 5 % of the median."""
    near = WITHIN * times.median
    return times.sure and times.low >= times.median - near and times.high <= times.median + near


def find_stop_reason(
    samples: Sequence[float], elapsed: float, *, steps: int | None, time_limit: float
) -> Stopped | None:
    """Returns the reason to stop, or None to continue.

    Args:
        samples: Wall times so far, in seconds.
        elapsed: Seconds since the first run started, with everything between the runs.
        steps: Requested number of runs, or None to run until the median is settled.
        time_limit: Limit of `elapsed`, in seconds.
    """
    if not samples:
        return None
    if steps is not None and len(samples) >= steps:
        return "steps"
    if elapsed >= time_limit:
        return "time limit"
    has_enough = len(samples) >= _MIN_SAMPLES and elapsed >= _MIN_SECONDS
    if steps is None and has_enough and is_settled(compute_spread(samples)):
        return "settled"
    return None


def _compute_quantile(ordered: Sequence[float], share: float) -> float:
    """Computes a quantile of sorted samples by linear interpolation."""
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def _compute_rank(count: int) -> int:
    """Computes the number of samples below the interval, which is also the number above it.

    The result is 0 if there are too few samples.
    """
    if count > _MAX_EXACT_SAMPLES:
        # normal approximation with z = 1.96, because the exact sums would have thousands of terms
        return max(0, math.floor(count / 2 - 0.98 * math.sqrt(count)) - 1)
    tail, rank = 0, 0
    while rank < count // 2:
        tail += math.comb(count, rank)
        if 2 * tail > _ERROR_PROBABILITY * 2**count:
            break
        rank += 1
    # the interval begins at the rank-th smallest sample, which excludes rank - 1 samples
    return max(0, rank - 1)


def ranks_differ(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether two groups of samples differ beyond chance, at a level of 1 in 20.

    False does not show that the times are equal: two samples in each group never differ. Ties count against a
    difference.
    """
    second_larger = sum(a > b for a in second for b in first)
    ties = sum(a == b for a in second for b in first)
    out_of_order = min(second_larger, len(first) * len(second) - second_larger - ties) + ties
    return out_of_order <= _compute_max_out_of_order(*sorted((len(first), len(second))))


@cache
def _compute_max_out_of_order(smaller: int, larger: int) -> int:
    """Computes the maximum number of out-of-order pairs that is unlikely by chance, or -1 if none is.

    Args:
        smaller: Number of samples in the smaller group.
        larger: Number of samples in the larger group.
    """
    # number of orders by number of out-of-order pairs: the coefficients of a Gaussian binomial
    orders = [1] + [0] * (smaller * larger)
    for i in range(1, smaller + 1):
        for pairs in range(smaller * larger, larger + i - 1, -1):
            orders[pairs] -= orders[pairs - larger - i]
        for pairs in range(i, smaller * larger + 1):
            orders[pairs] += orders[pairs - i]
    limit = _ERROR_PROBABILITY * math.comb(smaller + larger, smaller)
    return sum(2 * up_to <= limit for up_to in accumulate(orders)) - 1


_MAX_EXACT_SAMPLES = 1000
"""Number of samples above which the normal approximation replaces the binomial distribution."""
