"""Closed forms of a language model's figures over the tokens of a text, fitted to counts and checked.

A figure of a step is linear in the tokens of the cache up to a window, and behind it; a figure of a prompt is
a quadratic polynomial. If the form does not give the counts at other sizes, there is no form.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from explorer.engine.costs.sizes.polynomial import Polynomial, fitted
from explorer.facts.serving.forms import ClosedForm, FormPiece

Counted = Callable[[int], int]
"""A figure at a size, counted."""


def over_prompt(value: Counted, sizes: tuple[int, int, int], checks: Sequence[int]) -> ClosedForm:
    """A quadratic polynomial in the tokens of a prompt.

    Args:
        value: The figure at a size.
        sizes: Sizes that the polynomial is fitted to.
        checks: Sizes at which it has to match.
    """
    polynomial = fitted(sizes, tuple([value(size) for size in sizes]))
    matching = [size for size in checks if polynomial.numerator_at(size) == value(size) * polynomial.over]
    pieces = (_piece(1, polynomial, "prompt"),) if len(matching) == len(checks) else ()
    return ClosedForm("prompt", pieces, sizes, tuple(matching))


def over_context(value: Counted, windows: Sequence[int], most: int) -> ClosedForm:
    """Linear polynomials in the tokens of the cache, one for each range between two windows.

    Args:
        value: The figure of a step at a size.
        windows: Context sizes from which on some layers' cache stops growing, ascending.
        most: The largest size of interest.
    """
    marks = [1, *windows]
    pieces: list[FormPiece] = []
    counted: list[int] = []
    checked: list[int] = []
    for at, first in enumerate(marks):
        last = marks[at + 1] if at + 1 < len(marks) else max(most, 2 * first + 62)
        sizes = _sizes_to_fit(first, last)
        polynomial = fitted(sizes, tuple([value(size) for size in sizes]))
        checks = [size for size in (first, (first + last) // 2, last) if size not in sizes]
        matching = [size for size in checks if polynomial.numerator_at(size) == value(size) * polynomial.over]
        counted += sizes
        checked += matching
        if len(matching) < len(checks):
            return ClosedForm("context", (), tuple(sorted(set(counted))), ())
        piece = _piece(first, polynomial, "context")
        if not pieces or (piece.coefficients, piece.over) != (pieces[-1].coefficients, pieces[-1].over):
            pieces.append(piece)
    return ClosedForm("context", tuple(pieces), tuple(sorted(set(counted))), tuple(sorted(set(checked))))


def _sizes_to_fit(first: int, last: int) -> tuple[int, ...]:
    """Two sizes in a range, near its lower end; all of a range of less."""
    return tuple(sorted({min(first + 1, last), min(first + 9, last)}))


def _piece(first: int, polynomial: Polynomial, over: str) -> FormPiece:
    text = polynomial.text(over) or "0"
    return FormPiece(first, polynomial.coefficients, polynomial.over, text)


Key = TypeVar("Key")


class BetweenCounts(Generic[Key]):
    """Figures by layer at several contexts.

    They are counted at the ends of each linear piece of the closed form of their sum, and interpolated
    between.

    The figure of a layer bends at its window, and there the sum bends, too.

    Args:
        form: The form of the sum.
        contexts: All requested contexts.
        count: Counts at one context.
        counted: Contexts that were counted before, and need no new count.
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
        """The figures at one of the contexts."""
        low, high = self._ends(context)
        if context in (low, high) or context in self._before:
            return self._counted(context)
        few, many, part, whole = self._counted(low), self._counted(high), context - low, high - low
        # multiplied before it is divided: between whole counts on a line, this is the exact count
        return {key: few.get(key, 0.0) + (many[key] - few.get(key, 0.0)) * part / whole for key in many}

    def _counted(self, context: int) -> dict[Key, float]:
        if context not in self._counts:
            self._counts[context] = self._count(context)
        return self._counts[context]

    def _ends(self, context: int) -> tuple[int, int]:
        """The least and the largest context on the same linear piece; the context itself if it is on none."""
        firsts = [piece.first for piece in self._form.pieces]
        at = bisect_right(firsts, context) - 1
        if at < 0 or any(self._form.pieces[at].coefficients[2:]):
            return context, context
        end = firsts[at + 1] if at + 1 < len(firsts) else math.inf
        on_it = [size for size in self._contexts if firsts[at] <= size < end]
        return min(on_it), max(on_it)
