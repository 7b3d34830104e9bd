"""Calibration: ranges of activations from a model's runs on samples.

Samples are processed one after the other, and no value is kept: for each there is its least and its largest
number and, where a calibrator needs it, a histogram that folds when larger numbers come.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import numpy as np
from msgspec import Struct

from explorer.base.errors import Misuse
from explorer.base.units import printable
from explorer.engine.graph.model import Model
from explorer.engine.number_formats.number_format import Array, NumberFormat
from explorer.engine.quantize.integers.channel_means import ChannelMeans
from explorer.engine.quantize.runs import observe_values
from explorer.engine.runtime.samples import Samples
from explorer.facts.quantize import Calibrator

Range = tuple[float, float]
Key = TypeVar("Key", bound=Hashable)

HALF = 4096
"""Intervals of a histogram on either side of zero."""

_CHUNK = 1 << 17
"""Numbers that are sorted into the histogram together, which stay in the processor's cache."""

_LEAST_TOP = -100
"""The exponent of the smallest histogram: below it the scale of its intervals is no float32."""

_STEPS = 64
"""Ranges that the searches for the least divergence and the least error try in a round."""

_SMOOTHING = 1e-4
"""Count of an empty interval, so that the logarithm of its share exists."""


class RangeUse(Struct, frozen=True):
    """A value that needs a range, with its format.

    Attributes:
        value: Its name.
        format: The format to which it will be rounded.
        symmetric: Whether the zero point is in the middle.
    """

    value: str
    format: NumberFormat
    symmetric: bool = True


