"""Numeric comparison: how far apart two results are, how far from float64, and whether that is too far.

There is no fixed tolerance: it would fail deep models that are right and pass small outputs that are wrong.
The error of the original against float64 is the noise floor, measured on the same inputs. The tested claim is
that the other graph is no less accurate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct, field

from explorer.engine.runtime.onnxruntime import Array
from explorer.engine.values import agreement

LIMIT = 8.0
"""Limit of |error| / (u |x| |W|) of a matrix product whose terms have both signs."""

_SLACK = 4.0
"""Two runs of equal accuracy differ in RMS error by about a factor of 2; a fault, by orders of magnitude."""

_SAMPLE_SLACK = 256.0
"""Added to the slack, over the number of elements: fewer elements may differ more by chance
(three elements against three exceed a factor of 89 in RMS less than once in 10,000 cases)."""

SLAB = 1 << 13
"""Elements compared at a time. A comparison makes some twenty arrays of float64, which stay in cache at this
size: slabs of a million elements took eight times as long. BLAS also uses one thread for a dot product of up
to 10,000 elements: several threads would wait for each other longer than the product takes."""

_OCTAVES = 4
"""Outputs are also judged in bins of magnitude this many powers of two wide, so that large elements do
not hide an error in small ones."""

_BIN_ELEMENTS = 16

_HALF_ROUNDOFF = 2.0**-12
"""Unit roundoff from which a type is narrower than the type its products are computed in."""

_PEAK = 4.0
"""How far the largest of many roundings lies above their RMS."""

_MAX_AMPLIFICATION = 64.0
"""Limit of the error of a whole run, in multiples of the effect of one rounding of the inputs: every layer
adds roundings."""

"""Reason why outputs without any finite number are neither evidence nor a difference."""


def unit_roundoff(dtype: str) -> float:
    """The u of a float type: the largest relative error of one rounding (2**-24 for float32)."""
    return {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-53}.get(dtype, 2.0**-24)


def to_float64(array: Array) -> Array:
    """As float64, whatever the float type."""
    return np.asarray(array).astype(np.float64)


def allowed(roundoff: float, depth: int, growth: float) -> float:
    """Relative RMS difference of two results that `depth` roundings explain."""
    # roundings are independent: they add up as the square root of their number
    return growth * _SLACK * roundoff * math.sqrt(depth)


class OutputComparison(Struct):
    """Comparison of two results of the same shape, `before` and `after`, over all draws.

    Attributes:
        roundoff: u of the output's type.
        sensitivity: RMS change of `before` when its inputs move by one unit in the last place: the effect of
            a single rounding on the output.
        growth: Factor by which `after` may round more, because of longer sums.
        share: Share of the elements that have an independent error.
        has_bins: Whether errors are also added up by the magnitude of the elements, as `judge` needs.
        elements: Elements compared that are finite on both sides.
        judged: Compared elements that have a float64 result.
        nonfinite: NaN or Inf in `after` where `before` has none, or another one.
        missing_nonfinite: NaN or Inf in `before` where `after` is finite and float64 does not decide.
        size: Elements in all draws.
        shared: Elements that are NaN or Inf in both.
        shared_nan: Elements that are NaN in both.
        unreferenced_draws: Draws without a float64 result, with `before` in its place.
        largest_share: Largest share of an allowed error that occurred; set by `judge`.
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
    _bins: dict[int, tuple[int, float, float]] = field(default_factory=dict)

    def add(self, before: Array, after: Array, reference: Array | None) -> None:
        """Adds a draw. `reference` is the float64 result of the original."""
        before_flat, after_flat = np.asarray(before).reshape(-1), np.asarray(after).reshape(-1)
        exact_flat = None if reference is None else np.asarray(reference).reshape(-1)
        for first in range(0, before_flat.size, SLAB):
            slab = slice(first, first + SLAB)
            self._add(before_flat[slab], after_flat[slab], None if exact_flat is None else exact_flat[slab])
        if before.dtype != after.dtype:
            self.equal = False

    def _add(self, before: Array, after: Array, reference: Array | None) -> None:
        if self.equal and before.tobytes() != after.tobytes():
            self.equal = False
        old, new = to_float64(before), to_float64(after)
        self.size += old.size
        with np.errstate(over="ignore", invalid="ignore"):
            is_finite = np.isfinite(np.dot(old, old)) and np.isfinite(np.dot(new, new))
        if is_finite and reference is None:
            self._add_finite(old, new, None)  # as nearly everything is
            return
        finite_old, finite_new = np.isfinite(old), np.isfinite(new)
        if not (finite_old.all() and finite_new.all()):
            nan = np.isnan(old) & np.isnan(new)
            is_same = (old == new) | nan
            self.shared += int(np.count_nonzero(is_same & ~finite_old))
            self.shared_nan += int(np.count_nonzero(nan))
            self.nonfinite += int(np.count_nonzero(~finite_new & ~is_same))
        exact = None if reference is None else to_float64(reference)
        finite_exact = np.zeros_like(finite_old) if exact is None else np.isfinite(exact)
        self.missing_nonfinite += int(np.count_nonzero(~finite_old & finite_new & ~finite_exact))
        comparable = finite_old & finite_new
        if exact is not None:
            comparable &= finite_exact
        if comparable.all():
            self._add_finite(old, new, exact)
        elif comparable.any():
            self._add_finite(old[comparable], new[comparable], None if exact is None else exact[comparable])

    def add_beside(self, before: Array, after: Array) -> None:
        """Adds a draw without a float64 result: it is judged by the noise of the draws that have one."""
        self.add(before, after, None)
        if self.unreferenced_draws is None:
            self.unreferenced_draws = OutputComparison(self.roundoff)
        self.unreferenced_draws.add(before, after, before)

    def _add_finite(self, old: Array, new: Array, exact: Array | None) -> None:
        difference, magnitude = np.abs(new - old), np.abs(old)
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
            self._sum("old", np.dot(old, old))
            self._sum("new", np.dot(new, new))
            self._sum("dot", np.dot(old, new))
        if exact is None:
            return
        self.judged += old.size
        error_old, error_new = np.abs(old - exact), np.abs(new - exact)
        self.max_before = max(self.max_before, float(error_old.max()))
        self.max_after = max(self.max_after, float(error_new.max()))
        self._sum("error old", np.dot(error_old, error_old))
        self._sum("error new", np.dot(error_new, error_new))
        self._sum("true", np.dot(exact, exact))
        if not self.has_bins:
            return
        exponents = np.frexp(exact)[1]
        exponents //= _OCTAVES
        error_old *= error_old
        error_new *= error_new
        for exponent, count, a, b in _sum_bins(exponents, error_old, error_new):
            old_sums = self._bins.get(exponent, (0, 0.0, 0.0))
            self._bins[exponent] = old_sums[0] + count, old_sums[1] + a, old_sums[2] + b

    def _sum(self, name: str, value: Any) -> None:
        self._squares[name] = self._squares.get(name, 0.0) + float(value)

    def _mean_square(self, name: str) -> float | None:
        count = self.judged if name in ("error old", "error new", "true") else self.elements
        return self._squares[name] / count if name in self._squares else None

    def _rms(self, name: str) -> float | None:
        mean = self._mean_square(name)
        return None if mean is None else float(np.sqrt(mean))

    @property
    def mse(self) -> float | None:
        """Mean squared difference."""
        return self._mean_square("gap")

    @property
    def cosine(self) -> float | None:
        """Cosine of the angle between the two; None if one of them is zero throughout."""
        return agreement.cosine(*(self._squares.get(name, 0.0) for name in ("dot", "old", "new")))

    @property
    def scale(self) -> float | None:
        """RMS of `before`."""
        return self._rms("old")

    @property
    def rms_before(self) -> float | None:
        """RMS error of `before` against float64."""
        return self._rms("error old")

    @property
    def rms_after(self) -> float | None:
        """RMS error of `after` against float64."""
        return self._rms("error new")

    def figures(self) -> dict[str, Any]:
        """The fields of the evidence that come from this comparison; None where nothing was compared."""
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
        """Whether float64 and the original agree well enough for float64 to be the truth.

        If they disagree, the float64 run computes something else (a defect of an evaluator, or a decision
        that went the other way), and an error measured against it would be a meaningless noise floor.
        """
        if not self.judged:
            return False
        scale = self._rms("true") or self._rms("old") or 0.0
        expected = max(min(4096 * self.roundoff, 0.05) * scale, _MAX_AMPLIFICATION * self.sensitivity)
        return (self.rms_before or 0.0) <= expected

    def _chance_factor(self, count: int) -> float:
        """Factor by which errors of `count` elements may differ by chance, beside the slack."""
        return _SAMPLE_SLACK / max(self._independent_errors(count), 1)

    def _independent_errors(self, count: int) -> float:
        """Number of independent errors among `count` elements."""
        return count * self.share

    @property
    def limit_share(self) -> float | None:
        """Share of the allowed error that occurred; None where no size of an error decides."""
        return None if self.find_problem() or math.isinf(self.largest_share) else self.largest_share

    def judge(self, *, both: bool = False) -> str:
        """'' if `after` is no less accurate than `before`, else why it is less accurate.

        Args:
            both: Also require that `before` is no less accurate: neither is the original of the other.
        """
        problem = self.find_problem()
        if problem or self.equal:
            return problem
        reason = self._describe_worse(
            ("before", self.rms_before, self.max_before), ("after", self.rms_after, self.max_after)
        )
        if not reason and both:
            reason = self._describe_worse(
                ("after", self.rms_after, self.max_after), ("before", self.rms_before, self.max_before)
            )
        return reason or self._judge_unreferenced()

    def _judge_unreferenced(self) -> str:
        """How the other draws differ by more than an allowed error and the noise floor."""
        other_draws = self.unreferenced_draws
        if other_draws is None or not other_draws.judged:
            return ""
        slack = 1 + self.growth * _SLACK + self._chance_factor(other_draws.judged)
        rounding = 2 * self.roundoff
        least_noise = self.sensitivity if self.roundoff >= _HALF_ROUNDOFF else 0.0
        difference, floor = other_draws.rms_after or 0.0, max(self.rms_before or 0.0, least_noise)
        if self._exceeds(difference, slack * floor + rounding * (other_draws.scale or 0.0)):
            return f"RMS difference {difference:.2e} in a draw; the original's error against float64 is {floor:.2e}"
        difference, floor = other_draws.max_after, max(self.max_before, _PEAK * least_noise)
        if self._exceeds(difference, slack * floor + rounding * other_draws.largest):
            return f"largest difference {difference:.2e} in a draw; the original's error against float64 is {floor:.2e}"
        floors = {
            e: math.sqrt(old / n)
            for e, (n, old, _) in self._bins.items()
            if self._independent_errors(n) >= _BIN_ELEMENTS
        }
        for exponent, (count, _, square) in other_draws._bins.items():
            if self._independent_errors(count) < _BIN_ELEMENTS or not floors:
                continue
            difference = math.sqrt(square / count)
            floor = max(floors[min(floors, key=lambda e: abs(e - exponent))], least_noise)
            top = 2.0 ** min(exponent * _OCTAVES + _OCTAVES, 1023)
            slack = 1 + self.growth * _SLACK + self._chance_factor(count)
            if self._exceeds(difference, slack * floor + rounding * top):
                return f"RMS difference {difference:.2e} of elements below {top:.2g} in a draw, floor {floor:.2e}"
        return ""

    def _describe_worse(
        self, baseline: tuple[str, float | None, float], candidate: tuple[str, float | None, float]
    ) -> str:
        """How the errors of `candidate` exceed those of `baseline` by more than chance."""
        slack = self.growth * _SLACK + self._chance_factor(self.judged)
        rounding = 2 * self.roundoff
        (_, rms_floor, max_floor), (side, rms, largest) = baseline, candidate
        # a runtime keeps float32 between half-precision operators where no function or loop stands between
        # them: the effect of a rounding there is known from the effect of a rounding of the inputs
        least_noise = self.sensitivity if self.roundoff >= _HALF_ROUNDOFF else 0.0
        rms_floor, rms, scale = max(rms_floor or 0.0, least_noise), rms or 0.0, self._rms("true") or 0.0
        max_floor = max(max_floor, _PEAK * least_noise)
        if self._exceeds(rms, slack * rms_floor + rounding * scale):
            return f"RMS error against float64 {rms:.2e}, of the original {rms_floor:.2e}"
        if self._exceeds(largest, slack * max_floor + rounding * self.largest):
            return f"largest error against float64 {largest:.2e}, of the original {max_floor:.2e}"
        for exponent, (count, old, new) in self._bins.items():
            if self._independent_errors(count) < _BIN_ELEMENTS:
                continue
            a, b = math.sqrt(old / count), math.sqrt(new / count)
            a, b = (a, b) if side == "after" else (b, a)
            a = max(a, least_noise)
            top = 2.0 ** min(exponent * _OCTAVES + _OCTAVES, 1023)
            if self._exceeds(b, (self.growth * _SLACK + self._chance_factor(count)) * a + rounding * top):
                return f"RMS error of elements below {top:.2g} is {b:.2e}, of the original {a:.2e}"
        return ""

    def _exceeds(self, error: float, allowed: float) -> bool:
        """Whether an error exceeds its limit; keeps the largest share of a limit."""
        share = error / allowed if allowed else math.inf if error else 0.0
        self.largest_share = max(self.largest_share, share)
        return error > allowed

    def judge_by_depth(self, depth: int) -> str:
        """As `judge`, without a float64 run: the noise is that of `depth` accumulated roundings."""
        problem = self.find_problem()
        if problem or self.equal:
            return problem
        difference, scale = (self.mse or 0.0) ** 0.5, self._rms("old") or 0.0
        # roundings are independent: they add up as the square root of their number
        noise = max(self.roundoff * math.sqrt(depth) * scale, self.sensitivity)
        if self._exceeds(difference, self.growth * _SLACK * noise):
            return f"RMS difference {difference:.2e}, expected of rounding at most {self.growth * _SLACK * noise:.2e}"
        return ""

    def beyond_rounding(self, depth: int) -> bool:
        """Whether the difference exceeds `depth` accumulated roundings, over all elements or in one."""
        noise = allowed(self.roundoff, depth, self.growth)
        difference, scale = (self.mse or 0.0) ** 0.5, self._rms("old") or 0.0
        return difference > noise * scale or self.max_abs > noise * self.largest

    @property
    def is_void(self) -> bool:
        """Whether nothing is wrong but that not one number of either is finite."""
        return (
            not self.nonfinite
            and not self.missing_nonfinite
            and bool(self.shared_nan)
            and self.shared == self.size
        )

    def find_problem(self) -> str:
        """The difference that no rounding explains, in words; '' without one."""
        if self.nonfinite:
            return f"{self.nonfinite:,} NaN or Inf that the original has not"
        if self.missing_nonfinite:
            return f"{self.missing_nonfinite:,} elements are finite where the original is NaN or Inf"
        if self.is_void:
            return "not one finite number in any draw: NaN against NaN shows nothing"
        if not self.elements and not self.equal:
            return "nothing finite could be compared"
        return ""


def _sum_bins(exponents: Array, *squares: Array) -> Iterator[tuple[int, int, float, float]]:
    lowest = int(exponents.min())
    shifted = exponents - lowest
    counts = np.bincount(shifted)
    sums = [np.bincount(shifted, s) for s in squares]
    for bin_index in np.flatnonzero(counts):
        yield (
            int(bin_index) + lowest,
            int(counts[bin_index]),
            float(sums[0][bin_index]),
            float(sums[1][bin_index]),
        )
