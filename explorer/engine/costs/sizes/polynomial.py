"""Fits polynomials to integer values, evaluates them exactly, and finds their sign changes.

Costs are products and sums of a model's sizes. As functions of one size they are polynomials with rational
coefficients. Newton's divided differences determine a polynomial from as many values as it has coefficients.
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
    """A polynomial: integer coefficients, lowest power first, over a common denominator."""

    coefficients: tuple[int, ...]
    denominator: int = 1

    @classmethod
    def from_terms(cls, terms: Sequence[Fraction]) -> Polynomial:
        """Creates a polynomial from rational coefficients, lowest power first."""
        coefficients = list(terms)
        while coefficients and not coefficients[-1]:
            coefficients.pop()
        denominator = math.lcm(*(term.denominator for term in coefficients))
        return cls(
            tuple([term.numerator * (denominator // term.denominator) for term in coefficients]), denominator
        )

    @property
    def terms(self) -> tuple[Fraction, ...]:
        """The rational coefficients."""
        return tuple(Fraction(coefficient, self.denominator) for coefficient in self.coefficients)

    def evaluate_numerator(self, size: int) -> int:
        """Returns the value at a size, times the denominator."""
        value = 0
        for coefficient in reversed(self.coefficients):
            value = value * size + coefficient
        return value

    def evaluate(self, size: int) -> int:
        """Returns the value at a size, rounded down; closed forms have integer values at integer sizes."""
        return self.evaluate_numerator(size) // self.denominator

    def format(self, name: str) -> str:
        """Returns the canonical text of the polynomial in the variable `name`, or '' if it is too long."""
        terms: dict[Monomial, int] = {
            (((name, power),) if power else ()): coefficient
            for power, coefficient in enumerate(self.coefficients)
        }
        try:
            return Expression(terms, self.denominator).text
        except UndecidedSize:
            return ""

    def multiply(self, factor: Fraction) -> Polynomial:
        """Returns the polynomial times a number."""
        return Polynomial.from_terms([term * factor for term in self.terms])

    def __add__(self, other: Polynomial) -> Polynomial:
        return Polynomial.from_terms(_add_coefficients(self.terms, other.terms))

    def __sub__(self, other: Polynomial) -> Polynomial:
        return Polynomial.from_terms(_add_coefficients(self.terms, [-term for term in other.terms]))

    def covers(self, smaller: Polynomial) -> bool:
        """Whether each coefficient is at least the coefficient of the same power of `smaller`.

        The value is then at least the value of `smaller` at every size from 1.
        """
        a, b = self.terms, smaller.terms
        zeros = [Fraction(0)] * max(len(a), len(b))
        return all(x >= y for x, y in zip((*a, *zeros), (*b, *zeros), strict=False))


def _add_coefficients(a: Sequence[Fraction], b: Sequence[Fraction]) -> list[Fraction]:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    return [term + (shorter[power] if power < len(shorter) else 0) for power, term in enumerate(longer)]


@lru_cache(1 << 16)
def fit_polynomial(sizes: tuple[int, ...], values: tuple[int, ...]) -> Polynomial:
    """Returns the polynomial of lowest degree with these values, by Newton's divided differences.

    Args:
        sizes: Distinct sizes.
        values: Value at each size.
    """
    differences = [Fraction(value) for value in values]
    for order in range(1, len(sizes)):
        for index in range(len(sizes) - 1, order - 1, -1):
            distance = sizes[index] - sizes[index - order]
            differences[index] = (differences[index] - differences[index - 1]) / distance
    terms = [Fraction(0)]
    for index in range(len(sizes) - 1, -1, -1):
        shifted = [Fraction(0), *terms]
        terms = _add_coefficients(shifted, [-sizes[index] * term for term in terms])
        terms[0] += differences[index]
    return Polynomial.from_terms(terms)


def find_sign_changes(polynomial: Polynomial, low: int, high: int) -> Iterator[int]:
    """Yields the sizes at which the polynomial changes between positive and not positive.

    Where the difference p(n + 1) - p(n) keeps its sign, p is monotonic, and bisection finds its only sign
    change.

    Args:
        polynomial: Polynomial to search.
        low: Start of the range; a result is above it.
        high: End of the range, inclusive.
    """
    if len(polynomial.coefficients) < 2 or low >= high:
        return
    sizes = [low, *find_sign_changes(_compute_difference(polynomial), low, high - 1), high]
    for first, last in pairwise(sizes):
        starts_positive = polynomial.evaluate_numerator(first) > 0
        if starts_positive == (polynomial.evaluate_numerator(last) > 0):
            continue
        while last - first > 1:
            middle = (first + last) // 2
            if (polynomial.evaluate_numerator(middle) > 0) == starts_positive:
                first = middle
            else:
                last = middle
        yield last


def _compute_difference(polynomial: Polynomial) -> Polynomial:
    """Returns the difference p(n + 1) - p(n), by the binomial theorem."""
    terms = polynomial.terms
    differences = [
        sum(
            (term * math.comb(power, lower_power) for power, term in enumerate(terms) if power > lower_power),
            Fraction(0),
        )
        for lower_power in range(len(terms) - 1)
    ]
    return Polynomial.from_terms(differences)


def find_upper_envelope(polynomials: Collection[Polynomial], low: int, high: int) -> tuple[Polynomial, ...]:
    """Returns the polynomials that are the maximum at some size of a range, without duplicates.

    The order of two polynomials changes only at the sizes where their difference changes its sign.
    """
    upper: list[Polynomial] = []
    for polynomial in sorted(
        set(polynomials), key=lambda p: (Fraction(-p.evaluate_numerator(high), p.denominator), p.coefficients)
    ):
        if not any(higher.covers(polynomial) for higher in upper):
            upper.append(polynomial)
    if len(upper) > _MAX_PAIRWISE:
        return tuple(upper)
    pairs = ((a, b) for a in upper for b in upper if a is not b)
    sizes = {low, *(size for a, b in pairs for size in find_sign_changes(a - b, low, high))}
    best = (
        {max(upper, key=lambda p: Fraction(p.evaluate_numerator(size), p.denominator)) for size in sizes}
        if upper
        else set()
    )
    return tuple([polynomial for polynomial in upper if polynomial in best])


_MAX_PAIRWISE = 60
"""Maximum number of polynomials that are compared pairwise."""
