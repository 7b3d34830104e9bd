"""Verdicts: the five kinds that a proof can end with, and their names.

Apart from the facts that have them, because the first paint of the screen does not wait for facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

VerdictKind = Literal["equal", "parts", "evidence", "different", "unproven"]

NOT_NEEDED = "none: not needed"
"""The comparison where all parts before an output are proved: it only shows how rounding grows."""

VERDICTS: Mapping[VerdictKind, str] = {
    "equal": "proven equal",
    "parts": "parts equal",
    "evidence": "equal on evidence",
    "different": "different",
    "unproven": "not proved",
}
"""The name of each kind on the screen and in tables."""


WEAKEST_FIRST: tuple[VerdictKind, ...] = ("different", "unproven", "evidence", "parts", "equal")

PASSED: tuple[VerdictKind, ...] = ("equal", "parts", "evidence")
"""Kinds with which a result is kept."""


def weakest(kinds: Iterable[VerdictKind]) -> VerdictKind:
    """The verdict on several together: 'different' if one is, else the weakest."""
    return min(kinds, key=WEAKEST_FIRST.index, default="equal")
