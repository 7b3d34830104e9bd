"""Computes curves of a model over one size: MACs, memory, minimum time, and the sizes at which curves cross.

The values of a curve come from closed forms, such as 4*seq**2 + 8*seq, or from analyses of the model at
single sizes. Closed forms are checked: the model is analyzed at each crossing, and one size before it. If an
analysis contradicts a form, all values come from analyses.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import ExplorerError, Misuse
from explorer.engine.costs.memory.liveness import AnalysisResult
from explorer.engine.costs.sizes.closed_forms import ClosedForms, SizeFigures, Values, find_closed_forms
from explorer.engine.costs.sizes.polynomial import (
    Polynomial,
    find_sign_changes,
    find_upper_envelope,
    fit_polynomial,
)
from explorer.facts.roofline import Machine
from explorer.facts.sizes.curves import Crossing, CurveName, SizeCurve, SizeCurves

PAIRS: tuple[tuple[CurveName, CurveName], ...] = (
    ("activations", "weights"),
    ("kv_cache", "weights"),
    ("kv_cache", "activations"),
    ("compute", "memory"),
)
"""Pairs of curves with the same unit whose crossings are reported."""

_MAX_POLYNOMIALS = 3
"""Maximum number of polynomials in the text of a curve, as in 'max(4*seq, seq**2)'."""
_SAMPLE_COUNT = 40
"""Number of sizes that are analyzed if there are no closed forms."""
_SIZES_PER_DOUBLING = 24
"""Number of sizes from a power of two to the next at which a closed form is evaluated."""
_MIN_CACHE_SPAN = 3
"""Minimum length of a range in which the bytes of the cache are checked to be linear."""


class SizeRange(Struct, frozen=True):
    """A symbolic dimension or option of the model, and the range of its size.

    Attributes:
        name: Name of the size, such as 'seq'.
        low, high: Both ends of the range, inclusive.
        current: Current size of the model, or None if it is symbolic.
        others: Sizes of the other symbolic dimensions.
        notes: Notes on the range.
    """

    name: str
    low: int
    high: int
    current: int | None = None
    others: Mapping[str, int] = {}
    notes: tuple[str, ...] = ()


def compute_size_curves(
    size_range: SizeRange,
    examine: Callable[[int], AnalysisResult],
    cache_bytes: Callable[[int], int] | None,
    machine: Machine | None,
) -> SizeCurves:
    """Computes the curves of a model over a size.

    Args:
        size_range: Size and its range.
        examine: Analyzes the model at a size.
        cache_bytes: Bytes of the KV cache for a number of tokens, or None if the size is not a text length or
            the model has no cache.
        machine: Machine for the times, or None for curves without times.
    """
    return _Curves(size_range, examine, cache_bytes, machine).compute()


class _Curves:
    """Computes the curves over one size."""

    def __init__(
        self,
        size_range: SizeRange,
        examine: Callable[[int], AnalysisResult],
        cache_bytes: Callable[[int], int] | None,
        machine: Machine | None,
    ) -> None:
        self.size_range, self.machine = size_range, machine
        self.weight_bytes = 0
        self.coverage = 1.0
        self.analyzed_sizes: set[int] = set()
        self.cache_bytes = cache_bytes and cache(cache_bytes)

        @cache
        def analyze(size: int) -> SizeFigures:
            examined = examine(size)
            self.analyzed_sizes.add(size)
            self.weight_bytes = examined.info.totals.weight_bytes
            self.coverage = min(self.coverage, examined.info.totals.coverage)
            return SizeFigures.from_analysis(examined)

        self.analyze = analyze
        self.forms: list[ClosedForms] = []
        self.cache_form: Polynomial | None = None

    def compute(self) -> SizeCurves:
        """Computes all curves and crossings."""
        size_range = self.size_range
        sizes_to_check = () if size_range.current is None else (size_range.current,)
        self.cache_form = self._fit_cache_form()
        self.forms = find_closed_forms(self.analyze, size_range.low, size_range.high, sizes_to_check) or []
        crossings = self._find_crossings() if self.forms else None
        if crossings is None:
            self.forms = []
            sizes = self._sample_sizes()
            crossings = self._bisect_crossings(sizes)
            sizes = sorted(
                {*sizes, *(size for crossing in crossings for size in (crossing.size - 1, crossing.size))}
            )
        else:
            sizes = self._choose_grid(crossings)
        return SizeCurves(
            *(size_range.name, size_range.low, size_range.high, size_range.current),
            sizes=tuple(sizes),
            curves=tuple(self._build_curves(sizes)),
            crossings=tuple(crossings),
            others=dict(size_range.others),
            machine=self.machine,
            counted=tuple(sorted(self.analyzed_sizes)),
            closed=bool(self.forms),
            notes=(*size_range.notes, *self._list_notes()),
        )

    def _fit_cache_form(self) -> Polynomial | None:
        """Returns the bytes of the cache as a function of the tokens, or None if they are not linear."""
        # half of the range: with the largest size in its cache, a decode step is one token longer
        low, high = max(1, self.size_range.low), self.size_range.high // 2
        if self.cache_bytes is None or high - low < _MIN_CACHE_SPAN:
            return None
        sizes = low, (low + high) // 2, high
        try:
            first, middle, last = (self.cache_bytes(size) for size in sizes)
        except ExplorerError:  # a model has no decode step beyond its maximum text length
            return None
        line = fit_polynomial((low, high), (first, last))
        return line if line.evaluate_numerator(sizes[1]) == middle * line.denominator else None

    # values

    def values(self, size: int) -> Values:
        """Returns the value of each curve at a size, from closed forms, else from an analysis."""
        if self.forms:
            index = bisect_right(self.forms, size, key=lambda form: form.low) - 1
            values = self.forms[index].values(size, self.weight_bytes, self.machine)
        else:
            values = self.analyze(size).values(self.weight_bytes, self.machine)
        if self.cache_form is not None:
            values["kv_cache"] = Fraction(self.cache_form.evaluate(size))
        return values

    def _build_curves(self, sizes: Sequence[int]) -> Iterator[SizeCurve]:
        rows = [self.values(size) for size in sizes]
        for name in rows[0]:
            is_time = name in ("compute", "memory", "time")
            number_type = float if is_time else int
            yield SizeCurve(
                name,
                tuple(number_type(row[name]) for row in rows),
                "" if is_time else self._format_curve(name),
            )

    def _format_curve(self, name: CurveName) -> str:
        """Returns the closed form of a curve as text, or '' if it differs between ranges of sizes.

        Ranges of a single size do not count.
        """
        if name == "kv_cache":
            return "" if self.cache_form is None else self.cache_form.format(self.size_range.name)
        forms = [form for form in self.forms if form.low < form.high]
        if not forms:
            return ""
        polynomials_by_form = [form.list_polynomials(name, self.weight_bytes, None) for form in forms]
        maximum = find_upper_envelope(
            {polynomial for polynomials in polynomials_by_form for polynomial in polynomials},
            forms[0].low,
            forms[-1].high,
        )
        for form, polynomials in zip(forms, polynomials_by_form, strict=True):
            if not set(find_upper_envelope(maximum, form.low, form.high)) <= set(polynomials):
                return ""
        texts = [polynomial.format(self.size_range.name) for polynomial in maximum]
        if not all(texts) or len(texts) > _MAX_POLYNOMIALS:
            return ""
        return f"max({', '.join(texts)})" if len(texts) > 1 else "".join(texts)

    # crossings

    def _find_crossings(self) -> list[Crossing] | None:
        """Returns the crossings of the closed forms, or None if an analysis contradicts one of them."""
        candidates: list[Crossing] = []
        for curve, other_curve in PAIRS:
            candidate_sizes: set[int] = set()
            for forms in self.forms:
                pairs = [
                    (a, b)
                    for a in self._list_polynomials(curve, forms)
                    for b in self._list_polynomials(other_curve, forms)
                ]
                candidate_sizes |= {
                    size for a, b in pairs for size in find_sign_changes(a - b, forms.low, forms.high)
                }
                candidate_sizes |= {forms.low} if forms.low > self.size_range.low else set()
            for size in sorted(candidate_sizes):
                candidates += self._find_crossing(size, curve, other_curve)
        checked: list[Crossing] = []
        for crossing in candidates:
            confirmed = self._is_confirmed(crossing)
            if confirmed is False:
                return None
            checked.append(replace(crossing, counted=bool(confirmed)))
        return sorted(checked, key=lambda crossing: crossing.size)

    def _list_polynomials(self, name: CurveName, forms: ClosedForms) -> tuple[Polynomial, ...]:
        if name == "kv_cache":
            return () if self.cache_form is None else (self.cache_form,)
        return forms.list_polynomials(name, self.weight_bytes, self.machine)

    def _find_crossing(self, size: int, curve: CurveName, other_curve: CurveName) -> Iterator[Crossing]:
        """Yields the crossing of two curves at a size, if one exceeds the other there but not before."""
        values_before, values_after = self.values(size - 1), self.values(size)
        if curve in values_before and other_curve in values_before:
            for a, b in ((curve, other_curve), (other_curve, curve)):
                if values_after[a] > values_after[b] and not values_before[a] > values_before[b]:
                    yield Crossing(size, a, b, True)

    def _is_confirmed(self, crossing: Crossing) -> bool | None:
        """Whether analyses confirm a crossing, or None if the model cannot be analyzed there."""
        try:
            values_before, values_after = (
                self._analyze_values(crossing.size + step, crossing) for step in (-1, 0)
            )
        except ExplorerError:
            return None
        return values_after[0] > values_after[1] and not values_before[0] > values_before[1]

    def _analyze_values(self, size: int, crossing: Crossing) -> tuple[Fraction, Fraction]:
        values = self.analyze(size).values(self.weight_bytes, self.machine)
        if self.cache_bytes is not None and "kv_cache" in (crossing.above, crossing.below):
            values["kv_cache"] = Fraction(self.cache_bytes(size))
        return values[crossing.above], values[crossing.below]

    def _bisect_crossings(self, sizes: Sequence[int]) -> list[Crossing]:
        """Returns crossings between analyzed sizes, found by bisection."""
        crossings: list[Crossing] = []
        for curve, other_curve in PAIRS:
            for first, last in pairwise(sizes):
                rows = self.values(first), self.values(last)
                if curve not in rows[0] or other_curve not in rows[0]:
                    break
                if (rows[0][curve] > rows[0][other_curve]) == (rows[1][curve] > rows[1][other_curve]):
                    continue
                is_above, low, high = rows[0][curve] > rows[0][other_curve], first, last
                while high - low > 1:
                    middle = (low + high) // 2
                    middle_values = self.values(middle)
                    low, high = (
                        (middle, high)
                        if (middle_values[curve] > middle_values[other_curve]) == is_above
                        else (low, middle)
                    )
                crossings += self._find_crossing(high, curve, other_curve)
        return sorted(crossings, key=lambda crossing: crossing.size)

    # sizes

    def _sample_sizes(self) -> list[int]:
        low, high = self.size_range.low, self.size_range.high
        steps = range(_SAMPLE_COUNT)
        sizes = {round(low * (high / low) ** (step / (_SAMPLE_COUNT - 1))) for step in steps}
        return sorted({low, high, *sizes, *_list_powers_of_two(low, high)})

    def _choose_grid(self, crossings: Sequence[Crossing]) -> list[int]:
        """Returns powers of two, sizes between them, both ends, the current size, and sizes at crossings."""
        low, high, current = self.size_range.low, self.size_range.high, self.size_range.current
        sizes = {
            low,
            high,
            *_list_powers_of_two(low, high),
            *([current] if current is not None and low <= current <= high else []),
        }
        for begin in (low, *_list_powers_of_two(low, high)):
            end = min(high, 2 * begin)
            steps = (round(begin * 2 ** (step / _SIZES_PER_DOUBLING)) for step in range(_SIZES_PER_DOUBLING))
            sizes |= {size for size in steps if begin <= size < end}
        sizes |= {crossing.size + step for crossing in crossings for step in (-1, 0)}
        return sorted(sizes)

    def _list_notes(self) -> Iterator[str]:
        if self.coverage < 1:
            yield f"no curve includes {100 * (1 - self.coverage):.1f} % of the nodes, whose cost is unknown"


def _list_powers_of_two(low: int, high: int) -> list[int]:
    """Returns the powers of two in a range."""
    return [
        1 << power for power in range((low - 1).bit_length(), high.bit_length()) if low <= 1 << power <= high
    ]


def find_usable_range(
    size_range: SizeRange, examine: Callable[[int], AnalysisResult], *, is_requested: bool
) -> SizeRange:
    """Returns the part of a range over which the model can be analyzed.

    Args:
        size_range: Requested range.
        examine: Analyzes the model at a size.
        is_requested: Whether the user gave this range; an impossible range is then an error instead of being
            cut.

    Raises:
        Misuse: The model cannot have such a size.
    """
    required_coverage = examine(size_range.low).info.totals.coverage

    def find_failure(size: int) -> str:
        """Returns the reason why the model cannot have a size, or ''."""
        try:
            coverage = examine(size).info.totals.coverage
        except ExplorerError as error:
            return str(error)
        return "" if coverage >= required_coverage else "the cost of some nodes is not known there"

    failure = find_failure(size_range.high)
    if not failure:
        return size_range
    if is_requested:
        message = f"{size_range.name}={size_range.high:,}: {failure}"
        raise Misuse(message, where="--over", hint="ask for a smaller range")
    sizes = [
        size_range.low,
        *(size for size in _list_powers_of_two(size_range.low, size_range.high) if size > size_range.low),
    ]
    failures = {size_range.high: failure}

    def has_failure(size: int) -> bool:
        failures[size] = find_failure(size)
        return bool(failures[size])

    first_failing = bisect_left(sizes, True, key=has_failure)
    if first_failing == 0:
        raise Misuse(f"{size_range.name}={size_range.low:,}: {failures[size_range.low]}", where="--over")
    least_failing = min(size for size, reason in failures.items() if reason)
    note = f"not counted above {sizes[first_failing - 1]:,}: {failures[least_failing]}"
    return SizeRange(
        size_range.name,
        size_range.low,
        sizes[first_failing - 1],
        size_range.current,
        size_range.others,
        (*size_range.notes, note),
    )
