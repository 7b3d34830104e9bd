"""Overlay files: figures by layer name from a profiler or a spreadsheet (CSV, JSON).

A CSV file has a header line. One column holds names, paths or globs of layers, and the other columns hold
figures. Reports of SCALE-Sim have this form (`overlay_sources.scale_sim`).

A JSON file is a list of records with the same keys, a mapping from names to figures, Model Explorer's node
data, or a trace (`overlay_sources.traces`).

A header may contain the unit of its figures: 'latency (ms)' or 'latency_ms'. A group shows the sum of the
figures in it, unless the header ends with another rule: 'temperature:max'. Only regular files of limited size
are read.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.base.units import printable
from explorer.facts.external.overlay import OutsideUnit, OverlayColumn
from explorer.host import input_files
from explorer.settings.filter import RESERVED
from explorer.settings.overlay_sources import scale_sim, traces

Outside = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str, Any]
"""Type of the argument for figures from outside the program: overlay files, or figures by layer name."""

MAX_COLUMNS = 64
MAX_LETTERS = 200
"""Largest number of characters in a header."""
_NAMES = ("layer", "path", "name", "node", "node_name", "module", "op_name")
"""Headers of the column with layer names. In a file without such a header, it is the first column."""
_BLANK = frozenset({"", "-", "n/a", "na", "nan", "none", "null"})
"""Cells without a figure, in lower case."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]*)(?:\.[0-9]*)?(?:e[+-]?[0-9]{1,3})?%?", re.I)
_HEAD = re.compile(r"(.*?)\s*(?:[(\[]([^()\[\]]*)[)\]])?\s*(?::\s*(sum|mean|max|min))?", re.I | re.DOTALL)
_UNITS: Mapping[str, tuple[OutsideUnit, float]] = {
    **dict.fromkeys(("s", "sec", "secs", "seconds"), ("seconds", 1.0)),
    **dict.fromkeys(("ms", "msec", "milliseconds"), ("seconds", 0.001)),
    **dict.fromkeys(("us", "µs", "μs", "usec", "microseconds"), ("seconds", 1e-06)),
    **dict.fromkeys(("ns", "nsec", "nanoseconds"), ("seconds", 1e-09)),
    **dict.fromkeys(("b", "bytes"), ("bytes", 1.0)),
    **{f"{prefix}b": ("bytes", 1000.0**power) for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}ib": ("bytes", 1024.0**power) for power, prefix in enumerate("kmgt", 1)},
    **dict.fromkeys(("%", "percent", "pct"), ("share", 0.01)),
}
"""Unit of a column, and the factor for its figures, by the unit in the header in lower case."""
_PARENTHESIZED_UNITS = frozenset({"s", "b"})
"""Units that are recognized only in parentheses, because many names end with '_s' or '_b' by chance."""
_GZIP_MAGIC = b"\x1f\x8b"
"""First bytes of a gzip file."""
_MAX_TRACE_BYTES = 256 << 20
"""Largest number of bytes of a trace. It is large because only a small part of each event is kept."""

Row = tuple[str, Mapping[str, Any]]
"""Name, path or glob of a row, and its cells by header."""


class OutsideFigures(Struct, frozen=True):
    """Contents of an overlay file or of a Python mapping.

    Attributes:
        source: Path of the file, or 'overlay' for a mapping.
        columns: Columns of figures.
        rows: (name, path or glob; figure of each column, or None for an empty cell) of each row.
        notes: Descriptions of ignored parts of the file.
        numbered: Whether the names are indices of the layers that multiply matrices.
        ops: Operator by row name, as the runtime calls it.
        modules: (class, index among the modules of the class, number of these modules) of each numbered
            module, by row name.
    """

    source: str
    columns: tuple[OverlayColumn, ...]
    rows: tuple[tuple[str, tuple[float | None, ...]], ...]
    notes: tuple[str, ...] = ()
    numbered: bool = False
    ops: Mapping[str, str] = {}
    modules: Mapping[str, tuple[str, int, int]] = {}


