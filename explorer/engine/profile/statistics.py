"""Median with its 95 % interval by order statistics, and when enough runs were made.

Times of runs have a long tail and no known distribution, so nothing is assumed of it: the number of samples
below the true median is binomial with p = 1/2, and the interval between the j-th smallest and the j-th
largest holds it with probability 1 - 2 P(B(n, 1/2) < j) (David and Nagaraja, Order Statistics, 7.1). Where
there are too few of one for an interval, ranks still tell two apart (Mann and Whitney, 1947).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import accumulate

from explorer.facts.profile.profile import Spread, Stopped

WITHIN = 0.05
"""Share of the median within which its interval must lie."""
_LEFT_OUT = 0.05
"""Probability that the interval does not hold the median."""
_FEWEST = 10
_LONG = 0.2
"""Samples and seconds before which a narrow interval is not trusted: clocks and other work drift slower."""


def spread(samples: Sequence[float]) -> Spread:
    """The median of samples, with its interval.

    Args:
        samples: Seconds, one at least.
    """
    ordered = sorted(samples)
    rank = _rank(len(ordered))
    return Spread(
        _quantile(ordered, 0.5),
        _quantile(ordered, 0.1),
        _quantile(ordered, 0.9),
        ordered[rank],
        ordered[-1 - rank],
        len(ordered),
    )


def is_settled(times: Spread) -> bool:
    """Whether the interval of a median is within 5 % of it."""
    near = WITHIN * times.median
    return times.sure and times.low >= times.median - near and times.high <= times.median + near


def why_stop(
    samples: Sequence[float], elapsed: float, *, steps: int | None, time_limit: float
) -> Stopped | None:
    """The reason to stop; None to go on.

    Args:
        samples: Wall times so far, in seconds.
        elapsed: Seconds since the first of them, with all that was done between.
        steps: Requested number of runs, which then only the time limit shortens; None: until the median is
            settled.
        time_limit: In seconds.
    """
    if not samples:
        return None
    if steps is not None and len(samples) >= steps:
        return "steps"
    if elapsed >= time_limit:
        return "time limit"
    long = len(samples) >= _FEWEST and elapsed >= _LONG
    if steps is None and long and is_settled(spread(samples)):
        return "settled"
    return None


def _quantile(ordered: Sequence[float], share: float) -> float:
    """A quantile of sorted samples, straight between the two around it."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _rank(count: int) -> int:
    """How many samples lie below the interval, and as many above; 0 where that is not sure enough."""
    if count > _NORMAL:  # z is 1.96; the sums below would be of thousands of terms
        return max(0, math.floor(count / 2 - 0.98 * math.sqrt(count)) - 1)
    tail, rank = 0, 0
    while rank < count // 2:
        tail += math.comb(count, rank)
        if 2 * tail > _LEFT_OUT * 2**count:
            break
        rank += 1
    # the interval from the rank-th smallest on excludes the ones below it
    return max(0, rank - 1)


def ranks_differ(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether one model's samples lie above the other's, beyond chance (1 in 20) for equal times.

    False is no sign of equal times: two samples each never differ. Ties count against a difference.
    """
    above = sum(a > b for a in after for b in before)
    ties = sum(a == b for a in after for b in before)
    fewer = min(above, len(before) * len(after) - above - ties) + ties
    return fewer <= _most_out_of_order(*sorted((len(before), len(after))))


@cache
def _most_out_of_order(few: int, many: int) -> int:
    """The most pairs out of order that chance does not explain, both ways; -1 if there is no such number."""
    # orders of the samples by pairs out of order: the coefficients of a Gaussian binomial
    orders = [1] + [0] * (few * many)
    for i in range(1, few + 1):
        for pairs in range(few * many, many + i - 1, -1):
            orders[pairs] -= orders[pairs - many - i]
        for pairs in range(i, few * many + 1):
            orders[pairs] += orders[pairs - i]
    rare = _LEFT_OUT * math.comb(few + many, few)
    return sum(2 * up_to <= rare for up_to in accumulate(orders)) - 1


_NORMAL = 1000
"""Samples above which the binomial is taken for a normal one."""
