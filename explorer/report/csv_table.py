"""CSV: the rows of an answer, with the names of the JSON documents."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from explorer.base.units import printable


def format_csv_lines(rows: Iterable[Mapping[str, Any]], top: int | None = None) -> Iterator[str]:
    """Convert records to CSV lines, the first with the names of the columns.

    Args:
        rows: Records of a document, iterated twice. Each key of any record becomes a column.
        top: Maximum number of rows, or None. The columns are always those of all rows.

    Returns:
        An iterator over the lines. An unknown figure is an empty cell. A time with several measurements
            becomes several columns, such as `seconds_median`. Tensors are written as `name float32
            1x3x224x224`, separated by semicolons. Other nested values are JSON.
    """
    parts = _list_parts(rows)
    heads = _list_heads(parts)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for cells in chain(
        [heads], ([*map(_format_cell, _list_values(row, parts))] for row in islice(rows, top))
    ):
        writer.writerow(cells)
        yield text.getvalue()
        text.seek(0)
        text.truncate()


def _list_parts(rows: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return the keys of all records. A time with several measurements has a column for each of its parts."""
    parts: dict[str, tuple[str, ...]] = {}
    for row in rows:
        for key, value in row.items():
            if not parts.get(key):
                parts[key] = tuple(value) if _is_spread(value) else ()
    return parts


def _list_heads(parts: Mapping[str, tuple[str, ...]]) -> list[str]:
    return [
        name
        for key, part_names in parts.items()
        for name in ([f"{key}_{part}" for part in part_names] or [key])
    ]


def format_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Convert records to CSV text. See `format_csv_lines`."""
    return "".join(format_csv_lines(rows))


def _list_values(row: Mapping[str, Any], parts: Mapping[str, Sequence[str]]) -> Iterator[Any]:
    """Yield the values of a row. Keys with parts have several columns."""
    for key, part_names in parts.items():
        value = row.get(key)
        if part_names:
            yield from ((value or {}).get(part) for part in part_names)
        else:
            yield value


def _is_spread(value: Any) -> bool:
    return isinstance(value, Mapping) and {"median", "p10", "p90"} <= set(value)


def _format_cell(value: Any) -> Any:
    """Return a value for the CSV writer: '' for None, texts for tensors, JSON for other nested values."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _escape_text(value)
    if isinstance(value, list) and value and all(_is_tensor(member) for member in value):
        return _escape_text("; ".join(_format_tensor(member) for member in value))
    if isinstance(value, (list, Mapping)):
        return json.dumps(value) if value else ""
    return value


def _escape_text(value: str) -> str:
    # a spreadsheet would execute a cell that looks like a formula, and names in models are untrusted
    return f"'{printable(value)}" if value[:1] in ("=", "+", "-", "@") else printable(value)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Mapping) and {"name", "dtype", "shape"} <= set(value)


def _format_tensor(tensor: Mapping[str, Any]) -> str:
    shape = tensor["shape"]
    sizes = "?" if shape is None else "x".join("?" if d is None else str(d) for d in shape) or "scalar"
    return f"{tensor['name']} {tensor['dtype'] or '?'} {sizes}"


def list_columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Convert records to columns for a data frame, with the names and the order of `format_csv_lines`.

    Args:
        rows: Records of a document, iterated twice. Each key of any record becomes a column.

    Returns:
        The values by column. Numbers stay numbers, an unknown figure is None, and tensors and nested values
            are texts, as in a CSV file.
    """
    parts = _list_parts(rows)
    heads = _list_heads(parts)
    columns: dict[str, list[Any]] = {head: [] for head in heads}
    for row in rows:
        for head, value in zip(heads, _list_values(row, parts), strict=True):
            nested = isinstance(value, (list, Mapping))
            columns[head].append(_format_cell(value) if nested else value)
    return columns
