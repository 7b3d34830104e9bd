"""Outline of a file (`explorer outline`) as text or as JSON, a piece at a time.

Written without rich and without the records of facts: this is the way of the verbs that only look at
headers, and an outline can have a million rows, of which nobody keeps a second copy here.
"""

from __future__ import annotations

import os
import sys

from explorer.base.outline import ReadableRows
from explorer.base.units import bytes_text, printable, shape_text
from explorer.session.headers import label

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from explorer.base.outline import Outline, OutlineRow

_MEASURED = 1000
"""Rows that decide how wide the columns are; of those behind them a long cell sticks out."""
_WIDEST = (9, 72, 28, 28, 11)
"""Columns do not grow beyond this: one endless name must not move every row."""


def as_text(outline: Outline) -> Iterator[str]:
    """Lines: what the file is, what is known of the whole, a row for each thing in it, and the sums.

    Raises:
        BadModel: The file is broken; behind what can be read of it.
    """
    rows = ReadableRows(outline.rows)
    room = width()
    size = "" if outline.file_bytes is None else f"   {bytes_text(outline.file_bytes)}"
    yield f"{printable(outline.source)}   {label(outline.format)}{size}\n"
    facts = [(printable(key), printable(text)) for key, text in outline.facts]
    for line in columns(facts, room):
        yield f"{line}\n"
    yield "\n"
    sums: dict[str, list[int]] = {}
    for line in columns(_counted(rows, sums), room, right=4):
        yield f"{line}\n"
    if sums:
        yield "\n"
    yield f"{_sums_text(sums)}{', as far as it can be read' if rows.broken else ''}\n"
    if rows.broken is not None:
        raise rows.broken


def _counted(rows: Iterable[OutlineRow], sums: dict[str, list[int]]) -> Iterator[tuple[str, ...]]:
    """The cells of the rows; on the way it counts them, their bytes, and those of unknown size, by kind."""
    kind, sum_ = "", [0, 0, 0]
    for row in rows:
        if row.kind != kind:
            kind = row.kind
            sum_ = sums.setdefault(kind, [0, 0, 0])
        path, dtype, shape, nbytes, note = row.path, row.dtype, row.shape, row.nbytes, row.note
        sum_[0] += 1
        if nbytes is None:
            sum_[2] += 1
            size = ""
        else:
            sum_[1] += nbytes
            size = bytes_text(nbytes)
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


def columns(rows: Iterable[tuple[str, ...]], room: int | None = None, right: int = -1) -> Iterator[str]:
    """Rows of cells as lines with aligned columns, made as they are asked for.

    Columns are as wide as the first rows need, and are measured anew where a row begins with a word that
    none of them began with: a kind of row that has not been seen may fill other columns.

    Args:
        rows: Of the same number of cells each, one or more.
        room: Where a line is cut; None for nowhere.
        right: The column that is set to the right.
    """
    rest = iter(rows)
    row = next(rest, None)
    wide: list[int] = []
    kinds: set[str] = set()
    while row is not None:
        first = [row]
        for row in rest:
            first.append(row)
            if len(first) == _MEASURED:
                break
        last = len(row) - 1
        caps = _WIDEST if last == len(_WIDEST) else (40,) * last
        wide = [
            max(before, min(max(len(cells_of_row[at]) for cells_of_row in first), cap))
            for at, (before, cap) in enumerate(zip(wide or [0] * last, caps, strict=True))
        ]
        kinds.update(cells_of_row[0] for cells_of_row in first)
        # an empty column is left out by a width of nothing, not by picking cells
        layout = (
            "".join(f"%{'' if at == right else '-'}{n}s{'  ' * bool(n)}" for at, n in enumerate(wide)) + "%s"
        )
        row = None
        for part in (first, rest):
            for cells_of_row in part:
                if cells_of_row[0] not in kinds:
                    row = cells_of_row
                    break
                line = layout % cells_of_row
                if not cells_of_row[last]:
                    line = line.rstrip()
                yield line if room is None else cut(line, room)


def cut(line: str, room: int | None) -> str:
    """`line`, cut to a terminal's width."""
    return line if room is None or len(line) <= room else line[: room - 1] + "…"


def width() -> int | None:
    """Columns of the terminal that standard output is; None if it is none."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError, AttributeError):
        return None


def as_json(outline: Outline, head: dict[str, Any]) -> Iterator[str]:
    """The document of `explorer outline`, a row at a time.

    Args:
        outline: What is known.
        head: What every document starts with.

    Raises:
        BadModel: The file is broken; behind a document of what can be read of it.
    """
    import json

    rows = ReadableRows(outline.rows)
    # escapes keep control characters of a model's names off the terminal, and need no encoding
    encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False).encode
    head = {
        **head,
        "model": {"source": outline.source, "format": outline.format, "file_bytes": outline.file_bytes},
        "facts": [{"name": key, "text": text} for key, text in outline.facts],
    }
    yield "{\n" + "".join(f"  {encode(key)}: {encode(value)},\n" for key, value in head.items())
    yield '  "rows": ['
    comma = ""
    for row in rows:
        shape = None if row.shape is None else list(row.shape)
        fields = (row.path, row.kind, row.dtype, shape, row.nbytes, row.note)
        yield f"{comma}\n    {encode(dict(zip(_ROW, fields, strict=True)))}"
        comma = ","
    yield "\n  ]\n}\n" if comma else "]\n}\n"
    if rows.broken is not None:
        raise rows.broken


_ROW = ("path", "kind", "type", "shape", "bytes", "note")
