"""Closed forms of figures over the number of tokens: polynomials, one for each range of sizes.

A sliding window of attention ends a range.
"""

from __future__ import annotations

from explorer.base.fact import Fact


class FormPiece(Fact, frozen=True):
    """A polynomial over a range of sizes.

    Attributes:
        first: First size of the range.
        coefficients: Integer coefficients, the constant first. The polynomial is their sum divided by `over`.
        over: Common denominator of the coefficients.
        text: Polynomial as text: '7504658432 + 262144*context'.
    """

    first: int
    coefficients: tuple[int, ...]
    over: int
    text: str


class ClosedForm(Fact, frozen=True):
    """Closed form of one figure over the number of tokens.

    Attributes:
        over: Name of the variable: 'prompt' or 'context'.
        pieces: Polynomials by ascending `first`. Empty if no polynomial matches the counted figures.
        counted: Sizes whose counted figures determine the form.
        checked: Other sizes at which the model was counted, and the form gave the same figure.
    """

    over: str
    pieces: tuple[FormPiece, ...]
    counted: tuple[int, ...]
    checked: tuple[int, ...]

    def at(self, size: int) -> int | None:
        """Evaluates the form at a size, or returns None if there is no form."""
        piece = next((candidate for candidate in reversed(self.pieces) if candidate.first <= size), None)
        if piece is None:
            return None
        value = 0
        for coefficient in reversed(piece.coefficients):
            value = value * size + coefficient
        return value // piece.over

    @property
    def text(self) -> str:
        """Form as text, with the first size of each piece."""
        if len(self.pieces) == 1:
            return self.pieces[0].text
        return "; ".join([f"from {piece.first:,}: {piece.text}" for piece in self.pieces])
