"""Assumptions about the `tflite` package, which flatc made of the schema of TensorFlow Lite's files."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def names_in(kind: Any, accessor: str) -> tuple[str, ...]:
    """The names that an accessor uses: `Uint8Flags` in one of a vector of bytes, `String` in one of a text.

    Assumes: an accessor is a function of Python's, whose code names the helpers that it calls.
    Seen: tflite 2.18.
    Otherwise: none: a vector of bytes is shown byte by byte.
    """
    code = getattr(getattr(kind, accessor), "__code__", None)
    return code.co_names if code is not None else ()


def over_table(kind: Any, table: Any) -> Any:
    """The accessors of a kind of table, which read `table`.

    Assumes: accessors read their table from `_tab`, and know it by `Offset`, `Get` and `Vector`.
    Seen: tflite 2.18.
    Otherwise: the options of an operator cannot be read, which one line says.
    """
    accessors = kind()
    accessors._tab = table
    return accessors
