"""Verdicts: the five possible results of a proof, and their names.

This module is separate from the facts, because the first paint of the screen must not wait for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

VerdictKind = Literal["equal", "parts", "evidence", "different", "unproven"]

NOT_NEEDED = "none: not needed"
"""Name of the reference for an output that needs none, because all parts before it are proved.

Its comparison only shows how rounding errors grow.
"""

VERDICTS: Mapping[VerdictKind, str] = {
    "equal": "proven equal",
    "parts": "parts equal",
    "evidence": "equal on evidence",
    "different": "different",
    "unproven": "not proved",
}
"""Name of each kind on the screen and in tables."""


WEAKEST_FIRST: tuple[VerdictKind, ...] = ("different", "unproven", "evidence", "parts", "equal")

PASSED: tuple[VerdictKind, ...] = ("equal", "parts", "evidence")
"""Kinds with which a result is kept."""


def find_weakest(kinds: Iterable[VerdictKind]) -> VerdictKind:
    """Returns the weakest of several verdicts, in the order of `WEAKEST_FIRST`; 'equal' for no verdicts."""
    return min(kinds, key=WEAKEST_FIRST.index, default="equal")
