"""Output of `explorer outline` as text and as JSON, written row by row.

This module uses neither rich nor the facts, because commands that only read headers must start fast. An
outline can have a million rows, so they are never stored.
"""

from __future__ import annotations

import os
import sys
from itertools import islice

from explorer.base.outline import ReadableRows
from explorer.base.units import bytes_text, exact_text, printable, shape_text
from explorer.session.headers import get_format_label

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from explorer.base.outline import Outline, OutlineRow

_MEASURED_ROWS = 1000
"""Number of rows that determine the column widths. Longer cells in later rows are not aligned."""
_MAX_COLUMN_WIDTHS = (9, 72, 28, 28, 11)
"""Maximum width of each column, so that a single long name does not shift all rows."""


def compose_text(outline: Outline, *, top: int | None = None, exact: bool = False) -> Iterator[str]:
    """Yield lines: the file, its facts, one row per item, and the totals.

    Args:
        outline: Outline of the file.
        top: Maximum number of rows, or None. The totals count all rows.
        exact: Whether sizes are written out instead of rounded.

    Raises:
        BadModel: The file is broken. It is raised after the readable part was yielded.
    """
    rows = ReadableRows(outline.rows)
    terminal_width = width()
    size = "" if outline.file_bytes is None else f"   {bytes_text(outline.file_bytes)}"
    yield from fitted(
        f"{printable(outline.source)}   {get_format_label(outline.format)}{size}", terminal_width
    )
    facts = [(printable(key), printable(text)) for key, text in outline.facts]
    for line in columns(facts, terminal_width):
        yield f"{line}\n"
    yield "\n"
    sums: dict[str, list[int]] = {}
    lines = columns(_count_rows(rows, sums, exact), terminal_width, right=4)
    shown_count = 0
    for line in islice(lines, top):
        shown_count += 1
        yield f"{line}\n"
    hidden_count = sum(1 for _ in lines)
    if hidden_count:
        yield f"{shown_count:,} of {shown_count + hidden_count:,} rows; --top shows more\n"
    if sums:
        yield "\n"
    yield from fitted(
        f"{_sums_text(sums)}{', as far as it can be read' if rows.broken else ''}", terminal_width
    )
    if rows.broken is not None:
        raise rows.broken


def format_code(outline: Outline) -> Iterator[str]:
    """Yield lines: the file, the module and its class, then the code of the module."""
    facts = dict(outline.facts)
    yield f"{printable(outline.source)}   {get_format_label(outline.format)}\n"
    yield f"{printable(facts['module'])}   {printable(facts['class'])}\n\n"
    for line in facts["code"].splitlines():
        yield f"{printable(line)}\n"


def _count_rows(
    rows: Iterable[OutlineRow], sums: dict[str, list[int]], exact: bool
) -> Iterator[tuple[str, ...]]:
    """Yield the cells of the rows, and count in `sums` the items, bytes and unknown sizes of each kind."""
    kind, counts = "", [0, 0, 0]
    for row in rows:
        if row.kind != kind:
            kind = row.kind
            counts = sums.setdefault(kind, [0, 0, 0])
        path, dtype, shape, nbytes, note = row.path, row.dtype, row.shape, row.nbytes, row.note
        counts[0] += 1
        if nbytes is None:
            counts[2] += 1
            size = ""
        else:
            counts[1] += nbytes
            size = exact_text(nbytes) if exact else bytes_text(nbytes)
        yield (
            kind,
            path if path.isprintable() else printable(path),
            dtype if dtype.isprintable() else printable(dtype),
            "" if shape is None else shape_text(shape),
            size,
            note if note.isprintable() else printable(note),
        )


def _sums_text(sums: dict[str, list[int]]) -> str:
    parts = []
    for kind, (count, nbytes, unknown) in sums.items():
        if kind == "more":
            continue
        text = f"{count:,} {kind}{'s' * (count != 1)}"
        if nbytes:
            text = f"{text} of {'at least ' if unknown and kind == 'tensor' else ''}{bytes_text(nbytes)}"
        parts.append(text)
    return ", ".join(parts) or ("" if "more" in sums else "nothing is in it")


