"""Compares two numeric results with each other and with a float64 result, and judges the difference.

There is no fixed tolerance, because it would reject correct deep models and accept wrong small outputs. The
noise floor is the error of the original against float64, measured on the same inputs. The comparison tests
that the other graph is not less accurate than the original.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field

from explorer.engine.runtime.onnxruntime import Array
from explorer.engine.values import agreement

LIMIT = 8.0
"""Maximum of |error| / (u |x| |W|) in a product whose terms have both signs; u is the unit roundoff."""

_SLACK = 4.0
"""Allowed factor between RMS errors. Runs of equal accuracy differ by about 2, faults by orders of
magnitude."""

_SAMPLE_SLACK = 256.0
"""The slack increases by this number divided by the number of independent errors, because few errors differ
more by chance. The RMS of three errors exceeds that of three others by a factor of 89 in less than one of
10,000 cases."""

SLAB = 1 << 13
"""Number of elements that are compared at a time. At this size, the twenty float64 arrays of a comparison
stay in the processor's cache. A million elements at a time took eight times as long. BLAS uses one thread for
dot products of up to 10,000 elements, for which several threads would be slower."""

_OCTAVES = 4
"""Width, in powers of two, of the bins of magnitude; itself a power of two. Each bin is also judged alone, so
that large elements do not hide an error in small elements."""

_FREXP_BIAS = 1022
"""Difference between the stored exponent of a float64 and the exponent of `np.frexp`."""

_EXPONENT_OFFSET = 256
"""Addition that makes all exponents divided by `_OCTAVES` positive. Only zeros and numbers below 2**-1021
get index 0."""

_BIN_ELEMENTS = 16
"""Minimum number of independent errors in a bin that is judged."""

_MAX_DISTINCT_SAMPLE = 4096
"""Largest number of elements among which equal numbers are counted. A larger result is sampled."""

_MIN_MEDIAN_REPEATS = 4
"""Minimum median count of equal numbers in a result that consists of few numbers, many times each."""

_HALF_ROUNDOFF = 2.0**-12
"""Unit roundoff from which a type counts as narrower than float32. Products of such types are computed in
float32."""

_PEAK = 4.0
"""Ratio of the largest of many rounding errors to their RMS."""

_MAX_AMPLIFICATION = 64.0
"""Largest plausible error of the original against float64, in multiples of the effect of one rounding of its
inputs. Every layer adds rounding errors."""


def get_unit_roundoff(dtype: str) -> float:
    """Returns the unit roundoff u of a float type: the largest relative error of one rounding.

    An unknown type has that of float32.
    """
    return {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-53}.get(dtype, 2.0**-24)


def convert_to_float64(array: Array) -> Array:
    """Converts an array of any float type to float64."""
    return np.asarray(array).astype(np.float64)


def compute_limit(roundoff: float, depth: int, growth: float) -> float:
    """Returns the maximum relative RMS difference that `depth` roundings can cause."""
    # independent rounding errors grow with the square root of their number
    return growth * _SLACK * roundoff * math.sqrt(depth)


class OutputComparison(Struct):
    """Comparison of two results of the same shape, `before` and `after`, over all draws of inputs.

    Attributes:
        roundoff: Unit roundoff u of the output's type.
        sensitivity: RMS change of `before` if its inputs change by one unit in the last place, which is the
            effect of one rounding on the output.
        growth: Factor by which `after` may have larger rounding errors because of longer sums.
        share: Share of the elements with independent errors, 0 to 1.
        has_bins: Whether errors are also summed by the magnitude of the elements, as `judge` needs.
        elements: Number of compared elements that are finite in both results.
        judged: Number of compared elements with a float64 result.
        nonfinite: Number of NaN or Inf in `after` where `before` is finite or has another value.
        missing_nonfinite: Number of NaN or Inf in `before` where `after` is finite and float64 is not finite
            or not available.
        size: Number of elements in all draws.
        shared: Number of elements that are NaN or Inf in both results.
        shared_nan: Number of elements that are NaN in both results.
        equal: Whether all elements are equal by bits.
        max_abs, max_rel: Largest absolute and largest relative difference.
        max_before, max_after: Largest absolute error of each result against float64.
        largest: Largest magnitude in `before`.
        unreferenced_draws: Comparison of draws without a float64 result, with `before` as the reference.
        largest_share: Largest ratio of an error to its limit. `judge` and `judge_by_depth` set it.
    """

    roundoff: float
    sensitivity: float = 0.0
    growth: float = 1.0
    share: float = 1.0
    has_bins: bool = True
    elements: int = 0
    judged: int = 0
    nonfinite: int = 0
    missing_nonfinite: int = 0
    size: int = 0
    shared: int = 0
    shared_nan: int = 0
    equal: bool = True
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_before: float = 0.0
    max_after: float = 0.0
    largest: float = 0.0
    unreferenced_draws: OutputComparison | None = None
    largest_share: float = 0.0
    _squares: dict[str, float] = field(default_factory=dict)
    """Sums of squares and products by name, such as 'gap' and 'error old'."""
    _bins: dict[int, tuple[int, float, float]] = field(default_factory=dict)
    """Element count, and sums of the squared errors of `before` and `after`, by bin (see `_OCTAVES`)."""

    def add(self, before: Array, after: Array, reference: Array | None) -> None:
        """Adds a draw. `reference` is the float64 result of the original, or None."""
        before_flat, after_flat = np.asarray(before).reshape(-1), np.asarray(after).reshape(-1)
        exact_flat = None if reference is None else np.asarray(reference).reshape(-1)
        if exact_flat is not None and exact_flat.size:
            self.share = min(self.share, _compute_distinct_share(exact_flat))
        for first in range(0, before_flat.size, SLAB):
            slab = slice(first, first + SLAB)
            self._add(before_flat[slab], after_flat[slab], None if exact_flat is None else exact_flat[slab])
        if before.dtype != after.dtype:
            self.equal = False

    def _add(self, before: Array, after: Array, reference: Array | None) -> None:
        """Adds flat arrays of equal size; `reference` is the float64 result, or None."""
        if self.equal and before.tobytes() != after.tobytes():
            self.equal = False
        old, new = convert_to_float64(before), convert_to_float64(after)
        self.size += old.size
        exact = None if reference is None else convert_to_float64(reference)
        with np.errstate(over="ignore", invalid="ignore"):
            squares = [
                0.0 if values is None else float(np.dot(values, values)) for values in (old, new, exact)
            ]
        if all(map(math.isfinite, squares)):
            self._add_finite(old, new, exact, squares)  # the common case
            return
        finite_old, finite_new = np.isfinite(old), np.isfinite(new)
        if not (finite_old.all() and finite_new.all()):
            nan = np.isnan(old) & np.isnan(new)
            is_same = (old == new) | nan
            self.shared += int(np.count_nonzero(is_same & ~finite_old))
            self.shared_nan += int(np.count_nonzero(nan))
            self.nonfinite += int(np.count_nonzero(~finite_new & ~is_same))
        finite_exact = np.zeros_like(finite_old) if exact is None else np.isfinite(exact)
        self.missing_nonfinite += int(np.count_nonzero(~finite_old & finite_new & ~finite_exact))
        comparable = finite_old & finite_new
        if exact is not None:
            comparable &= finite_exact
        if not comparable.any():
            return
        if not comparable.all():
            old, new = old[comparable], new[comparable]
            exact = None if exact is None else exact[comparable]
        with np.errstate(over="ignore"):
            squares = [
                0.0 if values is None else float(np.dot(values, values)) for values in (old, new, exact)
            ]
        self._add_finite(old, new, exact, squares)

    def add_without_reference(self, before: Array, after: Array) -> None:
        """Adds a draw that has no float64 result. It is judged by the noise floor of the other draws."""
        self.add(before, after, None)
        if self.unreferenced_draws is None:
            self.unreferenced_draws = OutputComparison(self.roundoff)
        self.unreferenced_draws.add(before, after, before)

    def _add_finite(self, old: Array, new: Array, exact: Array | None, squares: Sequence[float]) -> None:
        """Adds finite numbers. `squares` are the sums of the squares of `old`, `new` and `exact`."""
        difference, magnitude = _subtract_absolutely(new, old), np.abs(old)
        self.elements += old.size
        self.max_abs = max(self.max_abs, float(difference.max()))
        with np.errstate(over="ignore"):
            if magnitude.min() > 0:
                relative = difference / magnitude
            else:  # numpy takes three times as long with `where=`
                relative = np.divide(
                    difference, magnitude, out=np.zeros_like(difference), where=magnitude != 0
                )
            self.max_rel = max(self.max_rel, float(np.max(relative)))
            self.largest = max(self.largest, float(magnitude.max()))
            self._sum("gap", np.dot(difference, difference))
            self._sum("old", squares[0])
            self._sum("new", squares[1])
            self._sum("dot", np.dot(old, new))
        if exact is None:
            return
        self.judged += old.size
        error_old, error_new = _subtract_absolutely(old, exact), _subtract_absolutely(new, exact)
        self.max_before = max(self.max_before, float(error_old.max()))
        self.max_after = max(self.max_after, float(error_new.max()))
        self._sum("error old", np.dot(error_old, error_old))
        self._sum("error new", np.dot(error_new, error_new))
        self._sum("true", squares[2])
        if not self.has_bins:
            return
        error_old *= error_old
        error_new *= error_new
        for exponent, count, a, b in _sum_bins(exact, error_old, error_new):
            old_sums = self._bins.get(exponent, (0, 0.0, 0.0))
            self._bins[exponent] = old_sums[0] + count, old_sums[1] + a, old_sums[2] + b

    def _sum(self, name: str, value: Any) -> None:
        self._squares[name] = self._squares.get(name, 0.0) + float(value)

    def _compute_mean_square(self, name: str) -> float | None:
        count = self.judged if name in ("error old", "error new", "true") else self.elements
        return self._squares[name] / count if name in self._squares else None

    def _compute_rms(self, name: str) -> float | None:
        mean = self._compute_mean_square(name)
        return None if mean is None else float(np.sqrt(mean))

    @property
    def mse(self) -> float | None:
        """Mean squared difference, or None if nothing was compared."""
        return self._compute_mean_square("gap")

    @property
    def cosine(self) -> float | None:
        """Cosine similarity of the two results, or None if all elements of one result are zero."""
        return agreement.compute_cosine(*(self._squares.get(name, 0.0) for name in ("dot", "old", "new")))

    @property
    def scale(self) -> float | None:
        """RMS of `before`, or None if nothing was compared."""
        return self._compute_rms("old")

    @property
    def rms_before(self) -> float | None:
        """RMS error of `before` against float64, or None without a float64 result."""
        return self._compute_rms("error old")

    @property
    def rms_after(self) -> float | None:
        """RMS error of `after` against float64, or None without a float64 result."""
        return self._compute_rms("error new")

    def list_evidence_fields(self) -> dict[str, Any]:
        """Returns the fields of the evidence from this comparison. They are None if nothing was compared."""
        was_compared = bool(self.elements)
        return {
            "max_abs": self.max_abs if was_compared else None,
            "max_rel": self.max_rel if was_compared else None,
            "mse": self.mse,
            "cosine": self.cosine,
            "rms_before": self.rms_before,
            "rms_after": self.rms_after,
            "nonfinite": self.nonfinite,
        }

    @property
    def plausible(self) -> bool:
        """Whether float64 and the original agree well enough to use float64 as the reference.

        If they disagree, the float64 run computes other values: the evaluator has a defect, or a rounding
        changed a decision that depends on data. Errors against these values would be meaningless.
        """
        if not self.judged:
            return False
        scale = self._compute_rms("true") or self._compute_rms("old") or 0.0
        # 4,096 roundings, but no more than 5 % of the scale for narrow types
        expected = max(min(4096 * self.roundoff, 0.05) * scale, _MAX_AMPLIFICATION * self.sensitivity)
        return (self.rms_before or 0.0) <= expected

    def _compute_chance_slack(self, count: int) -> float:
        """Returns the additional slack for errors of `count` elements, which differ by chance."""
        return _SAMPLE_SLACK / max(self._count_independent_errors(count), 1)

    def _count_independent_errors(self, count: int) -> float:
        """Returns the number of independent errors among `count` elements."""
        return count * self.share

    @property
    def limit_share(self) -> float | None:
        """Largest ratio of an error to its limit, or None if the verdict does not depend on error sizes."""
        return None if self.find_problem() or math.isinf(self.largest_share) else self.largest_share

    def judge(self, *, both: bool = False) -> str:
        """Returns '' if `after` is as accurate as `before`, else the reason why it is less accurate.

        Args:
            both: Whether `before` must also be as accurate as `after`, because neither is the original.
        """
        problem = self.find_problem()
        if problem or self.equal:
            return problem
        reason = self._describe_larger_errors(is_swapped=False)
        if not reason and both:
            reason = self._describe_larger_errors(is_swapped=True)
        return reason or self._judge_unreferenced()

    def _judge_unreferenced(self) -> str:
        """Describes differences in draws without float64 that exceed the noise floor; '' without one."""
        other_draws = self.unreferenced_draws
        if other_draws is None or not other_draws.judged:
            return ""
        slack = 1 + self.growth * _SLACK + self._compute_chance_slack(other_draws.judged)
        rounding = 2 * self.roundoff
        least_noise = self.sensitivity if self.roundoff >= _HALF_ROUNDOFF else 0.0
        difference, floor = other_draws.rms_after or 0.0, max(self.rms_before or 0.0, least_noise)
        if self._exceeds_limit(difference, slack * floor + rounding * (other_draws.scale or 0.0)):
            against = f"the original's error against float64 is {floor:.2e}"
            return f"the RMS difference is {difference:.2e} in one run; {against}"
        difference, floor = other_draws.max_after, max(self.max_before, _PEAK * least_noise)
        if self._exceeds_limit(difference, slack * floor + rounding * other_draws.largest):
            against = f"the original's error against float64 is {floor:.2e}"
            return f"the largest difference is {difference:.2e} in one run; {against}"
        floors = {
            e: math.sqrt(old / n)
            for e, (n, old, _) in self._bins.items()
            if self._count_independent_errors(n) >= _BIN_ELEMENTS
        }
        for exponent, (count, _, square) in other_draws._bins.items():
            if self._count_independent_errors(count) < _BIN_ELEMENTS or not floors:
                continue
            difference = math.sqrt(square / count)
            floor = max(floors[min(floors, key=lambda e: abs(e - exponent))], least_noise)
            top = 2.0 ** min(exponent * _OCTAVES + _OCTAVES, 1023)
            slack = 1 + self.growth * _SLACK + self._compute_chance_slack(count)
            if self._exceeds_limit(difference, slack * floor + rounding * top):
                return (
                    f"the RMS difference of elements below {top:.2g} is {difference:.2e} in one run;"
                    f" the original's error against float64 is {floor:.2e}"
                )
        return ""

    def _describe_larger_errors(self, *, is_swapped: bool) -> str:
        """Describes how the errors of `after` exceed the errors of `before` beyond chance; '' if not.

        With `is_swapped` the errors of `before` must not exceed those of `after`.
        """
        errors = (self.rms_before, self.max_before), (self.rms_after, self.max_after)
        (rms_floor, max_floor), (rms, largest) = errors[::-1] if is_swapped else errors
        slack = self.growth * _SLACK + self._compute_chance_slack(self.judged)
        rounding = 2 * self.roundoff
        # a runtime may keep float32 between half-precision operators, unless a function or loop separates
        # them; the effect of one rounding of the inputs is therefore the least noise
        least_noise = self.sensitivity if self.roundoff >= _HALF_ROUNDOFF else 0.0
        rms_floor, rms = max(rms_floor or 0.0, least_noise), rms or 0.0
        max_floor = max(max_floor, _PEAK * least_noise)
        scale = self._compute_rms("true") or 0.0
        if self._exceeds_limit(rms, slack * rms_floor + rounding * scale):
            return f"the RMS error against float64 is {rms:.2e}, the original's is {rms_floor:.2e}"
        if self._exceeds_limit(largest, slack * max_floor + rounding * self.largest):
            return f"the largest error against float64 is {largest:.2e}, the original's is {max_floor:.2e}"
        for exponent, (count, *square_sums) in self._bins.items():
            if self._count_independent_errors(count) < _BIN_ELEMENTS:
                continue
            bin_errors = [math.sqrt(square_sum / count) for square_sum in square_sums]
            bin_floor, bin_rms = bin_errors[::-1] if is_swapped else bin_errors
            bin_floor = max(bin_floor, least_noise)
            bin_top = 2.0 ** min(exponent * _OCTAVES + _OCTAVES, 1023)
            bin_slack = self.growth * _SLACK + self._compute_chance_slack(count)
            if self._exceeds_limit(bin_rms, bin_slack * bin_floor + rounding * bin_top):
                return (
                    f"the RMS error of elements below {bin_top:.2g} is {bin_rms:.2e}, the original's is"
                    f" {bin_floor:.2e}"
                )
        return ""

    def _exceeds_limit(self, error: float, allowed: float) -> bool:
        """Whether an error exceeds its limit; also updates `largest_share`."""
        share = error / allowed if allowed else math.inf if error else 0.0
        self.largest_share = max(self.largest_share, share)
        return error > allowed

    def judge_by_depth(self, depth: int) -> str:
        """Judges without a float64 run: the noise floor is the effect of `depth` roundings.

        Returns:
            '' if `after` differs from `before` by no more than rounding, else the reason.
        """
        problem = self.find_problem()
        if problem or self.equal:
            return problem
        difference, scale = math.sqrt(self.mse or 0.0), self._compute_rms("old") or 0.0
        # independent rounding errors grow with the square root of their number
        noise = max(self.roundoff * math.sqrt(depth) * scale, self.sensitivity)
        if self._exceeds_limit(difference, self.growth * _SLACK * noise):
            limit = self.growth * _SLACK * noise
            return f"RMS difference {difference:.2e}, but rounding causes at most {limit:.2e}"
        return ""

    def exceeds_rounding(self, depth: int) -> bool:
        """Whether the RMS or the largest difference exceeds `depth` accumulated roundings."""
        noise = compute_limit(self.roundoff, depth, self.growth)
        difference, scale = (self.mse or 0.0) ** 0.5, self._compute_rms("old") or 0.0
        return difference > noise * scale or self.max_abs > noise * self.largest

    @property
    def is_inconclusive(self) -> bool:
        """Whether no element is comparable: both results are NaN or Inf everywhere, and some are NaN."""
        return (
            not self.nonfinite
            and not self.missing_nonfinite
            and bool(self.shared_nan)
            and self.shared == self.size
        )

    def find_problem(self) -> str:
        """Describes a difference that rounding cannot cause, such as a new NaN; '' without one."""
        if self.nonfinite:
            return f"{self.nonfinite:,} NaN or Inf that the original does not have"
        if self.missing_nonfinite:
            return f"{self.missing_nonfinite:,} elements are finite where the original is NaN or Inf"
        if self.is_inconclusive:
            return "no run gives a finite number, and NaN against NaN shows nothing"
        if not self.elements and not self.equal:
            return "no finite number could be compared"
        return ""


def _subtract_absolutely(first: Array, second: Array) -> Array:
    """Returns |first - second|, with one temporary array fewer than numpy's expression."""
    difference: Array = first - second
    np.abs(difference, out=difference)
    return difference


