"""Assumptions about the `tflite` package, which flatc generated from the schema of TensorFlow Lite files."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def list_used_names(kind: Any, accessor: str) -> tuple[str, ...]:
    """Returns the names that an accessor's code uses.

    `Uint8Flags` among them marks a vector of bytes, `String` a text.

    Assumes: an accessor is a Python function, whose code lists the helpers that it calls.
    Seen: tflite 2.18.
    Otherwise: an empty tuple, and a vector of bytes is shown byte by byte.
    """
    code = getattr(getattr(kind, accessor), "__code__", None)
    return code.co_names if code is not None else ()


def create_accessors(kind: Any, table: Any) -> Any:
    """Creates the accessors of a class of tables, which read `table`.

    Assumes: accessors read their table from `_tab`, through `Offset`, `Get` and `Vector`.
    Seen: tflite 2.18.
    Otherwise: the options of an operator cannot be read, and one line says so.
    """
    accessors = kind()
    accessors._tab = table
    return accessors
