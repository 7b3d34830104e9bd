"""Fits closed forms of a language model's figures over the number of tokens, and checks them.

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

CountFigure = Callable[[int], int]
"""Function that counts a figure at a size in tokens."""


def fit_prompt(count_figure: CountFigure, sizes: tuple[int, int, int], checks: Sequence[int]) -> ClosedForm:
    """Fits a quadratic polynomial in the tokens of a prompt.

    Args:
        count_figure: Function that counts the figure at a size.
        sizes: Sizes that the polynomial is fitted to.
        checks: Further sizes at which the polynomial must match the count.
    """
    polynomial = fit_polynomial(sizes, tuple([count_figure(size) for size in sizes]))
    matching = [
        size
        for size in checks
        if polynomial.evaluate_numerator(size) == count_figure(size) * polynomial.denominator
    ]
    pieces = (_build_piece(1, polynomial, "prompt"),) if len(matching) == len(checks) else ()
    return ClosedForm("prompt", pieces, sizes, tuple(matching))


def fit_contexts(count_figure: CountFigure, windows: Sequence[int], max_size: int) -> ClosedForm:
    """Fits linear polynomials in the cached tokens, one for each range between two windows.

    Args:
        count_figure: Function that counts the figure of a step at a size.
        windows: Context sizes at which the cache of some layers stops growing, ascending.
        max_size: Largest size of interest.
    """
    starts = [1, *windows]
    pieces: list[FormPiece] = []
    counted: list[int] = []
    checked: list[int] = []
    for index, first in enumerate(starts):
        # the range after the last window is wide enough for checks far from the fitted sizes
        last = starts[index + 1] if index + 1 < len(starts) else max(max_size, 2 * first + 62)
        sizes = _choose_sizes(first, last)
        polynomial = fit_polynomial(sizes, tuple([count_figure(size) for size in sizes]))
        checks = [size for size in (first, (first + last) // 2, last) if size not in sizes]
        matching = [
            size
            for size in checks
            if polynomial.evaluate_numerator(size) == count_figure(size) * polynomial.denominator
        ]
        counted += sizes
        checked += matching
        if len(matching) < len(checks):
            return ClosedForm("context", (), tuple(sorted(set(counted))), ())
        piece = _build_piece(first, polynomial, "context")
        if not pieces or (piece.coefficients, piece.over) != (pieces[-1].coefficients, pieces[-1].over):
            pieces.append(piece)
    return ClosedForm("context", tuple(pieces), tuple(sorted(set(counted))), tuple(sorted(set(checked))))


def _choose_sizes(first: int, last: int) -> tuple[int, ...]:
    """Returns two small sizes of a range, which are quick to count, or one if the range has no other."""
    return tuple(sorted({min(first + 1, last), min(first + 9, last)}))


def _build_piece(first: int, polynomial: Polynomial, size_name: str) -> FormPiece:
    """Builds the piece of a closed form from the size `first` on; `size_name` names the size."""
    text = polynomial.format(size_name) or "0"
    return FormPiece(first, polynomial.coefficients, polynomial.denominator, text)


Key = TypeVar("Key")


class InterpolatedCounts(Generic[Key]):
    """Figures by layer at several contexts, counted at a few of them and interpolated at the others.

    The closed form describes the sum of the figures over all layers. Counts are made at the ends of each of
    its linear pieces. Interpolation between these ends is exact, because a layer's figure changes its slope
    only at the layer's window, and the sum changes its slope there, too.

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
        self._contexts, self._counted_contexts = (*contexts, *counted), frozenset(counted)
        self._counts: dict[int, dict[Key, float]] = {}

    def get_figures(self, context: int) -> dict[Key, float]:
        """Returns the figures at one of the contexts."""
        low, high = self._find_ends(context)
        if context in (low, high) or context in self._counted_contexts:
            return self._count_once(context)
        low_figures, high_figures = self._count_once(low), self._count_once(high)
        figures: dict[Key, float] = {}
        for key, high_figure in high_figures.items():
            low_figure = low_figures.get(key, 0.0)
            # multiplying before dividing keeps the result exact between whole counts on a line
            figures[key] = low_figure + (high_figure - low_figure) * (context - low) / (high - low)
        return figures

    def _count_once(self, context: int) -> dict[Key, float]:
        """Returns the counts at a context; each context is counted once."""
        if context not in self._counts:
            self._counts[context] = self._count(context)
        return self._counts[context]

    def _find_ends(self, context: int) -> tuple[int, int]:
        """Returns the smallest and the largest context on the linear piece of a context.

        Both are the context itself if it is on no linear piece.
        """
        firsts = [piece.first for piece in self._form.pieces]
        index = bisect_right(firsts, context) - 1
        if index < 0 or any(self._form.pieces[index].coefficients[2:]):
            return context, context
        end = firsts[index + 1] if index + 1 < len(firsts) else math.inf
        contexts_on_piece = [size for size in self._contexts if firsts[index] <= size < end]
        return min(contexts_on_piece), max(contexts_on_piece)
