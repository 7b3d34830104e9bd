"""Number formats: what a tensor's numbers are rounded to, by the names that a user writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from explorer.base.errors import Misuse, nearest
from explorer.engine.quantize.number_formats import integer
from explorer.engine.quantize.number_formats.number_format import NumberFormat

FAMILIES: Sequence[tuple[str, Callable[[re.Match[str]], NumberFormat]]] = (*integer.FAMILY,)
"""A regular expression for the names of a family, and what makes the format of a match."""

EXAMPLES = ("float32", *integer.EXAMPLES)
"""Names to show and to guess from."""


def format_of(name: str, where: str = "--to") -> NumberFormat | None:
    """The number format of this name; None for 'float32', which leaves things as they are.

    Raises:
        Misuse: There is none.
    """
    if name == "float32":
        return None
    for pattern, make in FAMILIES:
        if found := re.fullmatch(pattern, name):
            return make(found)
    raise Misuse(f"there is no number format '{name}'", where=where, hint=nearest(name, EXAMPLES))
