"""Calibration: ranges of activations, from what a model computes on samples.

Values are seen one sample after the other and none is kept: of each there is its least and its largest
number and, where a calibrator asks for more than those, a histogram that folds as larger numbers come.
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
"""Counts that an empty interval is given, so that the logarithm of its share exists."""


class RangeUse(Struct, frozen=True):
    """A value whose range is wanted, and for what.

    Attributes:
        value: Its name.
        format: That it will be rounded to.
        symmetric: Whether the zero point is in the middle.
    """

    value: str
    format: NumberFormat
    symmetric: bool = True


class ValueDistribution:
    """How the numbers of a value are distributed, over all samples that were added.

    Args:
        fine: Keep a histogram: `HALF` intervals of equal width on either side of zero, up to a power of two.

    Attributes:
        low, high: The least and the largest finite number; 0 and 0 if there is none.
        counts: Of the intervals; with them `edges`.
        zeros: How many are 0, which every format has.
        nan: How many are no numbers; they and infinities are in no range.
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
        """Folds neighbouring intervals until the largest number has its own."""
        mantissa, exponent = math.frexp(largest)
        wanted = max(exponent - (mantissa == 0.5), _LEAST_TOP)
        if self._exponent is None or wanted <= self._exponent:
            self._exponent = wanted if self._exponent is None else self._exponent
            return
        # as many fall into each new interval; all into the two innermost where it is more than there are
        fold = 1 << min(wanted - self._exponent, HALF.bit_length() - 1)
        inner = self.counts.reshape(-1, fold).sum(1)
        self.counts[:] = 0
        self.counts[HALF - inner.size // 2 : HALF + inner.size // 2] = inner
        self._exponent = wanted

    def range(self, use: RangeUse, calibrator: Calibrator, percentile: float) -> Range:
        """The range that a calibrator chooses; where nothing was seen, 0 and 0."""
        if self.high < self.low:
            return 0.0, 0.0
        return _CALIBRATORS[calibrator](self, use, percentile)


def ranges(
    model: Model,
    wanted: Mapping[Key, RangeUse],
    samples: Samples,
    calibrator: Calibrator = "minmax",
    percentile: float = 99.999,
    step: Callable[[int, int], None] = lambda done, total: None,
    means: ChannelMeans | None = None,
) -> dict[Key, Range]:
    """Ranges of activations.

    Args:
        model: That is run, in onnxruntime.
        wanted: Which values, and for what they are rounded; by keys of the caller's.
        samples: What it is run on.
        calibrator: How a range is chosen: `minmax`: the least and the largest number; `percentile`: so much
            of all numbers lie inside, and as many below as above; `entropy`: the numbers inside it, as the
            format's levels tell them apart, diverge least from all of them (Kullback-Leibler); `mse`: the
            mean squared error of rounding, saturation included, is least.
        percentile: Of `percentile`, in per cent.
        step: As for `observe_values`.
        means: Takes in the values that it wants, too.

    Raises:
        Misuse: A value holds NaN, or the percentile is none.
        BadModel: The model does not run on a sample.
    """
    ranged = {use.value for use in wanted.values()}
    names = dict.fromkeys((*(use.value for use in wanted.values()), *(means.axes if means else ())))

    def observe(take: Callable[[str, Array], None]) -> None:
        def both(name: str, value: Array) -> None:
            if name in ranged:
                take(name, value)
            if means is not None:
                means.add(name, value)

        observe_values(model, names, samples, both, step)

    return ranges_seen(
        wanted,
        observe,
        samples.text,
        calibrator,
        percentile,
    )


def ranges_seen(
    wanted: Mapping[Key, RangeUse],
    observe: Callable[[Callable[[str, Array], None]], None],
    text: str,
    calibrator: Calibrator,
    percentile: float,
) -> dict[Key, Range]:
    """Ranges of values that something shows: `ranges`, whatever runs the model.

    Args:
        wanted: See `ranges`.
        observe: Gives every value of every sample, by name, to what it is called with.
        text: Where the samples come from.
        calibrator: See `ranges`.
        percentile: See `ranges`.

    Raises:
        Misuse: A value holds NaN, or the percentile is none.
    """
    check_percentile(percentile)
    seen = {use.value: ValueDistribution(fine=calibrator != "minmax") for use in wanted.values()}
    observe(lambda name, value: seen[name].add(value))
    return {
        key: calibrated_range(seen[use.value], use, text, calibrator, percentile)
        for key, use in wanted.items()
    }


def check_percentile(percentile: float) -> None:
    """Refuses one of which no range can be made.

    Raises:
        Misuse: It is such a one.
    """
    if not 50 < percentile <= 100:
        raise Misuse(f"of {percentile:g} % no range can be made", where="--percentile", hint="99.999")


def calibrated_range(
    seen: ValueDistribution, use: RangeUse, text: str, calibrator: Calibrator, percentile: float
) -> Range:
    """The range of a value that was seen on samples.

    Raises:
        Misuse: It holds NaN.
    """
    if seen.nan:
        what = f"the value '{printable(use.value)}' has {seen.nan:,} NaN"
        raise Misuse(f"{what} with {text}: no range can be made")
    return seen.range(use, calibrator, percentile)


def _percentile(seen: ValueDistribution, use: RangeUse, percentile: float) -> Range:
    """The innermost ends of intervals outside which no more than was asked lies, half on either side."""
    total = int(seen.counts.sum())
    outside = math.floor(total * (100 - percentile) / 200)
    below, edges = np.cumsum(seen.counts), seen.edges
    first = int(np.searchsorted(below, outside, side="right"))
    last = int(np.searchsorted(below, total - outside, side="left"))
    return max(float(edges[first]), seen.low), min(float(edges[last + 1]), seen.high)


def _entropy(seen: ValueDistribution, use: RangeUse, percentile: float) -> Range:
    """The least divergence, as TensorRT has it.

    Inside a threshold every number is told apart as well as the histogram does (those outside count at the
    ends), or only as well as the levels do: the divergence is that of the second from the first.
    https://on-demand.gputechconf.com/gtc/2017/presentation/s7310-8-bit-inference-with-tensorrt.pdf
    """
    one_sided = seen.low >= 0
    both_ways = use.symmetric and getattr(use.format, "signed", True)
    levels = 1 << (use.format.bits - (one_sided and both_ways))
    # as fine as TensorRT has it: sixteen intervals for each of 256 levels
    counts = seen.nonzero.reshape(-1, 2).sum(1)
    half = counts.size // 2
    if one_sided:
        counts = counts[half:]
    used = min(math.floor(max(-seen.low, seen.high) / seen.top * half) + 1, half)
    least = levels if one_sided else levels // 2
    if least >= used:
        return seen.low, seen.high

    def divergence(width: int) -> float:
        first, last = (0, width) if one_sided else (half - width, half + width)
        inside = counts[first:last].astype(np.float64)
        starts = -(-np.arange(levels) * inside.size // levels)
        filled = np.add.reduceat((inside > 0).astype(np.float64), starts)
        level = np.repeat(np.arange(levels), np.diff(starts, append=inside.size))
        sums = np.add.reduceat(inside, starts)
        shared = np.divide(sums, filled, out=np.zeros(levels), where=filled > 0)[level]
        told = inside.copy()
        told[0] += counts[:first].sum()
        told[-1] += counts[last:].sum()
        return _divergence(told, np.where(inside > 0, shared, 0))

    widths = np.unique(np.linspace(least, used, 2 * _STEPS).astype(int))
    best = min(widths.tolist(), key=divergence)
    end = best * seen.top / half
    return min(max(seen.low, -end), end), max(min(seen.high, end), -end)


def _divergence(p: Array, q: Array) -> float:
    """Kullback-Leibler divergence of q from p, both counts that are smoothed and then normalised."""
    p, q = _smooth(p), _smooth(q)
    if not (p > 0).all() or not (q > 0).all():
        return math.inf
    p, q = p / p.sum(), q / q.sum()
    return float(np.sum(p * np.log(p / q)))


def _smooth(counts: Array) -> Array:
    """Counts without zeros: what those are given the others lose."""
    empty = counts == 0
    many = int(empty.sum())
    lost = _SMOOTHING * many / max(counts.size - many, 1)
    return np.where(empty, _SMOOTHING, counts - lost)


def _mse(seen: ValueDistribution, use: RangeUse, percentile: float) -> Range:
    """Both ends are moved inwards together, then, where they have a scale and a zero point, each alone."""
    counts = seen.nonzero
    filled = np.flatnonzero(counts)
    middles = ((filled + 0.5 - HALF) * (seen.top / HALF)).astype(np.float32)
    counts = counts[filled].astype(np.float64)

    def error(low: float, high: float) -> float:
        ends = np.float32(low), np.float32(high)
        grid = use.format.grid(*map(np.asarray, ends), symmetric=use.symmetric)
        gap = use.format.rounded(middles, grid).astype(np.float64) - middles
        return float(counts @ (gap * gap))

    low, high = seen.low, seen.high
    coarse = [at / _STEPS for at in range(_STEPS, 0, -1)]
    best = min(coarse, key=lambda part: error(low * part, high * part))
    near = [min(best + at / (8 * _STEPS), 1.0) for at in range(8, -8, -1)]
    best = min([part for part in near if part > 0], key=lambda part: error(low * part, high * part))
    ends = low * best, high * best
    if not use.symmetric and low < 0 < high:
        # one end may hold all that is far away
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
