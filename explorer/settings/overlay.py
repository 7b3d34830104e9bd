"""Overlay files: figures by the names of layers, as a profiler or a spreadsheet writes them (CSV, JSON).

CSV has a line of heads; one column holds names, paths or globs, the others figures; so have the reports of
SCALE-Sim (`outside.scale_sim`). JSON is a list of records with the same keys, a mapping from names to
figures, Model Explorer's node data, or a trace (`outside.traces`). A head may say a unit, 'latency (ms)' or
'latency_ms', and what groups have in place of the sum: 'temperature:max'. Nothing is read but what a regular
file of a sensible size holds.
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
"""Overlay files, or figures by the names of layers."""

MOST_COLUMNS = 64
MOST_LETTERS = 200
"""Of a head."""
_NAMES = ("layer", "path", "name", "node", "node_name", "module", "op_name")
"""Heads of the column that names layers; where there is none of them the first column does."""
_BLANK = frozenset({"", "-", "n/a", "na", "nan", "none", "null"})
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]*)(?:\.[0-9]*)?(?:e[+-]?[0-9]{1,3})?%?", re.I)
_HEAD = re.compile(r"(.*?)\s*(?:[(\[]([^()\[\]]*)[)\]])?\s*(?::\s*(sum|mean|max|min))?", re.I | re.DOTALL)
_UNITS: Mapping[str, tuple[OutsideUnit, float]] = {
    **dict.fromkeys(("s", "sec", "secs", "seconds"), ("seconds", 1.0)),
    **dict.fromkeys(("ms", "msec", "milliseconds"), ("seconds", 0.001)),
    **dict.fromkeys(("us", "µs", "μs", "usec", "microseconds"), ("seconds", 1e-06)),
    **dict.fromkeys(("ns", "nsec", "nanoseconds"), ("seconds", 1e-09)),
    **dict.fromkeys(("b", "bytes"), ("bytes", 1.0)),
    **{f"{p}b": ("bytes", 1000.0 ** (at + 1)) for at, p in enumerate("kmgt")},
    **{f"{p}ib": ("bytes", 1024.0 ** (at + 1)) for at, p in enumerate("kmgt")},
    **dict.fromkeys(("%", "percent", "pct"), ("share", 0.01)),
}
_SHORT = frozenset({"s", "b"})
"""Units that stand in brackets only: names end in '_s' and '_b' for other reasons."""
_PACKED = b"\x1f\x8b"
"""How a file begins that gzip packed."""
_MOST_TRACE = 256 << 20
"""Bytes of a trace: of each event little is kept."""

Row = tuple[str, Mapping[str, Any]]


class OutsideFigures(Struct, frozen=True):
    """What an overlay file says.

    Attributes:
        source: The file.
        columns: Its columns of figures.
        rows: A name, path or glob, and what it has in each column; None for nothing.
        notes: What was left out, in words.
        numbered: Names are the places of layers among those that multiply matrices.
        ops: What ran, as a runtime names it, by name.
        modules: By name of a numbered module its class, its place among those of the class, and how many
            there are.
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
        Misuse: It cannot be read, is neither CSV nor JSON, or holds no figures; the message says where.
    """
    name = os.fspath(path)
    try:
        content = _content(name)
    except OSError as error:
        raise Misuse(f"the overlay cannot be read ({error.strerror})", where=name) from None
    if trace := traces.read(content, name):
        figures = _figures(name, [traces.HEAD], [(row, {traces.HEAD: took}) for row, took in trace.rows])
        return replace(figures, notes=trace.notes, ops=trace.ops, modules=trace.modules)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Misuse(f"this is no text in UTF-8 (byte {error.start:,})", where=name) from None
    is_json = name.lower().removesuffix(".gz").endswith(".json") or text.lstrip()[:1] in ("{", "[")
    heads, rows = _of_value(_json(text, name), name) if is_json else _of_csv(text, name)
    figures = _figures(name, heads, rows)
    numbered = not is_json and scale_sim.is_report([text.partition(",")[0].strip()])
    return replace(figures, numbered=numbered and scale_sim.numbered([row for row, _ in figures.rows]))


def _content(path: str) -> bytes:
    """All of a file, and what is packed in it; a trace may be larger than what somebody writes.

    Raises:
        OSError: It cannot be read, or is too large.
    """
    packed = path.lower().endswith((".json", ".json.gz"))
    content = input_files.content(path, most=_MOST_TRACE if packed else input_files.MOST_BYTES)
    if not content.startswith(_PACKED):
        return content
    unpack = zlib.decompressobj(wbits=31)
    try:
        content = unpack.decompress(content, _MOST_TRACE + 1)
    except zlib.error as error:
        raise Misuse(f"this cannot be unpacked: {error}", where=path) from None
    if len(content) > _MOST_TRACE:
        raise Misuse(f"more than {_MOST_TRACE >> 20} MiB are packed in it", where=path)
    return content


def figures_in(value: Mapping[str, Any]) -> OutsideFigures:
    """The same of what a Python program has: a mapping from names to figures.

    Raises:
        Misuse: It is something else, or holds no figures.
    """
    heads, rows = _of_value(value, "overlay")
    return _figures("overlay", heads, rows)


def _of_csv(text: str, path: str) -> tuple[list[str], list[Row]]:
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[Row] = []
    heads: list[str] = []
    try:
        for cells in lines:
            if not any(cell.strip() for cell in cells):
                continue
            where = f"{path}:{lines.line_num}"
            while cells and not cells[-1].strip() and (not heads or len(cells) > len(heads)):
                cells.pop()  # a comma at the end of a line
            if not heads:
                heads = [cell.strip() for cell in cells]
                if scale_sim.is_report(heads):
                    heads = [heads[0], *map(scale_sim.with_unit, heads[1:])]
                key = heads.index(_name_head(heads))
                if len(set(heads)) < len(heads):
                    twice = next(head for head in heads if heads.count(head) > 1)
                    raise Misuse(f"two columns are called '{_brief(twice)}'", where=where)
            elif len(cells) > len(heads):
                raise Misuse(f"{len(cells):,} cells under {len(heads):,} heads", where=where)
            elif key < len(cells):
                rows.append((cells[key].strip(), dict(zip(heads, cells, strict=False))))
    except csv.Error as error:
        raise Misuse(f"this is not CSV: {error}", where=f"{path}:{lines.line_num}") from None
    if not rows:
        hint = "a line of heads, then a line for each layer: layer,latency (ms)"
        raise Misuse("the overlay has no rows", where=path, hint=hint)
    return [head for at, head in enumerate(heads) if at != key], rows


def _name_head(heads: Sequence[str]) -> str:
    """The head of the column that names layers."""
    lower = {head.casefold(): head for head in reversed(heads)}
    return next((lower[name] for name in _NAMES if name in lower), heads[0])


def _json(text: str, path: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_each_once)
    except json.JSONDecodeError as error:
        raise Misuse(f"this is not JSON: {error.msg}", where=f"{path}:{error.lineno}") from None
    except RecursionError:
        raise Misuse("this is not JSON: it is nested too deep", where=path) from None
    except ValueError as error:  # a number of more digits than Python reads; a key that stands twice
        raise Misuse(f"this is no overlay: {error}", where=path) from None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"'{_brief(name)}' stands twice")
    return found


def _of_value(value: Any, path: str) -> tuple[list[str], list[Row]]:
    """Heads and rows of what JSON holds."""
    if isinstance(value, Mapping):
        rows = _node_data(value, path) or _of_mapping(value, os.path.basename(path).partition(".")[0])
    elif isinstance(value, (list, tuple)) and value and all(isinstance(member, Mapping) for member in value):
        rows = _of_records(value, path)
    else:
        hint = "a list of records, or a mapping from names to figures"
        raise Misuse("this is no overlay", where=path, hint=hint)
    heads: dict[str, None] = {}
    for _, cells in rows:
        heads.update(dict.fromkeys(str(head) for head in cells))
    return list(heads), rows


def _node_data(value: Mapping[str, Any], path: str) -> list[Row]:
    """Rows of Model Explorer's node data, of one graph or of several by their names; none if it is none."""
    graphs = [value] if isinstance(value.get("results"), Mapping) else list(value.values())
    rows: list[Row] = []
    for graph in graphs:
        results = graph.get("results") if isinstance(graph, Mapping) else None
        if not isinstance(results, Mapping) or not all(isinstance(r, Mapping) for r in results.values()):
            return []
        head = str(graph.get("name") or os.path.basename(path).partition(".")[0])
        rows += [(str(name), {head: result.get("value")}) for name, result in results.items()]
    return rows


