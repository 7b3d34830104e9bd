"""Styled lines of text whose colours are named by what they mean.

A page (a layer, a plan, a diff) is a pure function from facts to lines, tested without a terminal;
the widgets turn roles into the colours that `app.tcss` gives them. A line is never parsed as markup,
so a name in a model file cannot restyle the screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size

from explorer.base import units

Span = tuple[str, str]
Line = tuple[Span, ...]

ROLES = (
    *("text", "dim", "strong", "accent", "number", "bar", "track", "good", "warn", "bad"),
    *("key", "head", "mark"),
    # a figure by its share
    *("heat1", "heat2", "heat3"),
    # families of layers, as `base.families` has them
    *("conv", "matmul", "attention", "norm", "activation", "movement", "tile", "other"),
)
BLANK: Line = ()

_EIGHTHS = " ▏▎▍▌▋▊▉█"


def safe(name: str) -> str:
    """`name` out of a model file, fit to be shown."""
    return units.printable(name)


def text(content: str, role: str = "text") -> Line:
    """One line of one role."""
    return ((content, role),)


def head(title: str) -> Line:
    """The heading of a part of a page."""
    return ((title, "head"),)


def line_text(line: Iterable[Span]) -> str:
    """The characters of a line without their roles."""
    return "".join(piece for piece, _ in line)


def joined(cells: Iterable[Span]) -> Line:
    """Pieces of one role after another as one: each span costs bytes on a line."""
    spans: list[Span] = []
    for piece, role in cells:
        if spans and spans[-1][1] == role:
            spans[-1] = (spans[-1][0] + piece, role)
        else:
            spans.append((piece, role))
    return tuple(spans)


def first_shown(at: int, room: int, count: int) -> int:
    """The first of `count` rows in a window of `room` around the row `at`."""
    return max(0, min(at - room // 2, count - room))


def line_width(line: Iterable[Span]) -> int:
    """Cells that a line takes."""
    return sum(cell_len(piece) for piece, _ in line)


def beside(left_lines: Sequence[Line], right: Sequence[Line], at: int) -> list[Line]:
    """Two columns of lines, the second from a cell on."""
    lines: list[Line] = []
    for y in range(max(len(left_lines), len(right))):
        first = left_lines[y] if y < len(left_lines) else BLANK
        second = right[y] if y < len(right) else BLANK
        lines.append((*first, (" " * (at - line_width(first)), "text"), *second))
    return lines


def fit(content: str, width: int, *, right: bool = False) -> str:
    """`content` in exactly `width` cells: padded, or cut with an ellipsis at its end."""
    if width <= 0:
        return ""
    size = cell_len(content)
    if size > width:
        return set_cell_size(content, width - 1) + "…"
    return " " * (width - size) + content if right else content + " " * (width - size)


def cut(spans: Iterable[Span], width: int) -> Line:
    """The spans, with an ellipsis where they would be more than `width` cells."""
    kept: list[Span] = []
    room = width
    for piece, role in spans:
        size = cell_len(piece)
        if size > room:
            return (*kept, (fit(piece, room), role)) if room > 0 else tuple(kept)
        kept.append((piece, role))
        room -= size
    return tuple(kept)


def middle(content: str, width: int) -> str:
    """`content` in at most `width` cells, cut in its middle: both ends of a path tell it apart."""
    if cell_len(content) <= width:
        return content
    if width < 5:
        return fit(content, width).rstrip()
    tail = (width - 1) // 2
    return set_cell_size(content, width - 1 - tail) + "…" + content[-tail:]


def ending(content: str, width: int) -> str:
    """`content` in at most `width` cells, cut at its start: where paths begin alike their ends differ."""
    if cell_len(content) <= width:
        return content
    tail = content[-max(1, width - 1) :]
    while cell_len(tail) > max(1, width - 1):
        tail = tail[1:]
    return "…" + tail


def bar(share: float, width: int) -> tuple[Span, Span]:
    """A bar of `width` cells, filled by `share` (0 to 1) in steps of an eighth of a cell.

    A share that is not zero shows at least its thinnest step, so that "little" differs from "none".
    """
    if width <= 0:
        return ("", "bar"), ("", "track")
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    if share > 0:
        eighths = max(1, eighths)
    full, part = divmod(eighths, 8)
    filled = "█" * full + (_EIGHTHS[part] if part else "")
    return (filled, "bar"), (" " * (width - len(filled)), "track")


def wrap(spans: Iterable[Span], width: int, indent: int = 0) -> list[Line]:
    """Spans laid out over lines of at most `width` cells, broken between words where that works.

    Continuation lines begin with `indent` blanks.
    """
    width = max(width, indent + 8)
    lines: list[Line] = []
    current: list[Span] = []
    used = 0

    def add(piece: str, role: str) -> None:
        if current and current[-1][1] == role:
            current[-1] = (current[-1][0] + piece, role)
        else:
            current.append((piece, role))

    def turn() -> None:
        nonlocal used
        lines.append(tuple(current))
        current[:] = [(" " * indent, "text")] if indent else []
        used = indent

    for content, role in spans:
        for word in _words(content):
            bare = word.rstrip()
            if used > indent and used + cell_len(bare) > width:
                turn()
                word, bare = word.lstrip(), bare.lstrip()
            while used + cell_len(bare) > width:  # one word longer than the line
                piece = set_cell_size(bare, width - used).rstrip()
                add(piece, role)
                word, bare = word[len(piece) :], bare[len(piece) :]
                turn()
            word = word[: len(bare) + max(0, width - used - cell_len(bare))]
            if word:
                add(word, role)
                used += cell_len(word)
    if current:
        lines.append(tuple(current))
    return lines


def _words(content: str) -> list[str]:
    """Words with the blanks behind them; a path breaks behind a slash, no share before its %."""
    words, start = [], 0
    for i in range(1, len(content)):
        inside = content[i - 1] == "/" and i > 1 and content[i - 2] != " "
        if content[i] not in " %" and (content[i - 1] == " " or inside):
            words.append(content[start:i])
            start = i
    words.append(content[start:])
    return words


def flow(pieces: Iterable[Line], width: int, indent: int = 1, *, gap: int = 2) -> list[Line]:
    """Pieces beside each other with a gap between, over as many lines as they need; each stays whole."""
    lines: list[Line] = []
    current: list[Span] = []
    used = 0
    for piece in pieces:
        size = line_width(piece)
        if current and used + gap + size > width:
            lines.append(tuple(current))
            current = []
        blanks = gap if current else indent
        used = (used if current else 0) + blanks + size
        current += [(" " * blanks, "text"), *piece]
    return [*lines, tuple(current)] if current else lines
