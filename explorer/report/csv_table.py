"""CSV: the rows of an answer under the names of the JSON contract, so that the two cannot disagree."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from explorer.base.units import printable


def csv_lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Records as CSV with a header line.

    Args:
        rows: Records of a document, looked at twice; a column for every key that any of them has.

    Returns:
        Line by line. An unknown figure is an empty cell; times that were measured several times are columns,
        `seconds_median` and the like; tensors read `name float32 1x3x224x224`, several between semicolons;
        what else is nested is JSON.
    """
    parts: dict[str, tuple[str, ...]] = {}
    for row in rows:
        for key, value in row.items():
            if not parts.get(key):
                parts[key] = tuple(value) if _is_spread(value) else ()
    heads = [name for key, of in parts.items() for name in ([f"{key}_{part}" for part in of] or [key])]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for cells in chain([heads], ([*_cells(row, parts)] for row in rows)):
        writer.writerow(cells)
        yield text.getvalue()
        text.seek(0)
        text.truncate()


def csv_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """The lines of `csv_lines` together."""
    return "".join(csv_lines(rows))


def _cells(row: Mapping[str, Any], parts: Mapping[str, Sequence[str]]) -> Iterator[Any]:
    """The cells of a row, in which some columns are several."""
    for key, of in parts.items():
        value = row.get(key)
        if of:
            yield from (_cell((value or {}).get(part)) for part in of)
        else:
            yield _cell(value)


def _is_spread(value: Any) -> bool:
    return isinstance(value, Mapping) and {"median", "p10", "p90"} <= set(value)


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list) and value and all(_is_tensor(member) for member in value):
        return _text("; ".join(_tensor_text(member) for member in value))
    if isinstance(value, (list, Mapping)):
        return json.dumps(value) if value else ""
    return value


def _text(value: str) -> str:
    # a spreadsheet runs a cell that begins like a formula, and names come from strangers
    return f"'{printable(value)}" if value[:1] in ("=", "+", "-", "@") else printable(value)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Mapping) and {"name", "dtype", "shape"} <= set(value)


def _tensor_text(tensor: Mapping[str, Any]) -> str:
    shape = tensor["shape"]
    sizes = "?" if shape is None else "x".join("?" if d is None else str(d) for d in shape) or "scalar"
    return f"{tensor['name']} {tensor['dtype'] or '?'} {sizes}"
