"""Closed forms of a language model's figures over the tokens of a text, from a few counts, held to others.

A figure of a step is linear in the tokens of the cache up to a window, and behind it; one of a prompt is a
polynomial of the second degree. What was counted at other sizes has to come out of it, or there is no form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from explorer.engine.costs.sizes.polynomial import Polynomial, fitted
from explorer.facts.serving.forms import ClosedForm, FormPiece

Counted = Callable[[int], int]
"""A figure at a size, counted."""


def over_prompt(value: Counted, made: tuple[int, int, int], checks: Sequence[int]) -> ClosedForm:
    """A polynomial of the second degree of the tokens of a prompt.

    Args:
        value: The figure at a size.
        made: Sizes from which the form is made.
        checks: Sizes at which it has to hold.
    """
    polynomial = fitted(made, tuple([value(size) for size in made]))
    held = [size for size in checks if polynomial.above(size) == value(size) * polynomial.over]
    pieces = (_piece(1, polynomial, "prompt"),) if len(held) == len(checks) else ()
    return ClosedForm("prompt", pieces, made, tuple(held))


def over_context(value: Counted, windows: Sequence[int], most: int) -> ClosedForm:
    """A polynomial of the first degree of the tokens in the cache, for each part between two windows.

    Args:
        value: The figure of a step at a size.
        windows: Tokens from which on some layers keep no more, ascending.
        most: The largest size of interest.
    """
    marks = [1, *windows]
    pieces: list[FormPiece] = []
    counted: list[int] = []
    checked: list[int] = []
    for at, first in enumerate(marks):
        last = marks[at + 1] if at + 1 < len(marks) else max(most, 2 * first + 62)
        made = _two(first, last)
        polynomial = fitted(made, tuple([value(size) for size in made]))
        checks = [size for size in (first, (first + last) // 2, last) if size not in made]
        held = [size for size in checks if polynomial.above(size) == value(size) * polynomial.over]
        counted += made
        checked += held
        if len(held) < len(checks):
            return ClosedForm("context", (), tuple(sorted(set(counted))), ())
        piece = _piece(first, polynomial, "context")
        if not pieces or (piece.coefficients, piece.over) != (pieces[-1].coefficients, pieces[-1].over):
            pieces.append(piece)
    return ClosedForm("context", tuple(pieces), tuple(sorted(set(counted))), tuple(sorted(set(checked))))


def _two(first: int, last: int) -> tuple[int, ...]:
    """Two sizes in a range, near its lower end; all of a range of less."""
    return tuple(sorted({min(first + 1, last), min(first + 9, last)}))


def _piece(first: int, polynomial: Polynomial, over: str) -> FormPiece:
    text = polynomial.text(over) or "0"
    return FormPiece(first, polynomial.coefficients, polynomial.over, text)
