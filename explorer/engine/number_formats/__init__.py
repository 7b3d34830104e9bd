"""Number formats that a tensor's numbers can be rounded to, by name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from explorer.base.errors import Misuse, suggest_only_near
from explorer.engine.number_formats import integer, microscaling, minifloat, narrow
from explorer.engine.number_formats.number_format import NamePattern, NumberFormat

_MODULES = (integer, minifloat, microscaling, narrow)

NAME_PATTERNS: Sequence[NamePattern] = tuple(
    pattern for module in _MODULES for pattern in module.NAME_PATTERNS
)
"""Patterns of all families, in the order in which a name is matched."""

EXAMPLES = ("float32", *(name for module in _MODULES for name in module.EXAMPLES))
"""Names for help texts and suggestions."""


def find_format(name: str, where: str = "--to") -> NumberFormat | None:
    """Returns the number format with this name in any case; None for 'float32', which changes nothing.

    Raises:
        Misuse: There is no such format.
    """
    if name == "float32":
        return None
    for pattern, create_format in NAME_PATTERNS:
        if match := re.fullmatch(pattern, name):
            try:
                return create_format(match)
            except ValueError as problem:
                raise Misuse(f"there is no number format '{name}': {problem}", where=where) from None
    if name != name.lower():
        return find_format(name.lower(), where)
    hint = suggest_only_near(name, EXAMPLES) or "explorer help number_formats lists them"
    raise Misuse(f"there is no number format '{name}'", where=where, hint=hint)
