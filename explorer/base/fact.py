"""Facts: base classes of the records in which the engine answers, with a short repr and a view for notebooks.

A fact imports no presenter. The feature `notebook` draws it, and `base.features` finds that feature by name.
Without the feature, a notebook shows the repr, and `to_frame` does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from msgspec import Struct

from explorer.base.features import list_offers, load

FrameLibrary = Literal["pandas", "polars"]
"""Library of a data frame."""

_MAX_FIELDS = 6
"""Largest number of fields in a repr; a record inside another one shows half as many."""
_MAX_CHARACTERS = 40
"""Largest number of characters of a text in a repr."""
_MAX_ITEMS = 4
"""Largest number of items that a repr lists; of longer lists it shows the count."""
_EMPTY: tuple[Any, ...] = ("", (), {})


class Fact(Struct, frozen=True):
    """Base class of facts: immutable records of plain values."""

    def __repr__(self) -> str:
        return _describe(self, _MAX_FIELDS)

    def _repr_html_(self) -> str | None:
        """Return HTML for a notebook, or None without the feature `notebook` or without Jinja2."""
        if "html" not in list_offers("displays"):
            return None
        html: str | None = load("displays", "html")(self)
        return html


class TableFact(Fact, frozen=True):
    """Base class of facts with one list of rows, which becomes a data frame.

    Attributes:
        ROWS: Name of the field that holds the rows.
    """

    ROWS: ClassVar[str] = ""

    def to_frame(self, library: FrameLibrary | None = None) -> Any:
        """Returns the rows as a data frame of pandas or polars.

        The columns have the names of the JSON document. An unknown figure is a missing value.

        Args:
            library: 'pandas' or 'polars'. None takes the one that the program has imported, then the one that
                is installed, pandas first.

        Raises:
            MissingExtra: Neither library is installed, or the chosen one is missing.
        """
        return load("displays", "frame")(self, library)


def _describe(fact: Struct, limit: int) -> str:
    """Describes a record by its first fields that differ from their defaults."""
    parts: list[str] = []
    names, defaults = fact.__struct_fields__, fact.__struct_defaults__
    default_by_name = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    for name in names:
        value = getattr(fact, name)
        if value is None or value in _EMPTY:
            continue
        if name in default_by_name and value == default_by_name[name]:
            continue
        if len(parts) == limit:
            parts.append("...")
            break
        parts.append(f"{name}={describe_value(value, limit)}")
    return f"{type(fact).__name__}({', '.join(parts)})"


def describe_value(value: Any, limit: int = _MAX_FIELDS) -> str:
    """Describes a value of a fact in one line: a record by its first fields, a long list by its count."""
    if isinstance(value, Struct):
        return _describe(value, limit // 2) if limit > 2 else f"{type(value).__name__}(...)"
    if isinstance(value, str):
        return repr(value if len(value) <= _MAX_CHARACTERS else f"{value[: _MAX_CHARACTERS - 3]}...")
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return f"<{len(value):,} keys>" if value else "{}"
    if isinstance(value, (tuple, list)) or (hasattr(value, "__len__") and not isinstance(value, bytes)):
        plain = isinstance(value, (tuple, list)) and not any(isinstance(element, Struct) for element in value)
        if plain and len(value) <= _MAX_ITEMS:
            texts = [describe_value(element, limit) for element in value]
            return f"({', '.join(texts)}{',' * (len(texts) == 1)})"
        kind = type(value[0]).__name__ if len(value) and isinstance(value[0], Struct) else "items"
        return f"<{len(value):,} {kind}>"
    return repr(value)[:_MAX_CHARACTERS]