def _compute_distinct_share(values: Array) -> float:
    """Returns the share of independent errors if the results are few numbers, many times each; else 1.

    Equal rows have equal errors. A single frequent number, such as 0 after a Relu, does not change the share.
    """
    if values.size > _MAX_DISTINCT_SAMPLE:
        generator = np.random.default_rng(0)
        sample = values[generator.integers(0, values.size, _MAX_DISTINCT_SAMPLE)]
    else:
        sample = values
    _, repeats = np.unique(convert_to_float64(sample), return_counts=True)
    return float(repeats.size / values.size) if np.median(repeats) >= _MIN_MEDIAN_REPEATS else 1.0


def _sum_bins(values: Array, *squares: Array) -> Iterator[tuple[int, int, float, float]]:
    """Groups finite float64 numbers by their binary exponent, `_OCTAVES` exponents to a group.

    Yields:
        The exponent of `np.frexp`, divided by `_OCTAVES` and rounded down; the number of elements with it;
        the sums of two arrays over these elements. Zeros have the exponent 0.
    """
    # the bits of the exponent are read directly, because frexp takes as long as the sums
    bins = values.view(np.uint64) << np.uint64(1)
    bins >>= np.uint64(53)
    bins += np.uint64(_EXPONENT_OFFSET * _OCTAVES - _FREXP_BIAS)
    bins >>= np.uint64(_OCTAVES.bit_length() - 1)
    indices = bins.view(np.int64)
    counts = np.bincount(indices)
    sums = [np.bincount(indices, weights) for weights in squares]
    for index in np.flatnonzero(counts).tolist():
        exponent = index - _EXPONENT_OFFSET if index else 0
        yield exponent, int(counts[index]), float(sums[0][index]), float(sums[1][index])
