"""Closed forms of a model's figures over one size, from whole analyses at a few sizes.

Every figure (each layer's MACs and bytes, the bytes alive at each step) is taken for a polynomial, found from
four sizes and held to what is counted at others. A figure that does not keep to one, or a model that runs
other layers at another size, has none: then nothing is said but what was counted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction

from msgspec import Struct

from explorer.engine.costs.memory.liveness import AnalysisResult, live_bytes
from explorer.engine.costs.memory.roofline import roofline
from explorer.engine.costs.sizes.polynomial import Polynomial, fitted, highest
from explorer.facts.roofline import Machine
from explorer.facts.sizes.curves import CurveName

Values = dict[CurveName, Fraction]

_ANY = Machine("", 1, 1)
"""Which layers have a place on a roofline does not depend on the machine."""


class SizeFigures(Struct, frozen=True):
    """The figures of a model at one size.

    Attributes:
        labels: Of the steps in execution order.
        layers: MACs and bytes moved by each layer that has a place on a roofline; None for what is not known.
        alive: Bytes of activations alive at each step.
    """

    labels: tuple[str, ...]
    layers: tuple[tuple[int | None, int | None], ...]
    alive: tuple[int, ...]

    @classmethod
    def of(cls, examined: AnalysisResult) -> SizeFigures:
        """The figures of an analysis."""
        order = examined.schedule
        points = roofline(examined.analysis, _ANY).points
        return cls(
            tuple([step.label for step in order.steps]),
            tuple([(point.macs, point.bytes) for point in points]),
            tuple(live_bytes(order)),
        )

    def values(self, weights: int, machine: Machine | None) -> Values:
        """A value of each curve."""
        macs = sum(macs or 0 for macs, _ in self.layers)
        moved = sum(moved or 0 for _, moved in self.layers)
        pairs = ((m, b) for m, b in self.layers if m is not None and b is not None)
        return _values(macs, moved, max(self.alive, default=0), weights, machine, Counter(pairs))


def _values(
    macs: int,
    moved: int,
    peak: int,
    weights: int,
    machine: Machine | None,
    layers: Mapping[tuple[int, int], int],
) -> Values:
    values: Values = {
        "macs": Fraction(macs),
        "moved": Fraction(moved),
        "activations": Fraction(peak),
        "weights": Fraction(weights),
    }
    if machine is not None:
        rate, bandwidth = Fraction(machine.peak_macs), Fraction(machine.bandwidth)
        time = sum(max(m / machine.peak_macs, b / machine.bandwidth) * n for (m, b), n in layers.items())
        values |= {"compute": macs / rate, "memory": moved / bandwidth, "time": Fraction(time)}
    return values


Count = Callable[[int], SizeFigures]
"""Counts the whole model at a size."""


class ClosedForms(Struct, frozen=True):
    """Closed forms of what a model costs over a range of sizes.

    Attributes:
        low, high: The range, both ends in it.
        layers: Of MACs and bytes, and how many layers have both in common.
        macs, moved: Of all layers.
        alive: Those of the steps of which one is the peak somewhere in the range.
    """

    low: int
    high: int
    layers: Mapping[tuple[Polynomial, Polynomial], int]
    macs: Polynomial
    moved: Polynomial
    alive: tuple[Polynomial, ...]

    @classmethod
    def counted(cls, size: int, figures: SizeFigures) -> ClosedForms:
        """Constant forms of the figures at one size."""
        macs = [None if m is None else Polynomial((m,)) for m, _ in figures.layers]
        moved = [None if b is None else Polynomial((b,)) for _, b in figures.layers]
        return _Fit(figures, macs, moved, [Polynomial((figure,)) for figure in figures.alive]).forms(
            size, size
        )

    def values(self, size: int, weights: int, machine: Machine | None) -> Values:
        """A value of each curve at a size."""
        peak = max((polynomial.at(size) for polynomial in self.alive), default=0)
        layers: Counter[tuple[int, int]] = Counter()
        for (macs, moved), count in self.layers.items() if machine is not None else ():
            layers[macs.at(size), moved.at(size)] += count
        return _values(self.macs.at(size), self.moved.at(size), peak, weights, machine, layers)

    def of(self, name: CurveName, weights: int, machine: Machine | None) -> tuple[Polynomial, ...]:
        """The polynomials whose largest a curve is; none for the least time, which is a sum of such."""
        polynomials: dict[CurveName, tuple[Polynomial, ...]] = {
            "macs": (self.macs,),
            "moved": (self.moved,),
            "activations": self.alive,
            "weights": (Polynomial((weights,)),),
        }
        if machine is not None:
            polynomials["compute"] = (self.macs.scaled(1 / Fraction(machine.peak_macs)),)
            polynomials["memory"] = (self.moved.scaled(1 / Fraction(machine.bandwidth)),)
        return polynomials.get(name, ())


class _Fit(Struct, frozen=True):
    """Forms of every layer and step, and the figures at one of the sizes that they are from."""

    first: SizeFigures
    macs: Sequence[Polynomial | None]
    moved: Sequence[Polynomial | None]
    live: Sequence[Polynomial]

    @classmethod
    def of(cls, count: Count, sizes: Sequence[int]) -> _Fit | None:
        """The forms through the figures at some sizes; None where other layers run."""
        samples = [count(size) for size in sizes]
        first, at = samples[0], tuple(sizes)
        if any(not _alike(first, sample) for sample in samples):
            return None
        rows = range(len(first.layers))
        return cls(
            first,
            [_form(at, [figures.layers[row][0] for figures in samples]) for row in rows],
            [_form(at, [figures.layers[row][1] for figures in samples]) for row in rows],
            [fitted(at, sizes) for sizes in zip(*(figures.alive for figures in samples), strict=True)],
        )

    def gives(self, size: int, figures: SizeFigures) -> bool:
        """Whether the forms give the counted figures at a size."""
        if not _alike(self.first, figures):
            return False
        forms = [*self.macs, *self.moved, *self.live]
        counted = [*(m for m, _ in figures.layers), *(b for _, b in figures.layers), *figures.alive]
        return all(
            form is None or form.above(size) == (value or 0) * form.over
            for form, value in zip(forms, counted, strict=True)
        )

    def forms(self, low: int, high: int) -> ClosedForms:
        """The forms as those of a range."""
        pairs = zip(self.macs, self.moved, strict=True)
        layers = Counter((m, b) for m, b in pairs if m is not None and b is not None)
        return ClosedForms(
            low, high, layers, _total(self.macs), _total(self.moved), highest(self.live, low, high)
        )


def closed_forms(
    count: Count, low: int, high: int, check: Collection[int] = (), depth: int = 0
) -> list[ClosedForms] | None:
    """Closed forms of consecutive ranges, the first at the least size; None if the figures keep to none.

    What is looked up in a table, or over a window, grows until that is full: then another form begins. Where
    it does is found by halving.

    Args:
        count: Counts the whole model at a size.
        low: The least size.
        high: The largest.
        check: Further sizes at which the forms are checked.
        depth: How many forms there are already, of larger sizes.
    """
    if high - low < _FEW:
        return [ClosedForms.counted(size, count(size)) for size in range(low, high + 1)]
    fit = _Fit.of(count, _spread(low, high))
    wrong = [] if fit is None else [s for s in _checks(low, high, check) if not fit.gives(s, count(s))]
    if fit is not None and not wrong:
        return [fit.forms(low, high)]
    if fit is not None and wrong == [low]:
        return [ClosedForms.counted(low, count(low)), fit.forms(low + 1, high)]
    upper = high - (high - low) // _UPPER
    fit = _Fit.of(count, _spread(upper, high)) if depth < _DEEP and high - upper >= _FEW else None
    if fit is None or not all(fit.gives(s, count(s)) for s in _checks(upper, high, check)):
        return None
    begins = low + bisect_left(range(low, upper), True, key=lambda s: fit.gives(s, count(s)))
    below = closed_forms(count, low, begins - 1, check, depth + 1) if begins > low else []
    holds = all(fit.gives(s, count(s)) for s in _checks(begins, high, check))
    return None if below is None or not holds else [*below, fit.forms(begins, high)]


_FEW = 12
"""Sizes that are all counted: no form is worth less."""
_UPPER, _DEEP = 8, 6
"""The part of a range in which another form is looked for, and how many forms there may be."""


def _spread(low: int, high: int) -> tuple[int, ...]:
    """Sizes to fit a form to: neither all even nor all of one remainder, so that rounding shows."""
    span = high - low
    return (low + span // 7 + 1, low + span // 3, low + 2 * span // 3 + 1, high)


def _checks(low: int, high: int, more: Collection[int]) -> list[int]:
    """Sizes at which a form is checked."""
    span = high - low
    probes = {low, low + 1, low + span // 50 + 2, low + span // 2, high - 1}
    return sorted((probes | {size for size in more if low <= size <= high}) - set(_spread(low, high)))


def _alike(a: SizeFigures, b: SizeFigures) -> bool:
    """Whether the same steps run, and the same figures are known."""
    same = [(m is None, n is None) for m, n in a.layers] == [(m is None, n is None) for m, n in b.layers]
    return same and a.labels == b.labels


def _form(sizes: tuple[int, ...], values: Sequence[int | None]) -> Polynomial | None:
    numbers = tuple([value for value in values if value is not None])
    return fitted(sizes, numbers) if len(numbers) == len(sizes) else None


def _total(forms: Sequence[Polynomial | None]) -> Polynomial:
    total = Polynomial(())
    for form, count in Counter(form for form in forms if form is not None).items():
        total += form.scaled(Fraction(count))
    return total
