"""Number formats that a tensor's numbers can be rounded to, by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from explorer.base.errors import Misuse, suggest_only_near
from explorer.engine.number_formats import integer, microscaling, minifloat, narrow
from explorer.engine.number_formats.number_format import NumberFormat

_MODULES = (integer, minifloat, microscaling, narrow)

FAMILIES: Sequence[tuple[str, Callable[[re.Match[str]], NumberFormat]]] = tuple(
    family for module in _MODULES for family in module.FAMILY
)
"""Regular expressions for the names of each family, with the function that creates the format of a match.

The function raises ValueError with the reason if no format has these parameters.
"""

EXAMPLES = ("float32", *(name for module in _MODULES for name in module.EXAMPLES))
"""Names for help texts and suggestions."""


def format_of(name: str, where: str = "--to") -> NumberFormat | None:
    """Returns the number format with this name in any case; None for 'float32', which changes nothing.

    Raises:
        Misuse: There is no such format.
    """
    if name == "float32":
        return None
    for pattern, make in FAMILIES:
        if match := re.fullmatch(pattern, name):
            try:
                return make(match)
            except ValueError as problem:
                raise Misuse(f"there is no number format '{name}': {problem}", where=where) from None
    if name != name.lower():
        return format_of(name.lower(), where)
    hint = suggest_only_near(name, EXAMPLES) or "explorer help number_formats lists them"
    raise Misuse(f"there is no number format '{name}'", where=where, hint=hint)
