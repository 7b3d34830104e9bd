"""Verdicts: the five kinds that a proof can end with, and what they are called.

Apart from the facts that carry them, because the screen's first paint waits for no facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

VerdictKind = Literal["equal", "parts", "evidence", "different", "unproven"]

NOT_NEEDED = "none: not needed"
"""What an output is held against where all before it is proved: it only shows how rounding grows."""

VERDICTS: Mapping[VerdictKind, str] = {
    "equal": "proven equal",
    "parts": "parts equal",
    "evidence": "equal on evidence",
    "different": "different",
    "unproven": "not proved",
}
"""What each kind is called on the screen and in tables."""


WEAKEST_FIRST: tuple[VerdictKind, ...] = ("different", "unproven", "evidence", "parts", "equal")

PASSED: tuple[VerdictKind, ...] = ("equal", "parts", "evidence")
"""With which a result is kept."""


def weakest(kinds: Iterable[VerdictKind]) -> VerdictKind:
    """The verdict on several together: 'different' if one is, else the least that was shown."""
    return min(kinds, key=WEAKEST_FIRST.index, default="equal")