def read(path: str | os.PathLike[str]) -> OutsideFigures:
    """Reads an overlay file.

    Raises:
        Misuse: The file cannot be read, is neither CSV nor JSON, or holds no figures. The message names the
            place.
    """
    name = os.fspath(path)
    try:
        content = _read_content(name)
    except OSError as error:
        raise Misuse(f"the overlay cannot be read ({error.strerror})", where=name) from None
    if trace := traces.read(content, name):
        figures = _select_figures(
            name,
            [traces.TIME_COLUMN],
            [(row, {traces.TIME_COLUMN: microseconds}) for row, microseconds in trace.rows],
        )
        return replace(figures, notes=trace.notes, ops=trace.ops, modules=trace.modules)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Misuse(f"this is not text in UTF-8 (byte {error.start:,})", where=name) from None
    is_json = name.lower().removesuffix(".gz").endswith(".json") or text.lstrip()[:1] in ("{", "[")
    heads, rows = _read_value(_parse_json(text, name), name) if is_json else _read_csv(text, name)
    figures = _select_figures(name, heads, rows)
    numbered = not is_json and scale_sim.is_report([text.partition(",")[0].strip()])
    return replace(
        figures, numbered=numbered and scale_sim.are_layer_numbers([row for row, _ in figures.rows])
    )


def _read_content(path: str) -> bytes:
    """Reads a file and decompresses it. JSON files may be larger than others, because they may be traces.

    Raises:
        OSError: The file cannot be read or is too large.
        Misuse: The file cannot be decompressed, or its decompressed content is too large.
    """
    is_json = path.lower().endswith((".json", ".json.gz"))
    max_bytes = _MAX_TRACE_BYTES if is_json else input_files.MAX_BYTES
    content = input_files.read_content(path, max_bytes=max_bytes)
    if not content.startswith(_GZIP_MAGIC):
        return content
    decompressor = zlib.decompressobj(wbits=31)
    try:
        content = decompressor.decompress(content, _MAX_TRACE_BYTES + 1)
    except zlib.error as error:
        raise Misuse(f"this cannot be unpacked: {error}", where=path) from None
    if len(content) > _MAX_TRACE_BYTES:
        raise Misuse(f"more than {_MAX_TRACE_BYTES >> 20} MiB are packed in it", where=path)
    return content


def read_figures(value: Mapping[str, Any]) -> OutsideFigures:
    """Reads the figures of a Python mapping from names to figures.

    Raises:
        Misuse: The mapping is invalid or holds no figures.
    """
    heads, rows = _read_value(value, "overlay")
    return _select_figures("overlay", heads, rows)


def _read_csv(text: str, path: str) -> tuple[list[str], list[Row]]:
    """Reads the headers of the figures, and the rows, from the text of a CSV file."""
    first_line = text.partition("\n")[0]
    delimiter = max(",;\t", key=first_line.count)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[Row] = []
    heads: list[str] = []
    try:
        for cells in lines:
            if not any(cell.strip() for cell in cells):
                continue
            where = f"{path}:{lines.line_num}"
            while cells and not cells[-1].strip() and (not heads or len(cells) > len(heads)):
                cells.pop()  # the line ends with a comma
            if not heads:
                heads = [cell.strip() for cell in cells]
                if scale_sim.is_report(heads):
                    heads = [heads[0], *map(scale_sim.convert_header, heads[1:])]
                name_index = heads.index(_find_name_head(heads))
                if len(set(heads)) < len(heads):
                    duplicate = next(head for head in heads if heads.count(head) > 1)
                    raise Misuse(f"two columns are called '{_shorten(duplicate)}'", where=where)
            elif len(cells) > len(heads):
                raise Misuse(f"{len(cells):,} cells under {len(heads):,} headers", where=where)
            elif name_index < len(cells):
                rows.append((cells[name_index].strip(), dict(zip(heads, cells, strict=False))))
    except csv.Error as error:
        raise Misuse(f"this is not CSV: {error}", where=f"{path}:{lines.line_num}") from None
    if not rows:
        hint = "a line of headers, then a line for each layer: layer,latency (ms)"
        raise Misuse("the overlay has no rows", where=path, hint=hint)
    return [head for index, head in enumerate(heads) if index != name_index], rows


def _find_name_head(heads: Sequence[str]) -> str:
    """Finds the header of the column with layer names."""
    head_by_name = {head.casefold(): head for head in reversed(heads)}
    return next((head_by_name[name] for name in _NAMES if name in head_by_name), heads[0])


