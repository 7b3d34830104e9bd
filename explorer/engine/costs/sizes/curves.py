"""Curves of a model over one size: MACs, memory and least time, and the sizes at which one passes another.

What is counted anew is told from what follows closed forms: at each crossing, and one size before, the whole
model is analysed again, and a form that says otherwise is dropped for what was counted.
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
from explorer.engine.costs.sizes.closed_forms import ClosedForms, SizeFigures, Values, closed_forms
from explorer.engine.costs.sizes.polynomial import Polynomial, fitted, highest, turns
from explorer.facts.roofline import Machine
from explorer.facts.sizes.curves import Crossing, CurveName, SizeCurve, SizeCurves

PAIRS: tuple[tuple[CurveName, CurveName], ...] = (
    ("activations", "weights"),
    ("kv_cache", "weights"),
    ("kv_cache", "activations"),
    ("compute", "memory"),
)
"""Curves of one unit whose crossings are told."""

_LARGEST_OF = 3
"""Forms of which a curve is the largest that are told."""
_SAMPLED = 40
"""Sizes that are counted where there are no closed forms."""
_OCTAVE = 24
"""Sizes between a power of two and the next at which the curves have values."""


class SizeRange(Struct, frozen=True):
    """Which size, and over which range.

    Attributes:
        name: Of the size.
        low, high: Both ends, each counted.
        at: The model's present size; None where it is open.
        others: Sizes of the other open dimensions.
        notes: Notes on the range.
    """

    name: str
    low: int
    high: int
    at: int | None = None
    others: Mapping[str, int] = {}
    notes: tuple[str, ...] = ()


def size_curves(
    over: SizeRange,
    examine: Callable[[int], AnalysisResult],
    cached: Callable[[int], int] | None,
    machine: Machine | None,
) -> SizeCurves:
    """The curves of a model over a size.

    Args:
        over: The size and its range.
        examine: Analyses the model at a size.
        cached: Bytes of the key-value cache that holds so many tokens; None for a size that is no length of a
            text, or a model without a cache.
        machine: Of the times; None leaves them out.
    """
    return _Curves(over, examine, cached, machine).result()


class _Curves:
    """The work on one size."""

    def __init__(
        self,
        over: SizeRange,
        examine: Callable[[int], AnalysisResult],
        cached: Callable[[int], int] | None,
        machine: Machine | None,
    ) -> None:
        self.over, self.machine = over, machine
        self.weights = 0
        self.coverage = 1.0
        self.counted: set[int] = set()
        self.cached = cached and cache(cached)

        @cache
        def count(size: int) -> SizeFigures:
            examined = examine(size)
            self.counted.add(size)
            self.weights = examined.info.totals.weight_bytes
            self.coverage = min(self.coverage, examined.info.totals.coverage)
            return SizeFigures.of(examined)

        self.count = count
        self.forms: list[ClosedForms] = []
        self.cache_form: Polynomial | None = None

    def result(self) -> SizeCurves:
        """The curves."""
        over = self.over
        check = () if over.at is None else (over.at,)
        self.cache_form = self._cache_form()
        self.forms = closed_forms(self.count, over.low, over.high, check) or []
        crossings = self._crossings() if self.forms else None
        if crossings is None:
            self.forms = []
            sizes = self._sampled()
            crossings = self._counted_crossings(sizes)
            sizes = sorted(
                {*sizes, *(at for crossing in crossings for at in (crossing.size - 1, crossing.size))}
            )
        else:
            sizes = self._grid(crossings)
        return SizeCurves(
            *(over.name, over.low, over.high, over.at),
            sizes=tuple(sizes),
            curves=tuple(self._curves(sizes)),
            crossings=tuple(crossings),
            others=dict(over.others),
            machine=self.machine,
            counted=tuple(sorted(self.counted)),
            closed=bool(self.forms),
            notes=(*over.notes, *self._notes()),
        )

    def _cache_form(self) -> Polynomial | None:
        """Bytes of the cache over the tokens in it, if they keep to a line."""
        low, high = max(1, self.over.low), self.over.high // 2
        if self.cached is None or high - low < 3:
            return None
        sizes = low, (low + high) // 2, high
        try:
            first, middle, last = (self.cached(size) for size in sizes)
        except ExplorerError:  # a text that is cut at a length has a step only below it
            return None
        line = fitted((low, high), (first, last))
        return line if line.above(sizes[1]) == middle * line.over else None

    # values

    def values(self, size: int) -> Values:
        """A value of each curve at a size, counted where there are no forms."""
        if self.forms:
            at = bisect_right(self.forms, size, key=lambda form: form.low) - 1
            values = self.forms[at].values(size, self.weights, self.machine)
        else:
            values = self.count(size).values(self.weights, self.machine)
        if self.cache_form is not None:
            values["kv_cache"] = Fraction(self.cache_form.at(size))
        return values

    def _curves(self, sizes: Sequence[int]) -> Iterator[SizeCurve]:
        rows = [self.values(size) for size in sizes]
        for name in rows[0]:
            times = name in ("compute", "memory", "time")
            read = float if times else int
            yield SizeCurve(name, tuple(read(row[name]) for row in rows), "" if times else self._text(name))

    def _text(self, name: CurveName) -> str:
        """The closed form of a curve that has the same one over the whole range, but for single sizes."""
        if name == "kv_cache":
            return "" if self.cache_form is None else self.cache_form.text(self.over.name)
        wide = [form for form in self.forms if form.low < form.high]
        parts = [form.of(name, self.weights, None) for form in wide]
        if not wide:
            return ""
        whole = highest({part for form_parts in parts for part in form_parts}, wide[0].low, wide[-1].high)
        for form, form_parts in zip(wide, parts, strict=True):
            if not set(highest(whole, form.low, form.high)) <= set(form_parts):
                return ""
        texts = [part.text(self.over.name) for part in whole]
        if not all(texts) or len(texts) > _LARGEST_OF:
            return ""
        return f"max({', '.join(texts)})" if len(texts) > 1 else "".join(texts)

    # crossings

    def _crossings(self) -> list[Crossing] | None:
        """Where the closed forms cross; None if the counted figures there contradict them."""
        candidates: list[Crossing] = []
        for curve, other_curve in PAIRS:
            near: set[int] = set()
            for forms in self.forms:
                pairs = [(a, b) for a in self._parts(curve, forms) for b in self._parts(other_curve, forms)]
                near |= {size for a, b in pairs for size in turns(a - b, forms.low, forms.high)}
                near |= {forms.low} if forms.low > self.over.low else set()
            for size in sorted(near):
                candidates += self._crossing(size, curve, other_curve)
        checked: list[Crossing] = []
        for crossing in candidates:
            confirmed = self._is_confirmed(crossing)
            if confirmed is False:
                return None
            checked.append(replace(crossing, counted=bool(confirmed)))
        return sorted(checked, key=lambda crossing: crossing.size)

    def _parts(self, name: CurveName, forms: ClosedForms) -> tuple[Polynomial, ...]:
        if name == "kv_cache":
            return () if self.cache_form is None else (self.cache_form,)
        return forms.of(name, self.weights, self.machine)

    def _crossing(self, size: int, curve: CurveName, other_curve: CurveName) -> Iterator[Crossing]:
        """The crossing of two curves at a size, if one passes the other there."""
        before, after = self.values(size - 1), self.values(size)
        if curve in before and other_curve in before:
            for a, b in ((curve, other_curve), (other_curve, curve)):
                if after[a] > after[b] and not before[a] > before[b]:
                    yield Crossing(size, a, b, True)

    def _is_confirmed(self, crossing: Crossing) -> bool | None:
        """Whether whole analyses show a crossing; None where there can be none."""
        try:
            before, after = (self._analysed(crossing.size + step, crossing) for step in (-1, 0))
        except ExplorerError:
            return None
        return after[0] > after[1] and not before[0] > before[1]

    def _analysed(self, size: int, crossing: Crossing) -> tuple[Fraction, Fraction]:
        values = self.count(size).values(self.weights, self.machine)
        if self.cached is not None and "kv_cache" in (crossing.above, crossing.below):
            values["kv_cache"] = Fraction(self.cached(size))
        return values[crossing.above], values[crossing.below]

    def _counted_crossings(self, sizes: Sequence[int]) -> list[Crossing]:
        """Where the counted figures cross between two sizes, found by bisection."""
        crossings: list[Crossing] = []
        for curve, other_curve in PAIRS:
            for first, last in pairwise(sizes):
                rows = self.values(first), self.values(last)
                if curve not in rows[0] or other_curve not in rows[0]:
                    break
                if (rows[0][curve] > rows[0][other_curve]) == (rows[1][curve] > rows[1][other_curve]):
                    continue
                begins, low, high = rows[0][curve] > rows[0][other_curve], first, last
                while high - low > 1:
                    middle = (low + high) // 2
                    here = self.values(middle)
                    low, high = (
                        (middle, high) if (here[curve] > here[other_curve]) == begins else (low, middle)
                    )
                crossings += self._crossing(high, curve, other_curve)
        return sorted(crossings, key=lambda crossing: crossing.size)

    # sizes

    def _sampled(self) -> list[int]:
        low, high = self.over.low, self.over.high
        steps = range(_SAMPLED)
        sizes = {round(low * (high / low) ** (step / (_SAMPLED - 1))) for step in steps}
        return sorted({low, high, *sizes, *_powers(low, high)})

    def _grid(self, crossings: Sequence[Crossing]) -> list[int]:
        """Powers of two, sizes between them, the ends, the size now, and both sides of each crossing."""
        low, high, at = self.over.low, self.over.high, self.over.at
        sizes = {low, high, *_powers(low, high), *([at] if at is not None and low <= at <= high else [])}
        for power in (0, *_powers(low, high)):
            begin = power or low
            end = min(high, 2 * begin)
            steps = (round(begin * 2 ** (step / _OCTAVE)) for step in range(_OCTAVE))
            sizes |= {size for size in steps if begin <= size < end}
        sizes |= {crossing.size + step for crossing in crossings for step in (-1, 0)}
        return sorted(sizes)

    def _notes(self) -> Iterator[str]:
        if self.coverage < 1:
            yield f"{100 * (1 - self.coverage):.1f} % of the nodes have a cost that is not known, in no curve"


def _powers(low: int, high: int) -> list[int]:
    """The powers of two in a range."""
    return [
        1 << power for power in range((low - 1).bit_length(), high.bit_length()) if low <= 1 << power <= high
    ]


def usable_range(
    over: SizeRange, examine: Callable[[int], AnalysisResult], *, is_requested: bool
) -> SizeRange:
    """The range as far as the model can be counted over it.

    Args:
        over: The requested range.
        examine: Analyses the model at a size.
        is_requested: Whether a user asked for this range: then an impossible range is refused, not cut.

    Raises:
        Misuse: The model cannot be of such a size.
    """
    least = examine(over.low).info.totals.coverage

    def fits(size: int) -> str:
        """Why the model cannot be of a size; '' if it can."""
        try:
            reached = examine(size).info.totals.coverage
        except ExplorerError as error:
            return str(error)
        return "" if reached >= least else "the cost of some nodes is not known there"

    why = fits(over.high)
    if not why:
        return over
    if is_requested:
        raise Misuse(f"{over.name}={over.high:,}: {why}", where="--over", hint="ask for a smaller range")
    sizes = [over.low, *(size for size in _powers(over.low, over.high) if size > over.low)]
    fails = {over.high: why}

    def wrong(size: int) -> bool:
        fails[size] = fits(size)
        return bool(fails[size])

    at = bisect_left(sizes, True, key=wrong)
    if at == 0:
        raise Misuse(f"{over.name}={over.low:,}: {fails[over.low]}", where="--over")
    least_failing = min(size for size, reason in fails.items() if reason)
    note = f"not counted above {sizes[at - 1]:,}: {fails[least_failing]}"
    return SizeRange(over.name, over.low, sizes[at - 1], over.at, over.others, (*over.notes, note))
