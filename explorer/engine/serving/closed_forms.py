"""Closed forms of a language model's figures over the number of tokens, fitted to counts and checked.

A figure of a decode step is linear in the number of cached tokens on each side of a window size. A figure of
a prompt is a quadratic polynomial. If a form does not match the counts at further sizes, it is dropped.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from explorer.engine.costs.sizes.polynomial import Polynomial, fit_polynomial
from explorer.facts.serving.forms import ClosedForm, FormPiece

Counted = Callable[[int], int]
"""Function that counts a figure at a size in tokens."""


def fit_prompt(value: Counted, sizes: tuple[int, int, int], checks: Sequence[int]) -> ClosedForm:
    """Fits a quadratic polynomial in the tokens of a prompt.

    Args:
        value: Function that counts the figure at a size.
        sizes: Sizes that the polynomial is fitted to.
        checks: Further sizes at which the polynomial must match the count.
    """
    polynomial = fit_polynomial(sizes, tuple([value(size) for size in sizes]))
    matching = [size for size in checks if polynomial.numerator_at(size) == value(size) * polynomial.over]
    pieces = (_form_piece(1, polynomial, "prompt"),) if len(matching) == len(checks) else ()
    return ClosedForm("prompt", pieces, sizes, tuple(matching))


def fit_contexts(value: Counted, windows: Sequence[int], most: int) -> ClosedForm:
    """Fits linear polynomials in the cached tokens, one for each range between two windows.

    Args:
        value: Function that counts the figure of a step at a size.
        windows: Context sizes at which the cache of some layers stops growing, ascending.
        most: Largest size of interest.
    """
    starts = [1, *windows]
    pieces: list[FormPiece] = []
    counted: list[int] = []
    checked: list[int] = []
    for index, first in enumerate(starts):
        last = starts[index + 1] if index + 1 < len(starts) else max(most, 2 * first + 62)
        sizes = _sizes_to_fit(first, last)
        polynomial = fit_polynomial(sizes, tuple([value(size) for size in sizes]))
        checks = [size for size in (first, (first + last) // 2, last) if size not in sizes]
        matching = [size for size in checks if polynomial.numerator_at(size) == value(size) * polynomial.over]
        counted += sizes
        checked += matching
        if len(matching) < len(checks):
            return ClosedForm("context", (), tuple(sorted(set(counted))), ())
        piece = _form_piece(first, polynomial, "context")
        if not pieces or (piece.coefficients, piece.over) != (pieces[-1].coefficients, pieces[-1].over):
            pieces.append(piece)
    return ClosedForm("context", tuple(pieces), tuple(sorted(set(counted))), tuple(sorted(set(checked))))


def _sizes_to_fit(first: int, last: int) -> tuple[int, ...]:
    """Returns two sizes near the lower end of a range, or all sizes of a range with fewer."""
    return tuple(sorted({min(first + 1, last), min(first + 9, last)}))


def _form_piece(first: int, polynomial: Polynomial, over: str) -> FormPiece:
    text = polynomial.text(over) or "0"
    return FormPiece(first, polynomial.coefficients, polynomial.over, text)


Key = TypeVar("Key")


class BetweenCounts(Generic[Key]):
    """Figures by layer at several contexts, counted at a few of them and interpolated at the others.

    Counts are made at the ends of each linear piece of the closed form of the figures' sum. Interpolation
    between these ends is exact: a layer's figure changes its slope only at the layer's window, and the sum
    does so there, too.

    Args:
        form: Closed form of the sum over all layers.
        contexts: All requested contexts.
        count: Function that counts the figures at one context.
        counted: Contexts that are counted already and need no new count.
    """

    def __init__(
        self,
        form: ClosedForm,
        contexts: Sequence[int],
        count: Callable[[int], dict[Key, float]],
        counted: Sequence[int] = (),
    ) -> None:
        self._form, self._count = form, count
        self._contexts, self._before = (*contexts, *counted), frozenset(counted)
        self._counts: dict[int, dict[Key, float]] = {}

    def at(self, context: int) -> dict[Key, float]:
        """Returns the figures at one of the contexts."""
        low, high = self._ends(context)
        if context in (low, high) or context in self._before:
            return self._counted(context)
        low_figures, high_figures, distance, length = (
            self._counted(low),
            self._counted(high),
            context - low,
            high - low,
        )
        # multiplying before dividing keeps the result exact between whole counts on a line
        return {
            key: low_figures.get(key, 0.0)
            + (high_figures[key] - low_figures.get(key, 0.0)) * distance / length
            for key in high_figures
        }

    def _counted(self, context: int) -> dict[Key, float]:
        if context not in self._counts:
            self._counts[context] = self._count(context)
        return self._counts[context]

    def _ends(self, context: int) -> tuple[int, int]:
        """Returns the least and the largest context on the same linear piece, or the context itself if it is
        on none.
        """
        firsts = [piece.first for piece in self._form.pieces]
        index = bisect_right(firsts, context) - 1
        if index < 0 or any(self._form.pieces[index].coefficients[2:]):
            return context, context
        end = firsts[index + 1] if index + 1 < len(firsts) else math.inf
        contexts_on_piece = [size for size in self._contexts if firsts[index] <= size < end]
        return min(contexts_on_piece), max(contexts_on_piece)