def _parse_json(text: str, path: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_check_unique_keys)
    except json.JSONDecodeError as error:
        raise Misuse(f"this is not JSON: {error.msg}", where=f"{path}:{error.lineno}") from None
    except RecursionError:
        raise Misuse("this is not JSON: it is nested too deep", where=path) from None
    except ValueError as error:  # a number with too many digits for Python, or a repeated key
        raise Misuse(f"this is not an overlay: {error}", where=path) from None


def _check_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Builds the mapping of a JSON object, and raises ValueError for a repeated key."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"'{_shorten(name)}' occurs twice")
    return mapping


def _read_value(value: Any, path: str) -> tuple[list[str], list[Row]]:
    """Reads headers and rows from a JSON value."""
    if isinstance(value, Mapping):
        rows = _read_node_data_rows(value, path) or _read_mapping_rows(
            value, os.path.basename(path).partition(".")[0]
        )
    elif isinstance(value, (list, tuple)) and value and all(isinstance(member, Mapping) for member in value):
        rows = _read_records(value, path)
    else:
        hint = "a list of records, or a mapping from names to figures"
        raise Misuse("this is not an overlay", where=path, hint=hint)
    heads: dict[str, None] = {}
    for _, cells in rows:
        heads.update(dict.fromkeys(str(head) for head in cells))
    return list(heads), rows


def _read_node_data_rows(value: Mapping[str, Any], path: str) -> list[Row]:
    """Reads the rows of Model Explorer's node data for one graph, or for several graphs by name.

    Returns an empty list for other data.
    """
    graphs = [value] if isinstance(value.get("results"), Mapping) else list(value.values())
    rows: list[Row] = []
    for graph in graphs:
        results = graph.get("results") if isinstance(graph, Mapping) else None
        if not isinstance(results, Mapping) or not all(isinstance(r, Mapping) for r in results.values()):
            return []
        head = str(graph.get("name") or os.path.basename(path).partition(".")[0])
        rows += [(str(name), {head: result.get("value")}) for name, result in results.items()]
    return rows


def _read_mapping_rows(value: Mapping[str, Any], head: str) -> list[Row]:
    """Reads the rows of a mapping from names to figures; `head` is the header of figures without one."""
    return [(str(name), cell if isinstance(cell, Mapping) else {head: cell}) for name, cell in value.items()]


def _read_records(records: Sequence[Mapping[str, Any]], path: str) -> list[Row]:
    """Reads the rows of a list of records: one of the keys holds the names, the others hold figures."""
    heads = dict.fromkeys(str(head) for record in records for head in record)
    if not heads:
        raise Misuse("the overlay has no rows", where=path)
    key = _find_name_head([*heads])
    return [
        (str(record.get(key, "")), {str(head): cell for head, cell in record.items() if str(head) != key})
        for record in records
    ]


def _select_figures(path: str, heads: Sequence[str], rows: Sequence[Row]) -> OutsideFigures:
    """Reads the columns that have only numbers and blank cells. Other columns are left out, with a note.

    Raises:
        Misuse: There are too many columns, a header is too long, or no column holds numbers.
    """
    if len(heads) > MAX_COLUMNS:
        raise Misuse(f"the overlay has {len(heads):,} columns; {MAX_COLUMNS} are read", where=path)
    if long_head := next((head for head in heads if len(head) > MAX_LETTERS), ""):
        raise Misuse(f"a header has {len(long_head):,} letters: '{_shorten(long_head)}'", where=path)
    columns: list[OverlayColumn] = []
    numbers: list[list[float | None]] = []
    notes: list[str] = []
    for head in heads:
        column_numbers: list[float | None] = []
        for _, cells in rows:
            number = _read_number(cells.get(head))
            if number == _NOT_A_NUMBER:
                cell = _shorten(str(cells[head]))
                problem = "is too large" if _NUMBER.fullmatch(cell) else "is not a number"
                notes.append(f"'{_shorten(head)}' is left out: '{cell}' {problem}")
                break
            column_numbers.append(number)
        else:
            if any(number is not None for number in column_numbers):
                is_percent = any(str(cells.get(head, "")).strip().endswith("%") for _, cells in rows)
                column, factor = _build_column(head, is_percent, [column.name for column in columns])
                columns.append(column)
                numbers.append(
                    [None if number is None else _scale_figure(number, factor) for number in column_numbers]
                )
    if not columns:
        note = notes[0] if notes else "no column holds numbers"
        raise Misuse(f"the overlay has no figures: {note}", where=path)
    rows_with_numbers = zip((name for name, _ in rows), zip(*numbers, strict=True), strict=True)
    named_rows = tuple([(name, cells) for name, cells in rows_with_numbers if name])
    return OutsideFigures(path, tuple(columns), named_rows, tuple(notes))


