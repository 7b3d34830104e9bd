"""Finds closed forms of a model's figures: polynomials in one size, fitted to analyses at a few sizes.

Every figure (MACs and bytes of each layer, live bytes at each step) is fitted as a polynomial through its
values at four sizes, and checked at other sizes. If a check fails, or the model runs other layers at another
size, there is no closed form and only analyzed sizes have values.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction

from msgspec import Struct

from explorer.engine.costs.memory.liveness import AnalysisResult, sum_live_bytes
from explorer.engine.costs.memory.roofline import compute_roofline
from explorer.engine.costs.sizes.polynomial import Polynomial, find_upper_envelope, fit_polynomial
from explorer.facts.roofline import Machine
from explorer.facts.sizes.curves import CurveName

Values = dict[CurveName, Fraction]
"""Value of each curve at one size."""

_ANY = Machine("", 1, 1)
"""Placeholder machine: which layers have a roofline point does not depend on the machine."""


class SizeFigures(Struct, frozen=True):
    """The figures of a model at one size.

    Attributes:
        labels: Labels of the steps in execution order.
        layers: MACs and bytes moved of each layer with a roofline point, or None if unknown.
        live_bytes: Live activation bytes at each step.
    """

    labels: tuple[str, ...]
    layers: tuple[tuple[int | None, int | None], ...]
    live_bytes: tuple[int, ...]

    @classmethod
    def from_analysis(cls, examined: AnalysisResult) -> SizeFigures:
        """Reads the figures from an analysis."""
        order = examined.schedule
        points = compute_roofline(examined.analysis, _ANY).points
        return cls(
            tuple([step.label for step in order.steps]),
            tuple([(point.macs, point.bytes) for point in points]),
            tuple(sum_live_bytes(order)),
        )

    def values(self, weight_bytes: int, machine: Machine | None) -> Values:
        """Returns the value of each curve."""
        macs = sum(macs or 0 for macs, _ in self.layers)
        moved = sum(moved or 0 for _, moved in self.layers)
        pairs = ((m, b) for m, b in self.layers if m is not None and b is not None)
        return _compute_values(
            macs, moved, max(self.live_bytes, default=0), weight_bytes, machine, Counter(pairs)
        )


def _compute_values(
    macs: int,
    moved: int,
    peak: int,
    weight_bytes: int,
    machine: Machine | None,
    layers: Mapping[tuple[int, int], int],
) -> Values:
    values: Values = {
        "macs": Fraction(macs),
        "moved": Fraction(moved),
        "activations": Fraction(peak),
        "weights": Fraction(weight_bytes),
    }
    if machine is not None:
        rate, bandwidth = Fraction(machine.peak_macs), Fraction(machine.bandwidth)
        time = sum(max(m / machine.peak_macs, b / machine.bandwidth) * n for (m, b), n in layers.items())
        values |= {"compute": macs / rate, "memory": moved / bandwidth, "time": Fraction(time)}
    return values


AnalyzeSize = Callable[[int], SizeFigures]
"""Analyzes the model at a size."""


class ClosedForms(Struct, frozen=True):
    """Closed forms of a model's costs over a range of sizes.

    Attributes:
        low, high: Both ends of the range, inclusive.
        layers: Polynomials of MACs and bytes, with the number of layers that share them.
        macs, bytes_moved: Sums over all layers.
        live_bytes: Polynomials of the steps that are the peak somewhere in the range.
    """

    low: int
    high: int
    layers: Mapping[tuple[Polynomial, Polynomial], int]
    macs: Polynomial
    bytes_moved: Polynomial
    live_bytes: tuple[Polynomial, ...]

    @classmethod
    def constant(cls, size: int, figures: SizeFigures) -> ClosedForms:
        """Returns the constant forms of the figures at one size."""
        macs = [None if m is None else Polynomial((m,)) for m, _ in figures.layers]
        moved = [None if b is None else Polynomial((b,)) for _, b in figures.layers]
        return _Fit(
            figures, macs, moved, [Polynomial((figure,)) for figure in figures.live_bytes]
        ).build_forms(size, size)

    def values(self, size: int, weight_bytes: int, machine: Machine | None) -> Values:
        """Returns the value of each curve at a size."""
        peak = max((polynomial.evaluate(size) for polynomial in self.live_bytes), default=0)
        layers: Counter[tuple[int, int]] = Counter()
        for (macs, moved), count in self.layers.items() if machine is not None else ():
            layers[macs.evaluate(size), moved.evaluate(size)] += count
        return _compute_values(
            self.macs.evaluate(size), self.bytes_moved.evaluate(size), peak, weight_bytes, machine, layers
        )

    def list_polynomials(
        self, name: CurveName, weight_bytes: int, machine: Machine | None
    ) -> tuple[Polynomial, ...]:
        """Returns the polynomials whose maximum is the curve; empty for the minimum time, which is a sum."""
        polynomials: dict[CurveName, tuple[Polynomial, ...]] = {
            "macs": (self.macs,),
            "moved": (self.bytes_moved,),
            "activations": self.live_bytes,
            "weights": (Polynomial((weight_bytes,)),),
        }
        if machine is not None:
            polynomials["compute"] = (self.macs.multiply(1 / Fraction(machine.peak_macs)),)
            polynomials["memory"] = (self.bytes_moved.multiply(1 / Fraction(machine.bandwidth)),)
        return polynomials.get(name, ())


class _Fit(Struct, frozen=True):
    """Polynomials of every layer and step.

    Attributes:
        first: Figures at the first of the fitted sizes.
        macs, bytes_moved: Polynomials of each layer, or None if the figure is unknown.
        live_bytes: Polynomial of each step.
    """

    first: SizeFigures
    macs: Sequence[Polynomial | None]
    bytes_moved: Sequence[Polynomial | None]
    live_bytes: Sequence[Polynomial]

    @classmethod
    def from_sizes(cls, analyze: AnalyzeSize, sizes: Sequence[int]) -> _Fit | None:
        """Fits polynomials to the figures at some sizes, or returns None if other layers run at some size."""
        samples = [analyze(size) for size in sizes]
        first, size_tuple = samples[0], tuple(sizes)
        if any(not _is_comparable(first, sample) for sample in samples):
            return None
        rows = range(len(first.layers))
        return cls(
            first,
            [_fit_form(size_tuple, [figures.layers[row][0] for figures in samples]) for row in rows],
            [_fit_form(size_tuple, [figures.layers[row][1] for figures in samples]) for row in rows],
            [
                fit_polynomial(size_tuple, step_bytes)
                for step_bytes in zip(*(figures.live_bytes for figures in samples), strict=True)
            ],
        )

    def matches(self, size: int, figures: SizeFigures) -> bool:
        """Whether the polynomials equal the analyzed figures at a size."""
        if not _is_comparable(self.first, figures):
            return False
        forms = [*self.macs, *self.bytes_moved, *self.live_bytes]
        values = [*(m for m, _ in figures.layers), *(b for _, b in figures.layers), *figures.live_bytes]
        return all(
            form is None or form.evaluate_numerator(size) == (value or 0) * form.denominator
            for form, value in zip(forms, values, strict=True)
        )

    def build_forms(self, low: int, high: int) -> ClosedForms:
        """Returns the polynomials as closed forms of a range."""
        pairs = zip(self.macs, self.bytes_moved, strict=True)
        layers = Counter((m, b) for m, b in pairs if m is not None and b is not None)
        return ClosedForms(
            low,
            high,
            layers,
            _sum_forms(self.macs),
            _sum_forms(self.bytes_moved),
            find_upper_envelope(self.live_bytes, low, high),
        )


def find_closed_forms(
    analyze: AnalyzeSize, low: int, high: int, check: Collection[int] = (), depth: int = 0
) -> list[ClosedForms] | None:
    """Returns closed forms of consecutive ranges, in ascending order, or None if the figures follow none.

    A table lookup or a window grows with the size until it is full; from there, another form applies.
    Bisection finds that size.

    Args:
        analyze: Analyzes the model at a size.
        low: Smallest size.
        high: Largest size.
        check: Additional sizes at which the forms are checked.
        depth: Number of forms that were already fitted to larger sizes.
    """
    if high - low < _SHORT_RANGE:
        return [ClosedForms.constant(size, analyze(size)) for size in range(low, high + 1)]
    fit = _Fit.from_sizes(analyze, _choose_fit_sizes(low, high))
    mismatches = (
        []
        if fit is None
        else [s for s in _choose_check_sizes(low, high, check) if not fit.matches(s, analyze(s))]
    )
    if fit is not None and not mismatches:
        return [fit.build_forms(low, high)]
    if fit is not None and mismatches == [low]:
        return [ClosedForms.constant(low, analyze(low)), fit.build_forms(low + 1, high)]
    upper = high - (high - low) // _UPPER_PARTS
    fit = None
    if depth < _MAX_FORMS and high - upper >= _SHORT_RANGE:
        fit = _Fit.from_sizes(analyze, _choose_fit_sizes(upper, high))
    if fit is None or not all(fit.matches(s, analyze(s)) for s in _choose_check_sizes(upper, high, check)):
        return None
    start = low + bisect_left(range(low, upper), True, key=lambda s: fit.matches(s, analyze(s)))
    lower_forms = find_closed_forms(analyze, low, start - 1, check, depth + 1) if start > low else []
    is_confirmed = all(fit.matches(s, analyze(s)) for s in _choose_check_sizes(start, high, check))
    return None if lower_forms is None or not is_confirmed else [*lower_forms, fit.build_forms(start, high)]


_SHORT_RANGE = 12
"""Length of a range below which every size is analyzed, because a form would save no analysis."""
_UPPER_PARTS, _MAX_FORMS = 8, 6
"""Number of equal parts of a range, and the maximum number of forms. If one form does not fit a range,
another is fitted to the last part of the range."""


def _choose_fit_sizes(low: int, high: int) -> tuple[int, ...]:
    """Returns four sizes to fit a form to. Their remainders differ, which reveals rounding in a figure."""
    span = high - low
    return (low + span // 7 + 1, low + span // 3, low + 2 * span // 3 + 1, high)


def _choose_check_sizes(low: int, high: int, additional: Collection[int]) -> list[int]:
    """Returns the sizes at which a form is checked."""
    span = high - low
    probes = {low, low + 1, low + span // 50 + 2, low + span // 2, high - 1}
    return sorted(
        (probes | {size for size in additional if low <= size <= high}) - set(_choose_fit_sizes(low, high))
    )


def _is_comparable(a: SizeFigures, b: SizeFigures) -> bool:
    """Whether two analyses have the same steps, and the same figures are known."""
    same_known = [(m is None, n is None) for m, n in a.layers] == [
        (m is None, n is None) for m, n in b.layers
    ]
    return same_known and a.labels == b.labels


def _fit_form(sizes: tuple[int, ...], values: Sequence[int | None]) -> Polynomial | None:
    numbers = tuple([value for value in values if value is not None])
    return fit_polynomial(sizes, numbers) if len(numbers) == len(sizes) else None


def _sum_forms(forms: Sequence[Polynomial | None]) -> Polynomial:
    total = Polynomial(())
    for form, count in Counter(form for form in forms if form is not None).items():
        total += form.multiply(Fraction(count))
    return total
