"""Pieces of text with roles: measures, shortens and wraps them to a number of terminal cells."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from rich.cells import cell_len, chop_cells

from explorer.base.units import printable
from explorer.report.blocks import Cell, Span

Piece = tuple[str, str]
"""A text and its role."""

Kept = Literal["ends", "end", "start"]
"""Parts of a shortened text that are kept."""
KEPT: Sequence[Kept] = ("ends", "end", "start")

_ASCII = str.maketrans(
    {
        "█": "#",
        "▌": "=",
        "·": "-",
        "…": "~",
        "×": "x",
        "Δ": "d",
        "µ": "u",
        "◆": "*",
        "◈": "@",
        "○": "o",
        **dict(zip("┤│└─", "+|+-", strict=True)),
        **dict(zip("▁▂▃▄▅▆▇", "_.,:-=+", strict=True)),
    }
)


def split_cell(cell: Cell, role: str = "", *, ascii_only: bool = False, exact: bool = False) -> list[Piece]:
    """Return the pieces of a cell. A text without a role gets `role`."""
    if isinstance(cell, str):
        return [(escape_controls(cell, ascii_only), role)] if cell else []
    if isinstance(cell, Span):
        text = cell.exact if exact and cell.exact else cell.text
        return [(escape_controls(text, ascii_only), cell.role or role)] if text else []
    return [
        part
        for piece_cell in cell
        for part in split_cell(piece_cell, role, ascii_only=ascii_only, exact=exact)
    ]


def escape_controls(text: str, ascii_only: bool) -> str:
    """Escape control characters, and replace characters that an ASCII terminal lacks."""
    text = printable(text)
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode() if ascii_only else text


def count_cells(pieces: Sequence[Piece]) -> int:
    """Return the number of cells that pieces take."""
    return cell_len(pieces[0][0]) if len(pieces) == 1 else sum([cell_len(text) for text, _ in pieces])


def join_pieces(pieces: Sequence[Piece]) -> str:
    """Return the text of pieces."""
    return "".join([text for text, _ in pieces])


def shorten(pieces: list[Piece], width: int, part: Kept) -> list[Piece]:
    """Shorten pieces to `width` cells. An ellipsis replaces the dropped part of the longest piece."""
    excess = count_cells(pieces) - width
    if excess <= 0:
        return pieces
    longest = max(range(len(pieces)), key=lambda i: cell_len(pieces[i][0]))
    text, role = pieces[longest]
    keep = cell_len(text) - excess - 1
    # keep leading spaces, which are the indentation of a tree
    lead = len(text) - len(text.lstrip())
    if keep < 1:
        return [("…"[: max(0, width)], role)]
    body, keep = text[lead:], keep - lead
    if listed := cut_list(body, keep + 1):
        short = text[:lead] + listed
    elif keep < 2:
        short = chop_cells(text, max(1, width - 1))[0] + "…"
    else:
        first = {"ends": keep - keep // 2, "start": keep, "end": 0}[part]
        head = chop_cells(body, first)[0] if first else ""
        short = text[:lead] + head + "…" + body[len(body) - (keep - first) :]
    return [*pieces[:longest], (short, role), *pieces[longest + 1 :]]


def cut_list(text: str, width: int) -> str:
    """Cut a list such as 'float32 66.9 %, int8 33.1 %' after an item, or its first item after a word.

    Returns '' for another text, and if `width` does not suffice for a word.
    """
    items = text.split(", ")
    if len(items) < 2 or "[" in text or "(" in text:
        return ""
    starts = [f"{', '.join(items[:count])}, …" for count in range(len(items) - 1, 0, -1)]
    words = items[0].split(" ")
    # a number without its unit could be taken for another number
    for count in range(len(words) - 1, 0, -1):
        if not words[count - 1][:1].isdigit():
            starts.append(f"{' '.join(words[:count])} …")
    return next((start for start in starts if cell_len(start) <= width), "")


def cut_ends(text: str, width: int, first: int) -> str:
    """Cut a text to `width` cells. An ellipsis replaces all but its first `first` cells and its end."""
    if width <= 1:
        return "…"[: max(0, width)]
    tail = text[len(text) - (width - 1 - first) :] if first < width - 1 else ""
    while cell_len(tail) > width - 1 - first:
        tail = tail[1:]
    return (chop_cells(text, first)[0] if first else "") + "…" + tail


def strip_end(line: list[Piece]) -> list[Piece]:
    """Remove trailing spaces from a line."""
    while line and not line[-1][0].strip():
        line = line[:-1]
    return [*line[:-1], (line[-1][0].rstrip(), line[-1][1])] if line else line


def wrap(line: list[Piece], width: int, indent: int = 0) -> Iterator[list[Piece]]:
    """Break a line at spaces into lines of at most `width` cells. A formula is broken before its operators.

    A longer word is broken after a slash, or anywhere.

    Args:
        line: Pieces of the line.
        width: Maximum width in cells.
        indent: Number of spaces before each further line.
    """
    if count_cells(line) <= width:
        yield strip_end(line)
        return
    current: list[Piece] = []
    used, line_start = 0, 0
    for text, role in line:
        for word in split_terms(text, width - indent) if role == "formula" else _split_words(text):
            if used == line_start and not word.strip():
                line_start += cell_len(word)  # the line is indented
            elif used + cell_len(word.rstrip()) > width and used > line_start:
                yield strip_end(current)
                current, used = [(" " * indent, "")] * bool(indent), indent
                line_start, word = indent, word.lstrip()
            while cell_len(word.rstrip()) > width - used:
                head = chop_cells(word, max(1, width - used))[0]
                head = head[: head.rfind("/") + 1] or head
                yield [*current, (head, role)]
                current, used, line_start = [(" " * indent, "")] * bool(indent), indent, indent
                word = word[len(head) :]
            if current and current[-1][1] == role and word.strip():
                current[-1] = current[-1][0] + word, role
            else:
                current.append((word, role))
            used += cell_len(word)
    yield strip_end(current)


def split_terms(formula: str, width: int) -> list[str]:
    """Split a formula before its operators and after its semicolons. Each further term starts with a space.

    A term that is longer than `width` cells is split into words.
    """
    terms = _TERM_ENDS.split(formula)
    return [part for term in terms for part in ([term] if cell_len(term) <= width else _split_words(term))]


_TERM_ENDS = re.compile(r"(?= [-x×=+*/] )|(?<=;)(?= )")


def _split_words(text: str) -> list[str]:
    """Split a text before each run of spaces that precedes a word. A number stays with the word after it."""
    return re.findall(r"\s*(?:[\d,.]*\d \S+|\S+)|\s+$", text)
