"""Calibration: ranges of activations from runs of a model on samples.

Samples are processed one at a time, and no activation is kept. For each activation, its minimum and maximum
are recorded. Calibrators other than `minmax` also need a histogram, which merges intervals when a larger
number arrives.
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
"""Lowest and highest number that a format must cover."""

Key = TypeVar("Key", bound=Hashable)

HALF_INTERVALS = 4096
"""Number of histogram intervals on either side of zero."""

_CHUNK = 1 << 17
"""Number of elements added to the histogram at a time, so that they stay in the processor's cache."""

_MIN_TOP = -100
"""Exponent of the smallest histogram. With a smaller one, the width of an interval underflows float32."""

_TRIED_RANGES = 64
"""Number of ranges that a calibrator tries in each round of its search."""

_SMOOTHING = 1e-4
"""Count given to an empty interval, so that the logarithm of its share exists."""


class RangeUse(Struct, frozen=True):
    """A value that needs a range, with its number format.

    Attributes:
        value: Name of the value.
        format: Number format to which the value is rounded.
        symmetric: Whether the zero point is in the middle of the codes.
    """

    value: str
    format: NumberFormat
    symmetric: bool = True


class ValueDistribution:
    """Distribution of the numbers of one value over all samples.

    Args:
        has_histogram: Whether to keep a histogram: `HALF_INTERVALS` intervals of equal width on each side
            of zero, up to a power of two.

    Attributes:
        low, high: Minimum and maximum of the finite numbers. Before the first number, they are infinity and
            -infinity.
        counts: Number of elements in each interval between two neighboring `edges`.
        zeros: Number of zeros, which every format represents exactly. Counted only with a histogram.
        nan: Number of NaNs. Neither NaNs nor infinities enter the range.
    """

    def __init__(self, *, has_histogram: bool = True) -> None:
        self.has_histogram = has_histogram
        self.low, self.high, self.nan, self.zeros = math.inf, -math.inf, 0, 0
        self.counts = np.zeros(2 * HALF_INTERVALS if has_histogram else 0, np.int64)
        self._exponent: int | None = None

    def add(self, values: Array) -> None:
        """Adds the numbers of one sample, an array of any shape and float type."""
        flat = values.reshape(-1)
        for start in range(0, flat.size, _CHUNK):
            self._add(flat[start : start + _CHUNK].astype(np.float32, copy=False))

    def _add(self, chunk: Array) -> None:
        """Adds finite numbers to the range and the histogram, and counts NaN."""
        low, high = float(chunk.min()), float(chunk.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            self.nan += int(np.isnan(chunk).sum())
            chunk = chunk[np.isfinite(chunk)]
            if not chunk.size:
                return
            low, high = float(chunk.min()), float(chunk.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        if self.has_histogram:
            self.zeros += int(np.count_nonzero(chunk == 0))
            self._grow(max(-self.low, self.high))
            # the factor is a power of two, so the product is exact
            bins = np.floor(chunk * np.float32(HALF_INTERVALS / self.top)).astype(np.int32) + HALF_INTERVALS
            self.counts += np.bincount(np.clip(bins, 0, 2 * HALF_INTERVALS - 1), minlength=2 * HALF_INTERVALS)

    @property
    def nonzero(self) -> Array:
        """Counts of the intervals, without the elements that are exactly zero."""
        counts = self.counts.copy()
        counts[HALF_INTERVALS] -= self.zeros
        return counts

    @property
    def top(self) -> float:
        """Upper end of the histogram, a power of two."""
        return 2.0 ** (_MIN_TOP if self._exponent is None else self._exponent)

    @property
    def edges(self) -> Array:
        """Ends of the intervals: 2 x `HALF_INTERVALS` + 1 float64 numbers."""
        return np.arange(-HALF_INTERVALS, HALF_INTERVALS + 1) * (self.top / HALF_INTERVALS)

    def _grow(self, largest: float) -> None:
        """Merges neighboring intervals until the histogram covers `largest`."""
        mantissa, exponent = math.frexp(largest)
        top_exponent = max(exponent - (mantissa == 0.5), _MIN_TOP)
        if self._exponent is None or top_exponent <= self._exponent:
            self._exponent = top_exponent if self._exponent is None else self._exponent
            return
        # `group` old intervals become one new interval; at most, all old ones become the two innermost
        group = 1 << min(top_exponent - self._exponent, HALF_INTERVALS.bit_length() - 1)
        inner = self.counts.reshape(-1, group).sum(1)
        self.counts[:] = 0
        self.counts[HALF_INTERVALS - inner.size // 2 : HALF_INTERVALS + inner.size // 2] = inner
        self._exponent = top_exponent

    def choose_range(self, use: RangeUse, calibrator: Calibrator, percentile: float) -> Range:
        """Returns the range that a calibrator chooses, or (0, 0) without a finite number."""
        if self.high < self.low:
            return 0.0, 0.0
        return _CALIBRATORS[calibrator](self, use, percentile)


def calibrate_ranges(
    model: Model,
    uses: Mapping[Key, RangeUse],
    samples: Samples,
    calibrator: Calibrator = "minmax",
    percentile: float = 99.999,
    step: Callable[[int, int], None] = lambda done, total: None,
    channel_means: ChannelMeans | None = None,
) -> dict[Key, Range]:
    """Calibrates the ranges of activations by running a model on samples.

    Args:
        model: The model to run in onnxruntime.
        uses: Values with the formats to which they are rounded, by keys of the caller's choice.
        samples: Inputs of the model.
        calibrator: Rule for a range. `minmax`: from the minimum to the maximum. `percentile`: `percentile`
            percent of all numbers are inside, and equal shares are outside at both ends. `entropy`: the least
            Kullback-Leibler divergence between all numbers and the numbers rounded to the format's levels.
            `mse`: the least mean squared error of rounding and saturation.
        percentile: Share of numbers inside the range in percent, for the calibrator `percentile`.
        step: Callback for progress and cancellation, as in `observe_values`.
        channel_means: Accumulator of channel means, which also receives the values that it needs.

    Raises:
        Misuse: A value holds NaN, or the percentile is out of range.
        BadModel: The model does not run on a sample.
    """
    range_names = {use.value for use in uses.values()}
    names = dict.fromkeys(
        (*(use.value for use in uses.values()), *(channel_means.axes if channel_means else ()))
    )

    def observe(take: Callable[[str, Array], None]) -> None:
        def take_value(name: str, value: Array) -> None:
            if name in range_names:
                take(name, value)
            if channel_means is not None:
                channel_means.add(name, value)

        observe_values(model, names, samples, take_value, step)

    return calibrate_ranges_of_runs(uses, observe, samples.text, calibrator, percentile)


def calibrate_ranges_of_runs(
    uses: Mapping[Key, RangeUse],
    observe: Callable[[Callable[[str, Array], None]], None],
    text: str,
    calibrator: Calibrator,
    percentile: float,
) -> dict[Key, Range]:
    """Calibrates ranges like `calibrate_ranges`, with a caller's function that runs the model.

    Args:
        uses: Values with their formats, as in `calibrate_ranges`.
        observe: Function that runs the model and calls its argument with the name and array of every value of
            every sample.
        text: Description of the samples, for messages.
        calibrator: Rule for a range, as in `calibrate_ranges`.
        percentile: Share of numbers inside the range in percent.

    Raises:
        Misuse: A value holds NaN, or the percentile is out of range.
    """
    check_percentile(percentile)
    distributions = {
        use.value: ValueDistribution(has_histogram=calibrator != "minmax") for use in uses.values()
    }
    observe(lambda name, value: distributions[name].add(value))
    return {
        key: choose_range(distributions[use.value], use, text, calibrator, percentile)
        for key, use in uses.items()
    }


def check_percentile(percentile: float) -> None:
    """Rejects a percentile outside the interval (50, 100].

    Raises:
        Misuse: The percentile is out of range.
    """
    if not 50 < percentile <= 100:
        message = f"no range can be computed from {percentile:g} % of the values"
        raise Misuse(message, where="--percentile", hint="99.999")


def choose_range(
    distribution: ValueDistribution, use: RangeUse, text: str, calibrator: Calibrator, percentile: float
) -> Range:
    """Returns the range of a value from its distribution over the samples.

    Raises:
        Misuse: The value holds NaN.
    """
    if distribution.nan:
        problem = f"the value '{printable(use.value)}' has {distribution.nan:,} NaN"
        raise Misuse(f"{problem} with {text}: no range can be computed")
    return distribution.choose_range(use, calibrator, percentile)


def _choose_by_percentile(distribution: ValueDistribution, use: RangeUse, percentile: float) -> Range:
    """Chooses the narrowest range with at most the allowed share of numbers outside, half at either end."""
    total = int(distribution.counts.sum())
    outside = math.floor(total * (100 - percentile) / 200)
    below, edges = np.cumsum(distribution.counts), distribution.edges
    first = int(np.searchsorted(below, outside, side="right"))
    last = int(np.searchsorted(below, total - outside, side="left"))
    return max(float(edges[first]), distribution.low), min(float(edges[last + 1]), distribution.high)


def _choose_by_entropy(distribution: ValueDistribution, use: RangeUse, percentile: float) -> Range:
    """Chooses the range with the least Kullback-Leibler divergence, as TensorRT does.

    Each candidate range ends at a threshold. The first distribution is the histogram inside the threshold,
    with all numbers outside it added to the outermost intervals. The second distribution is the histogram
    inside the threshold at the resolution of the format's levels.
    https://on-demand.gputechconf.com/gtc/2017/presentation/s7310-8-bit-inference-with-tensorrt.pdf
    """
    is_one_sided = distribution.low >= 0
    has_negative_codes = use.symmetric and getattr(use.format, "signed", True)
    levels = 1 << (use.format.bits - (is_one_sided and has_negative_codes))
    # TensorRT uses 16 intervals for each of 256 levels
    counts = distribution.nonzero.reshape(-1, 2).sum(1)
    half = counts.size // 2
    if is_one_sided:
        counts = counts[half:]
    used_count = min(
        math.floor(max(-distribution.low, distribution.high) / distribution.top * half) + 1, half
    )
    min_width = levels if is_one_sided else levels // 2
    if min_width >= used_count:
        return distribution.low, distribution.high

    def compute_divergence_at(width: int) -> float:
        first, last = (0, width) if is_one_sided else (half - width, half + width)
        inner_counts = counts[first:last].astype(np.float64)
        starts = -(-np.arange(levels) * inner_counts.size // levels)
        nonempty_counts = np.add.reduceat((inner_counts > 0).astype(np.float64), starts)
        level = np.repeat(np.arange(levels), np.diff(starts, append=inner_counts.size))
        sums = np.add.reduceat(inner_counts, starts)
        level_means = np.divide(sums, nonempty_counts, out=np.zeros(levels), where=nonempty_counts > 0)[level]
        reference = inner_counts.copy()
        reference[0] += counts[:first].sum()
        reference[-1] += counts[last:].sum()
        return _compute_divergence(reference, np.where(inner_counts > 0, level_means, 0))

    widths = np.unique(np.linspace(min_width, used_count, 2 * _TRIED_RANGES).astype(int))
    best = min(widths.tolist(), key=compute_divergence_at)
    end = best * distribution.top / half
    return min(max(distribution.low, -end), end), max(min(distribution.high, end), -end)


def _compute_divergence(p: Array, q: Array) -> float:
    """Returns the Kullback-Leibler divergence of q from p, two histograms, after smoothing both."""
    p, q = _smooth_counts(p), _smooth_counts(q)
    if not (p > 0).all() or not (q > 0).all():
        return math.inf
    p, q = p / p.sum(), q / q.sum()
    return float(np.sum(p * np.log(p / q)))


def _smooth_counts(counts: Array) -> Array:
    """Gives each empty interval a small count, and takes the sum of these counts from the other intervals."""
    empty = counts == 0
    empty_count = int(empty.sum())
    lost = _SMOOTHING * empty_count / max(counts.size - empty_count, 1)
    return np.where(empty, _SMOOTHING, counts - lost)


def _choose_by_squared_error(distribution: ValueDistribution, use: RangeUse, percentile: float) -> Range:
    """Chooses the range with the least squared error.

    The search first shrinks both ends by one factor. If the format is asymmetric, it then shrinks each end
    alone.
    """
    counts = distribution.nonzero
    filled = np.flatnonzero(counts)
    middles = ((filled + 0.5 - HALF_INTERVALS) * (distribution.top / HALF_INTERVALS)).astype(np.float32)
    counts = counts[filled].astype(np.float64)

    def compute_error(low: float, high: float) -> float:
        ends = np.float32(low), np.float32(high)
        grid = use.format.build_grid(*map(np.asarray, ends), symmetric=use.symmetric)
        difference = use.format.round_values(middles, grid).astype(np.float64) - middles
        return float(counts @ (difference * difference))

    low, high = distribution.low, distribution.high
    factors = [step / _TRIED_RANGES for step in range(_TRIED_RANGES, 0, -1)]
    factor = min(factors, key=lambda part: compute_error(low * part, high * part))
    near_factors = [min(factor + step / (8 * _TRIED_RANGES), 1.0) for step in range(8, -8, -1)]
    factor = min(
        [part for part in near_factors if part > 0], key=lambda part: compute_error(low * part, high * part)
    )
    ends = low * factor, high * factor
    if not use.symmetric and low < 0 < high:
        # there may be outliers at one end only
        first = min([factor, *factors], key=lambda part: compute_error(low * part, ends[1]))
        ends = low * first, ends[1]
        last = min([factor, *factors], key=lambda part: compute_error(ends[0], high * part))
        ends = ends[0], high * last
    return ends


_CALIBRATORS: Mapping[Calibrator, Callable[[ValueDistribution, RangeUse, float], Range]] = {
    "minmax": lambda distribution, use, percentile: (distribution.low, distribution.high),
    "percentile": _choose_by_percentile,
    "entropy": _choose_by_entropy,
    "mse": _choose_by_squared_error,
}