def columns(rows: Iterable[tuple[str, ...]], max_width: int | None = None, right: int = -1) -> Iterator[str]:
    """Yield rows of cells as lines with aligned columns.

    The first rows determine the widths. They are measured again when a row starts with a word that has not
    occurred, because another kind of row may use other columns.

    Args:
        rows: Rows with the same number of cells each, at least one.
        max_width: Maximum width of a line, or None for no limit.
        right: Index of the right-aligned column; -1 for none.
    """
    remaining = iter(rows)
    row = next(remaining, None)
    widths: list[int] = []
    kinds: set[str] = set()
    while row is not None:
        first = [row]
        for row in remaining:
            first.append(row)
            if len(first) == _MEASURED_ROWS:
                break
        last = len(row) - 1
        caps = _MAX_COLUMN_WIDTHS if last == len(_MAX_COLUMN_WIDTHS) else (40,) * last
        widths = [
            max(old_width, min(max(len(cells[index]) for cells in first), cap))
            for index, (old_width, cap) in enumerate(zip(widths or [0] * last, caps, strict=True))
        ]
        kinds.update(cells[0] for cells in first)
        # a width of 0 hides an empty column
        layout = (
            "".join(f"%{'' if index == right else '-'}{n}s{'  ' * bool(n)}" for index, n in enumerate(widths))
            + "%s"
        )
        row = None
        for part in (first, remaining):
            for cells in part:
                if cells[0] not in kinds:
                    row = cells
                    break
                line = layout % cells
                if not cells[last]:
                    line = line.rstrip()
                yield line if max_width is None else cut_line(line, max_width)


def fitted(line: str, max_width: int | None) -> Iterator[str]:
    """Yield a line in parts of at most `max_width` cells, each with a newline. None means one part."""
    if max_width is None or len(line) <= max_width:
        yield f"{line}\n"
        return
    import textwrap  # imported on demand: most lines fit

    for part in textwrap.wrap(line, max_width, subsequent_indent="    ", break_on_hyphens=False):
        yield f"{part}\n"


def cut_line(line: str, max_width: int | None) -> str:
    """Cut a line to `max_width` cells, with an ellipsis at the end. None does not cut it."""
    return line if max_width is None or len(line) <= max_width else line[: max_width - 1] + "…"


def width() -> int | None:
    """Return the number of columns of the terminal on standard output, or None without a terminal."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError, AttributeError):
        return None


def write_json(outline: Outline, head: dict[str, Any], top: int | None = None) -> Iterator[str]:
    """Yield the document of `explorer outline`, row by row.

    Args:
        outline: Outline of the file.
        head: Keys that start every document.
        top: Maximum number of rows, or None.

    Raises:
        BadModel: The file is broken. It is raised after a document of the readable part was yielded.
    """
    import json

    rows = ReadableRows(outline.rows)
    # escaping keeps control characters in names away from the terminal, and works with any encoding
    encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False).encode
    head = {
        **head,
        "model": {"source": outline.source, "format": outline.format, "file_bytes": outline.file_bytes},
        "facts": [{"name": key, "text": text} for key, text in outline.facts],
    }
    yield "{\n" + "".join(f"  {encode(key)}: {encode(value)},\n" for key, value in head.items())
    yield '  "rows": ['
    comma = ""
    for row in islice(rows, top):
        yield f"{comma}\n    {encode(_record(row))}"
        comma = ","
    yield "\n  ]\n}\n" if comma else "]\n}\n"
    if rows.broken is not None:
        raise rows.broken


def records(outline: Outline) -> Iterator[dict[str, Any]]:
    """Yield the rows of `--csv`.

    Raises:
        BadModel: The file is broken.
    """
    return map(_record, outline.rows)


def _record(row: OutlineRow) -> dict[str, Any]:
    shape = None if row.shape is None else list(row.shape)
    fields = (row.path, row.kind, row.dtype, shape, row.nbytes, row.note)
    return dict(zip(_ROW, fields, strict=True))


_ROW = ("path", "kind", "type", "shape", "bytes", "note")
