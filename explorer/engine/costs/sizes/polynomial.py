"""Polynomials over whole sizes: fitted exactly, evaluated exactly, and where their sign turns.

Figures of a model are products and sums of its sizes, so over one size they are polynomials of it with
rational coefficients. Newton's divided differences find one from as many figures as it has coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from msgspec import Struct

from explorer.engine.symbolic.expressions import Expression, Monomial, UndecidedSize


class Polynomial(Struct, frozen=True):
    """Integer coefficients, that of the constant first, over a common denominator."""

    coefficients: tuple[int, ...]
    over: int = 1

    @classmethod
    def of(cls, terms: Sequence[Fraction]) -> Polynomial:
        """A polynomial of rational coefficients, that of the constant first."""
        coefficients = list(terms)
        while coefficients and not coefficients[-1]:
            coefficients.pop()
        over = math.lcm(*(term.denominator for term in coefficients))
        return cls(tuple([term.numerator * (over // term.denominator) for term in coefficients]), over)

    @property
    def terms(self) -> tuple[Fraction, ...]:
        """The coefficients."""
        return tuple(Fraction(coefficient, self.over) for coefficient in self.coefficients)

    def above(self, size: int) -> int:
        """The value at a size, times the denominator."""
        value = 0
        for coefficient in reversed(self.coefficients):
            value = value * size + coefficient
        return value

    def at(self, size: int) -> int:
        """The value at a size at which it is whole."""
        return self.above(size) // self.over

    def text(self, name: str) -> str:
        """Its canonical text, as that of any size; '' for one too long to read."""
        terms: dict[Monomial, int] = {
            (((name, power),) if power else ()): coefficient
            for power, coefficient in enumerate(self.coefficients)
        }
        try:
            return Expression(terms, self.over).text
        except UndecidedSize:
            return ""

    def scaled(self, factor: Fraction) -> Polynomial:
        """The polynomial times a number."""
        return Polynomial.of([term * factor for term in self.terms])

    def __add__(self, other: Polynomial) -> Polynomial:
        return Polynomial.of(_summed(self.terms, other.terms))

    def __sub__(self, other: Polynomial) -> Polynomial:
        return Polynomial.of(_summed(self.terms, [-term for term in other.terms]))

    def covers(self, other: Polynomial) -> bool:
        """Whether no coefficient is below the other's, so that it is nowhere less at sizes of 1 or more."""
        a, b = self.terms, other.terms
        nothing = [Fraction(0)] * max(len(a), len(b))
        return all(x >= y for x, y in zip((*a, *nothing), (*b, *nothing), strict=False))


def _summed(a: Sequence[Fraction], b: Sequence[Fraction]) -> list[Fraction]:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    return [term + (shorter[at] if at < len(shorter) else 0) for at, term in enumerate(longer)]


@lru_cache(1 << 16)
def fitted(sizes: tuple[int, ...], values: tuple[int, ...]) -> Polynomial:
    """The polynomial of least degree through some values, by Newton's divided differences.

    Args:
        sizes: All different.
        values: As many.
    """
    differences = [Fraction(value) for value in values]
    for order in range(1, len(sizes)):
        for at in range(len(sizes) - 1, order - 1, -1):
            run = sizes[at] - sizes[at - order]
            differences[at] = (differences[at] - differences[at - 1]) / run
    terms = [Fraction(0)]
    for at in range(len(sizes) - 1, -1, -1):
        shifted = [Fraction(0), *terms]
        terms = _summed(shifted, [-sizes[at] * term for term in terms])
        terms[0] += differences[at]
    return Polynomial.of(terms)


def turns(polynomial: Polynomial, low: int, high: int) -> Iterator[int]:
    """The sizes at which it is above 0 and one size before is not, or the other way round.

    Where the polynomial of its steps, p(n + 1) - p(n), keeps its sign p runs one way, and bisection finds the
    one place at most.

    Args:
        polynomial: Any.
        low: The first size that is looked at.
        high: The last one.
    """
    if len(polynomial.coefficients) < 2 or low >= high:
        return
    marks = [low, *turns(_steps(polynomial), low, high - 1), high]
    for first, last in pairwise(marks):
        begins, ends = polynomial.above(first) > 0, polynomial.above(last) > 0
        if begins == ends:
            continue
        while last - first > 1:
            middle = (first + last) // 2
            first, last = (middle, last) if (polynomial.above(middle) > 0) == begins else (first, middle)
        yield last


def _steps(polynomial: Polynomial) -> Polynomial:
    """p(n + 1) - p(n), by the binomial theorem."""
    terms = polynomial.terms
    differences = [
        sum(
            (term * math.comb(power, below) for power, term in enumerate(terms) if power > below), Fraction(0)
        )
        for below in range(len(terms) - 1)
    ]
    return Polynomial.of(differences)


def highest(polynomials: Collection[Polynomial], low: int, high: int) -> tuple[Polynomial, ...]:
    """Those that are the largest of all at some size of a range; of equals one.

    Between the sizes at which one begins to be above another, or ends, the order stays.
    """
    upper: list[Polynomial] = []
    for polynomial in sorted(
        set(polynomials), key=lambda p: (Fraction(-p.above(high), p.over), p.coefficients)
    ):
        if not any(higher.covers(polynomial) for higher in upper):
            upper.append(polynomial)
    if len(upper) > _MANY:
        return tuple(upper)
    pairs = ((a, b) for a in upper for b in upper if a is not b)
    marks = {low, *(size for a, b in pairs for size in turns(a - b, low, high))}
    best = {max(upper, key=lambda p: Fraction(p.above(size), p.over)) for size in marks} if upper else set()
    return tuple([polynomial for polynomial in upper if polynomial in best])


_MANY = 60
"""Polynomials of which each is compared with each other one."""
