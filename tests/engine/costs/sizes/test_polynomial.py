"""Forms of figures over whole sizes: found exactly, and every turn of their sign found."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from explorer.engine.costs.sizes.polynomial import (
    Polynomial,
    find_sign_changes,
    find_upper_envelope,
    fit_polynomial,
)

terms = st.lists(st.integers(-50, 50), min_size=0, max_size=5)


def value(coefficients: list[int], size: int) -> int:
    return sum(c * size**power for power, c in enumerate(coefficients))


@given(st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=4), st.integers(1, 500))
def test_a_form_is_found_from_as_many_figures_as_it_has_coefficients(found: list[int], low: int) -> None:
    sizes = (low, low + 2, low + 7, low + 1000)
    form = fit_polynomial(sizes, tuple(value(found, size) for size in sizes))
    for size in (1, low + 1, 10**6):
        assert form.evaluate(size) == value(found, size)
    assert form.denominator == 1


def test_half_a_square_is_a_form_too() -> None:
    form = fit_polynomial((1, 2, 5, 9), tuple(n * (n + 1) // 2 for n in (1, 2, 5, 9)))
    assert form.format("n") == "(n^2+n)/2"
    assert [form.evaluate(n) for n in (3, 1000)] == [6, 500500]


@given(terms, st.integers(1, 20), st.integers(0, 60))
def test_every_turn_of_the_sign_is_found_and_no_other(found: list[int], low: int, span: int) -> None:
    high = low + span
    told = list(find_sign_changes(Polynomial.from_terms([Fraction(c) for c in found]), low, high))
    seen = [n for n in range(low + 1, high + 1) if (value(found, n) > 0) != (value(found, n - 1) > 0)]
    assert told == seen


@given(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=3), min_size=1, max_size=6))
def test_what_is_largest_nowhere_may_be_forgotten(forms: list[list[int]]) -> None:
    made = [Polynomial.from_terms([Fraction(c) for c in one]) for one in forms]
    kept = find_upper_envelope(made, 1, 80)
    for size in range(1, 81):
        assert max(one.evaluate(size) for one in kept) == max(one.evaluate(size) for one in made)
    assert len(kept) <= len(set(made))
