"""Closed forms over the tokens of a text: a polynomial, or one up to each window and one behind the last."""

from __future__ import annotations

from msgspec import Struct


class FormPiece(Struct, frozen=True):
    """A polynomial over a part of the sizes.

    Attributes:
        first: The least size for which it holds.
        coefficients: Whole numbers, that of the constant first, over `over`.
        over: Their common denominator.
        text: As it is written: '7504658432 + 262144*context'.
    """

    first: int
    coefficients: tuple[int, ...]
    over: int
    text: str


class ClosedForm(Struct, frozen=True):
    """A figure over the tokens of a text.

    Attributes:
        over: What the variable is called: 'prompt' or 'context'.
        pieces: By ascending `first`; none where no polynomial gives what was counted.
        counted: Sizes from which it was made.
        checked: Other sizes at which the model was counted, and the form gave the same.
    """

    over: str
    pieces: tuple[FormPiece, ...]
    counted: tuple[int, ...]
    checked: tuple[int, ...]

    def at(self, size: int) -> int | None:
        """Its value at a size; None where there is no form."""
        piece = next((candidate for candidate in reversed(self.pieces) if candidate.first <= size), None)
        if piece is None:
            return None
        value = 0
        for coefficient in reversed(piece.coefficients):
            value = value * size + coefficient
        return value // piece.over

    @property
    def text(self) -> str:
        """As it is written, with the sizes from which on each piece holds."""
        if len(self.pieces) == 1:
            return self.pieces[0].text
        return "; ".join([f"from {piece.first:,}: {piece.text}" for piece in self.pieces])