class ValueDistribution:
    """The distribution of the numbers of a value, over all added samples.

    Args:
        fine: Keep a histogram: `HALF` intervals of equal width on either side of zero, up to a power of two.

    Attributes:
        low, high: The least and the largest finite number; 0 and 0 if there is none.
        counts: Numbers in each interval; `edges` are the intervals.
        zeros: Number of zeros, which every format has.
        nan: Number of NaN; they and infinities are in no range.
    """

    def __init__(self, *, fine: bool = True) -> None:
        self.fine = fine
        self.low, self.high, self.nan, self.zeros = math.inf, -math.inf, 0, 0
        self.counts = np.zeros(2 * HALF if fine else 0, np.int64)
        self._exponent: int | None = None

    def add(self, values: Array) -> None:
        """Takes the numbers of one sample in; of any shape, and any float type."""
        flat = values.reshape(-1)
        for at in range(0, flat.size, _CHUNK):
            self._add(flat[at : at + _CHUNK].astype(np.float32, copy=False))

    def _add(self, chunk: Array) -> None:
        low, high = float(chunk.min()), float(chunk.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            self.nan += int(np.isnan(chunk).sum())
            chunk = chunk[np.isfinite(chunk)]
            if not chunk.size:
                return
            low, high = float(chunk.min()), float(chunk.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        if self.fine:
            self.zeros += int(np.count_nonzero(chunk == 0))
            self._grow(max(-self.low, self.high))
            # a power of two, so the product and the interval are exact
            places = np.floor(chunk * np.float32(HALF / self.top)).astype(np.int32) + HALF
            self.counts += np.bincount(np.clip(places, 0, 2 * HALF - 1), minlength=2 * HALF)

    @property
    def nonzero(self) -> Array:
        """Counts of the intervals without zeros themselves."""
        counts = self.counts.copy()
        counts[HALF] -= self.zeros
        return counts

    @property
    def top(self) -> float:
        """Where the histogram ends: a power of two."""
        return 2.0 ** (_LEAST_TOP if self._exponent is None else self._exponent)

    @property
    def edges(self) -> Array:
        """Ends of the intervals, `2 HALF + 1` of them, float64."""
        return np.arange(-HALF, HALF + 1) * (self.top / HALF)

    def _grow(self, largest: float) -> None:
        """Folds neighboring intervals until the largest number has its own."""
        mantissa, exponent = math.frexp(largest)
        top_exponent = max(exponent - (mantissa == 0.5), _LEAST_TOP)
        if self._exponent is None or top_exponent <= self._exponent:
            self._exponent = top_exponent if self._exponent is None else self._exponent
            return
        # each new interval takes `fold` old ones; if there are fewer, the two innermost take all
        fold = 1 << min(top_exponent - self._exponent, HALF.bit_length() - 1)
        inner = self.counts.reshape(-1, fold).sum(1)
        self.counts[:] = 0
        self.counts[HALF - inner.size // 2 : HALF + inner.size // 2] = inner
        self._exponent = top_exponent

    def range(self, use: RangeUse, calibrator: Calibrator, percentile: float) -> Range:
        """The range that a calibrator chooses; where nothing was seen, 0 and 0."""
        if self.high < self.low:
            return 0.0, 0.0
        return _CALIBRATORS[calibrator](self, use, percentile)


def ranges(
    model: Model,
    uses: Mapping[Key, RangeUse],
    samples: Samples,
    calibrator: Calibrator = "minmax",
    percentile: float = 99.999,
    step: Callable[[int, int], None] = lambda done, total: None,
    means: ChannelMeans | None = None,
) -> dict[Key, Range]:
    """Ranges of activations.

    Args:
        model: The model to run in onnxruntime.
        uses: The values, with the formats in which they are rounded; keys are the caller's.
        samples: Inputs of the model.
        calibrator: The rule for a range. `minmax`: from the least to the largest number. `percentile`: this
            share of all numbers lies inside, and as many lie below as above. `entropy`: rounding to the
            format's levels diverges least from all numbers (Kullback-Leibler). `mse`: the mean squared error
            of rounding, saturation included, is least.
        percentile: For the calibrator `percentile`, in per cent.
        step: As for `observe_values`.
        means: Also takes the values that it needs.

    Raises:
        Misuse: A value holds NaN, or the percentile is out of range.
        BadModel: The model does not run on a sample.
    """
    ranged = {use.value for use in uses.values()}
    names = dict.fromkeys((*(use.value for use in uses.values()), *(means.axes if means else ())))

    def observe(take: Callable[[str, Array], None]) -> None:
        def both(name: str, value: Array) -> None:
            if name in ranged:
                take(name, value)
            if means is not None:
                means.add(name, value)

        observe_values(model, names, samples, both, step)

    return ranges_seen(
        uses,
        observe,
        samples.text,
        calibrator,
        percentile,
    )


def ranges_seen(
    uses: Mapping[Key, RangeUse],
    observe: Callable[[Callable[[str, Array], None]], None],
    text: str,
    calibrator: Calibrator,
    percentile: float,
) -> dict[Key, Range]:
    """Ranges as of `ranges`, for any function that runs the model.

    Args:
        uses: See `ranges`.
        observe: Calls its argument with the name and the value of every value of every sample.
        text: The origin of the samples.
        calibrator: See `ranges`.
        percentile: See `ranges`.

    Raises:
        Misuse: A value holds NaN, or the percentile is out of range.
    """
    check_percentile(percentile)
    distributions = {use.value: ValueDistribution(fine=calibrator != "minmax") for use in uses.values()}
    observe(lambda name, value: distributions[name].add(value))
    return {
        key: calibrated_range(distributions[use.value], use, text, calibrator, percentile)
        for key, use in uses.items()
    }


def check_percentile(percentile: float) -> None:
    """Refuses a percentile that gives no range.

    Raises:
        Misuse: The percentile gives no range.
    """
    if not 50 < percentile <= 100:
        raise Misuse(f"of {percentile:g} % no range can be made", where="--percentile", hint="99.999")


def calibrated_range(
    distribution: ValueDistribution, use: RangeUse, text: str, calibrator: Calibrator, percentile: float
) -> Range:
    """The range of a value, from its distribution over the samples.

    Raises:
        Misuse: It holds NaN.
    """
    if distribution.nan:
        problem = f"the value '{printable(use.value)}' has {distribution.nan:,} NaN"
        raise Misuse(f"{problem} with {text}: no range can be made")
    return distribution.range(use, calibrator, percentile)


def _percentile(distribution: ValueDistribution, use: RangeUse, percentile: float) -> Range:
    """The narrowest interval ends that leave at most the given share outside, half on either side."""
    total = int(distribution.counts.sum())
    outside = math.floor(total * (100 - percentile) / 200)
    below, edges = np.cumsum(distribution.counts), distribution.edges
    first = int(np.searchsorted(below, outside, side="right"))
    last = int(np.searchsorted(below, total - outside, side="left"))
    return max(float(edges[first]), distribution.low), min(float(edges[last + 1]), distribution.high)


def _entropy(distribution: ValueDistribution, use: RangeUse, percentile: float) -> Range:
    """The range of the least divergence, as in TensorRT.

    Two distributions are compared inside a threshold: the histogram, with the numbers outside added to its
    ends, and the histogram at the resolution of the levels.
    https://on-demand.gputechconf.com/gtc/2017/presentation/s7310-8-bit-inference-with-tensorrt.pdf
    """
    one_sided = distribution.low >= 0
    both_ways = use.symmetric and getattr(use.format, "signed", True)
    levels = 1 << (use.format.bits - (one_sided and both_ways))
    # TensorRT's resolution: sixteen intervals for each of 256 levels
    counts = distribution.nonzero.reshape(-1, 2).sum(1)
    half = counts.size // 2
    if one_sided:
        counts = counts[half:]
    used = min(math.floor(max(-distribution.low, distribution.high) / distribution.top * half) + 1, half)
    least = levels if one_sided else levels // 2
    if least >= used:
        return distribution.low, distribution.high

    def divergence(width: int) -> float:
        first, last = (0, width) if one_sided else (half - width, half + width)
        inside = counts[first:last].astype(np.float64)
        starts = -(-np.arange(levels) * inside.size // levels)
        filled = np.add.reduceat((inside > 0).astype(np.float64), starts)
        level = np.repeat(np.arange(levels), np.diff(starts, append=inside.size))
        sums = np.add.reduceat(inside, starts)
        shared = np.divide(sums, filled, out=np.zeros(levels), where=filled > 0)[level]
        reference = inside.copy()
        reference[0] += counts[:first].sum()
        reference[-1] += counts[last:].sum()
        return _divergence(reference, np.where(inside > 0, shared, 0))

    widths = np.unique(np.linspace(least, used, 2 * _STEPS).astype(int))
    best = min(widths.tolist(), key=divergence)
    end = best * distribution.top / half
    return min(max(distribution.low, -end), end), max(min(distribution.high, end), -end)


def _divergence(p: Array, q: Array) -> float:
    """Kullback-Leibler divergence of q from p, both counts that are smoothed and then normalized."""
    p, q = _smooth(p), _smooth(q)
    if not (p > 0).all() or not (q > 0).all():
        return math.inf
    p, q = p / p.sum(), q / q.sum()
    return float(np.sum(p * np.log(p / q)))


def _smooth(counts: Array) -> Array:
    """Counts without zeros: empty intervals get a small count, which the others lose."""
    empty = counts == 0
    many = int(empty.sum())
    lost = _SMOOTHING * many / max(counts.size - many, 1)
    return np.where(empty, _SMOOTHING, counts - lost)


def _mse(distribution: ValueDistribution, use: RangeUse, percentile: float) -> Range:
    """The range of the least squared error: both ends move inwards together, then, if asymmetric, alone."""
    counts = distribution.nonzero
    filled = np.flatnonzero(counts)
    middles = ((filled + 0.5 - HALF) * (distribution.top / HALF)).astype(np.float32)
    counts = counts[filled].astype(np.float64)

    def error(low: float, high: float) -> float:
        ends = np.float32(low), np.float32(high)
        grid = use.format.grid(*map(np.asarray, ends), symmetric=use.symmetric)
        gap = use.format.rounded(middles, grid).astype(np.float64) - middles
        return float(counts @ (gap * gap))

    low, high = distribution.low, distribution.high
    coarse = [at / _STEPS for at in range(_STEPS, 0, -1)]
    best = min(coarse, key=lambda part: error(low * part, high * part))
    near = [min(best + at / (8 * _STEPS), 1.0) for at in range(8, -8, -1)]
    best = min([part for part in near if part > 0], key=lambda part: error(low * part, high * part))
    ends = low * best, high * best
    if not use.symmetric and low < 0 < high:
        # outliers may lie at one end only
        first = min([best, *coarse], key=lambda part: error(low * part, ends[1]))
        ends = low * first, ends[1]
        last = min([best, *coarse], key=lambda part: error(ends[0], high * part))
        ends = ends[0], high * last
    return ends


_CALIBRATORS: Mapping[Calibrator, Callable[[ValueDistribution, RangeUse, float], Range]] = {
    "minmax": lambda seen, use, percentile: (seen.low, seen.high),
    "percentile": _percentile,
    "entropy": _entropy,
    "mse": _mse,
}