_MAX_FIGURE = 1e200
"""Largest figure. The sum of a million such figures is still finite."""
_NOT_A_NUMBER = math.inf
"""Result of `_read_number` for a cell that is not a number. No figure is infinite."""


def _read_number(cell: Any) -> float | None:
    """Reads the number of a cell, without a percent sign.

    Returns None for a blank cell, and `_NOT_A_NUMBER` for any other cell and for a number that is too large.
    """
    if cell is None:
        return None
    if isinstance(cell, (int, float)) and not isinstance(cell, bool):
        try:
            value = float(cell)
        except OverflowError:
            return _NOT_A_NUMBER
        return None if math.isnan(value) else _limit_figure(value)
    text = str(cell).strip() if isinstance(cell, str) else "?"
    if text.casefold() in _BLANK:
        return None
    if len(text) > 60 or not _NUMBER.fullmatch(text) or not any(letter.isdigit() for letter in text):
        return _NOT_A_NUMBER
    return _limit_figure(float(text.rstrip("%").replace(",", "")))


def _scale_figure(number: float, factor: float) -> float:
    """Converts a figure to another unit and drops the rounding error."""
    return number if factor == 1 else float(f"{number * factor:.15g}")


def _limit_figure(value: float) -> float:
    """Returns the value, or `_NOT_A_NUMBER` if it is too large for a figure."""
    return value if abs(value) <= _MAX_FIGURE else _NOT_A_NUMBER


def _build_column(head: str, is_percent: bool, used_names: Iterable[str]) -> tuple[OverlayColumn, float]:
    """Builds a column from its header.

    Args:
        head: Header in the file.
        is_percent: Whether any cell ends with a percent sign.
        used_names: Names of other columns.

    Returns:
        The column, and the factor that converts its cells to the unit of the column.
    """
    match = _HEAD.fullmatch(head)
    title, unit_text = (match[1], (match[2] or "").strip()) if match else (head, "")
    unit, factor = _UNITS["%"] if is_percent else _UNITS.get(unit_text.casefold(), ("number", 1.0))
    stem, _, last = title.rpartition("_")
    if (
        not unit_text
        and not is_percent
        and stem
        and last.casefold() in _UNITS
        and last.casefold() not in _PARENTHESIZED_UNITS
    ):
        title, (unit, factor) = stem, _UNITS[last.casefold()]
    name = re.sub(r"[^a-z0-9_]+", "_", title.casefold()).strip("_")[:40] or "figure"
    if name in RESERVED:
        name = f"overlay_{name}"
    elif not name[0].isalpha():
        name = f"c_{name}"
    unique_name = make_unique(name, used_names)
    title_text = f"{printable(title).strip() or name}{unique_name.removeprefix(name)}"
    title_text = f"{title_text} ({printable(unit_text)})" if unit_text and unit == "number" else title_text
    # the sum of shares has no meaning
    default_rule = "mean" if unit == "share" else "sum"
    group_rule: Any = match[3].lower() if match and match[3] else default_rule
    return OverlayColumn(unique_name, _shorten(title_text), unit, group_rule), factor


def make_unique(name: str, used_names: Iterable[str]) -> str:
    """Makes a name that is not in `used_names`: 'latency', 'latency_2'."""
    taken_names, candidate, count = set(used_names), name, 1
    while candidate in taken_names:
        count += 1
        candidate = f"{name}_{count}"
    return candidate


def _shorten(text: str) -> str:
    text = printable(text)
    return text if len(text) <= 30 else text[:29] + "…"