def _of_mapping(value: Mapping[str, Any], head: str) -> list[Row]:
    return [(str(name), one if isinstance(one, Mapping) else {head: one}) for name, one in value.items()]


def _of_records(records: Sequence[Mapping[str, Any]], path: str) -> list[Row]:
    heads = dict.fromkeys(str(head) for record in records for head in record)
    if not heads:
        raise Misuse("the overlay has no rows", where=path)
    key = _name_head([*heads])
    return [
        (str(record.get(key, "")), {str(head): cell for head, cell in record.items() if str(head) != key})
        for record in records
    ]


def _figures(path: str, heads: Sequence[str], rows: Sequence[Row]) -> OutsideFigures:
    """The columns that hold numbers, and the numbers."""
    if len(heads) > MOST_COLUMNS:
        raise Misuse(f"the overlay has {len(heads):,} columns; {MOST_COLUMNS} are read", where=path)
    if long := next((head for head in heads if len(head) > MOST_LETTERS), ""):
        raise Misuse(f"'{_brief(long)}' is no head: it has {len(long):,} letters", where=path)
    columns: list[OverlayColumn] = []
    numbers: list[list[float | None]] = []
    notes: list[str] = []
    for head in heads:
        column_numbers: list[float | None] = []
        for _, cells in rows:
            number = _number(cells.get(head))
            if number == _WORDS:
                cell = _brief(str(cells[head]))
                problem = "is too large" if _NUMBER.fullmatch(cell) else "is no number"
                notes.append(f"'{_brief(head)}' is left out: '{cell}' {problem}")
                break
            column_numbers.append(number)
        else:
            if any(number is not None for number in column_numbers):
                percent = any(str(cells.get(head, "")).strip().endswith("%") for _, cells in rows)
                column, factor = _column(head, percent, [column.name for column in columns])
                columns.append(column)
                numbers.append(
                    [None if number is None else _times(number, factor) for number in column_numbers]
                )
    if not columns:
        note = notes[0] if notes else "no column holds numbers"
        raise Misuse(f"the overlay has no figures: {note}", where=path)
    numbered_rows = zip((name for name, _ in rows), zip(*numbers, strict=True), strict=True)
    named = tuple([(name, cells) for name, cells in numbered_rows if name])
    return OutsideFigures(path, tuple(columns), named, tuple(notes))


_MOST = 1e200
"""A figure of which a million still add up to a number."""
_WORDS = math.inf
"""What `_number` answers of what is no number: no figure is infinite."""


def _number(cell: Any) -> float | None:
    """The number of a cell, of a percentage without its sign; None for a blank one, `_WORDS` for words."""
    if cell is None:
        return None
    if isinstance(cell, (int, float)) and not isinstance(cell, bool):
        try:
            value = float(cell)
        except OverflowError:
            return _WORDS
        return None if math.isnan(value) else _finite(value)
    text = str(cell).strip() if isinstance(cell, str) else "?"
    if text.casefold() in _BLANK:
        return None
    if len(text) > 60 or not _NUMBER.fullmatch(text) or not any(letter.isdigit() for letter in text):
        return _WORDS
    return _finite(float(text.rstrip("%").replace(",", "")))


def _times(number: float, factor: float) -> float:
    """A figure in the unit that it is converted to, without what the conversion adds behind its digits."""
    return number if factor == 1 else float(f"{number * factor:.15g}")


def _finite(value: float) -> float:
    return value if abs(value) <= _MOST else _WORDS


def _column(head: str, percent: bool, taken: Iterable[str]) -> tuple[OverlayColumn, float]:
    """A column by its head, and what its cells are multiplied by.

    Args:
        head: As the file has it.
        percent: The sign stands in cells.
        taken: Names of other columns.
    """
    match = _HEAD.fullmatch(head)
    title, unit_text = (match[1], (match[2] or "").strip()) if match else (head, "")
    unit, factor = _UNITS["%"] if percent else _UNITS.get(unit_text.casefold(), ("number", 1.0))
    stem, _, last = title.rpartition("_")
    if not unit_text and not percent and stem and last.casefold() in _UNITS and last.casefold() not in _SHORT:
        title, (unit, factor) = stem, _UNITS[last.casefold()]
    name = re.sub(r"[^a-z0-9_]+", "_", title.casefold()).strip("_")[:40] or "figure"
    if name in RESERVED:
        name = f"overlay_{name}"
    elif not name[0].isalpha():
        name = f"c_{name}"
    unique_name = unique(name, taken)
    title_text = f"{printable(title).strip() or name}{unique_name.removeprefix(name)}"
    title_text = f"{title_text} ({printable(unit_text)})" if unit_text and unit == "number" else title_text
    # shares do not add up
    over: Any = match[3].lower() if match and match[3] else "mean" if unit == "share" else "sum"
    return OverlayColumn(unique_name, _brief(title_text), unit, over), factor


def unique(name: str, taken: Iterable[str]) -> str:
    """A name that none of those taken is: 'latency', 'latency_2'."""
    there, candidate, count = set(taken), name, 1
    while candidate in there:
        count += 1
        candidate = f"{name}_{count}"
    return candidate


def _brief(text: str) -> str:
    text = printable(text)
    return text if len(text) <= 30 else text[:29] + "…"
