"""Lines of text in which roles name the meaning of each span; the style sheet maps roles to colors.

A page (a layer, a plan, a diff) is a pure function from facts to lines, so tests need no terminal. Widgets
apply the styles of `app.tcss`. Lines are never parsed as markup, so a name in a model file cannot change the
style of the screen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size

from explorer.base import units

Span = tuple[str, str]
Line = tuple[Span, ...]

ROLES = (
    *("text", "dim", "strong", "accent", "number", "bar", "track", "good", "warn", "bad"),
    *("key", "head", "mark"),
    # families of layers, see `base.families`
    *("conv", "matmul", "attention", "norm", "activation", "movement", "tile", "other"),
)
BLANK: Line = ()

_EIGHTHS = " ▏▎▍▌▋▊▉█"  # cells filled from the left by 0 to 8 eighths
_NUMBER = re.compile(r" *[\d,.]*\d ")
"""Number with its trailing space. The next word, such as its unit, stays on the same line."""


def escape_name(name: str) -> str:
    """Return a name from a model file with unprintable characters escaped."""
    return units.printable(name)


def text_line(content: str, role: str = "text") -> Line:
    """Create a line with one role."""
    return ((content, role),)


def heading_line(title: str) -> Line:
    """Create the heading of a section."""
    return ((title, "head"),)


def line_text(line: Iterable[Span]) -> str:
    """Return the text of a line without roles."""
    return "".join(content for content, _ in line)


def merge_spans(cells: Iterable[Span]) -> Line:
    """Merge neighboring spans with the same role, because each span costs bytes on the connection."""
    spans: list[Span] = []
    for content, role in cells:
        if spans and spans[-1][1] == role:
            spans[-1] = (spans[-1][0] + content, role)
        else:
            spans.append((content, role))
    return tuple(spans)


def find_first_visible(row: int, room: int, count: int) -> int:
    """Return the index of the first of `room` visible rows (of `count`), with `row` in their middle."""
    return max(0, min(row - room // 2, count - room))


def line_width(line: Iterable[Span]) -> int:
    """Return the width of a line in cells."""
    return sum(cell_len(content) for content, _ in line)


def join_columns(left_lines: Sequence[Line], right_lines: Sequence[Line], start: int) -> list[Line]:
    """Place two columns of lines side by side. The second one starts at cell `start`."""
    lines: list[Line] = []
    for index in range(max(len(left_lines), len(right_lines))):
        left = left_lines[index] if index < len(left_lines) else BLANK
        right = right_lines[index] if index < len(right_lines) else BLANK
        lines.append((*left, (" " * (start - line_width(left)), "text"), *right))
    return lines


def fit(content: str, width: int, *, right: bool = False) -> str:
    """Pad or cut a text to exactly `width` cells. `right` aligns it to the right. An ellipsis marks a cut."""
    if width <= 0:
        return ""
    size = cell_len(content)
    if size > width:
        return set_cell_size(content, width - 1) + "…"
    return " " * (width - size) + content if right else content + " " * (width - size)


def cut_line(spans: Iterable[Span], width: int) -> Line:
    """Cut spans to at most `width` cells, with an ellipsis at the end."""
    kept_spans: list[Span] = []
    room = width
    for content, role in spans:
        size = cell_len(content)
        if size > room:
            return (*kept_spans, (fit(content, room), role)) if room > 0 else tuple(kept_spans)
        kept_spans.append((content, role))
        room -= size
    return tuple(kept_spans)


def cut_middle(content: str, width: int) -> str:
    """Cut a text to at most `width` cells.

    An ellipsis replaces its middle: both ends of a path stay visible.
    """
    if cell_len(content) <= width:
        return content
    if width < 5:
        return fit(content, width).rstrip()
    tail = (width - 1) // 2
    return set_cell_size(content, width - 1 - tail) + "…" + content[-tail:]


def cut_start(content: str, width: int) -> str:
    """Cut a text to at most `width` cells.

    An ellipsis replaces its start, for paths that differ in their ends.
    """
    if cell_len(content) <= width:
        return content
    tail = content[-max(1, width - 1) :]
    while cell_len(tail) > max(1, width - 1):
        tail = tail[1:]
    return "…" + tail


def cut_message(content: str, width: int) -> str:
    """Cut a message to at most `width` cells.

    The last part of a message, after ` · `, names the next key. The parts between the first and the last one
    are left out from the right; if this is not enough, an ellipsis replaces the middle.
    """
    parts = content.split(" · ")
    while len(parts) > 2 and cell_len(" · ".join(parts)) > width:
        del parts[-2]
    return cut_middle(" · ".join(parts), width)


def title_text(name: str, note: str, width: int) -> str:
    """Return the name of a model and a note about it for a title. The name is cut so that the note fits."""
    note = f"   {note}"
    return cut_message(" " + cut_middle(escape_name(name), max(8, width - 1 - cell_len(note))) + note, width)


def draw_bar(share: float, width: int) -> tuple[Span, Span]:
    """Draw a bar of `width` cells, filled by `share` (0 to 1) in steps of an eighth of a cell.

    A share above zero fills at least one step, so that a small share differs from zero. Returns the filled
    part and the empty part.
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
    """Wrap spans to lines of at most `width` cells, between words if possible.

    Continuation lines start with `indent` spaces.
    """
    width = max(width, indent + 8)
    lines: list[Line] = []
    current: list[Span] = []
    used_cells = 0

    def add(text_part: str, role: str) -> None:
        if current and current[-1][1] == role:
            current[-1] = (current[-1][0] + text_part, role)
        else:
            current.append((text_part, role))

    def end_line() -> None:
        nonlocal used_cells
        lines.append(tuple(current))
        current[:] = [(" " * indent, "text")] if indent else []
        used_cells = indent

    for content, role in spans:
        for word in _split_words(content):
            visible = word.rstrip()
            if used_cells > indent and used_cells + cell_len(visible) > width:
                end_line()
                word, visible = word.lstrip(), visible.lstrip()
            while used_cells + cell_len(visible) > width:  # a word that is longer than the line
                piece = set_cell_size(visible, width - used_cells).rstrip()
                piece = piece[: piece.rfind(" ") + 1] or piece
                add(piece, role)
                word, visible = word[len(piece) :], visible[len(piece) :]
                end_line()
            word = word[: len(visible) + max(0, width - used_cells - cell_len(visible))]
            if word:
                add(word, role)
                used_cells += cell_len(word)
    if current:
        lines.append(tuple(current))
    return lines


def wrap_within(spans: Iterable[Span], width: int, height: int, indent: int = 0) -> list[Line]:
    """Wrap spans to at most `height` lines. An ellipsis at the end marks that more lines are needed."""
    lines = wrap(spans, width, indent)
    if len(lines) > height > 0:
        lines[height - 1] = (*cut_line(lines[height - 1], width - 2), (" …", "text"))
    return lines[:height]


def _split_words(content: str) -> list[str]:
    """Split a text into words with their trailing spaces. A path is also split after its slashes.

    A number stays with the word after it.
    """
    words, start = [], 0
    for i in range(1, len(content)):
        is_within_path = content[i - 1] == "/" and i > 1 and content[i - 2] != " "
        if content[i] != " " and (content[i - 1] == " " or is_within_path):
            if _NUMBER.fullmatch(content, start, i):
                continue
            words.append(content[start:i])
            start = i
    words.append(content[start:])
    return words


def flow_pieces(pieces: Iterable[Line], width: int, indent: int = 1, *, gap: int = 2) -> list[Line]:
    """Place pieces side by side with a gap, on as many lines as necessary. No piece is broken."""
    lines: list[Line] = []
    current: list[Span] = []
    used_cells = 0
    for piece in pieces:
        size = line_width(piece)
        if current and used_cells + gap + size > width:
            lines.append(tuple(current))
            current = []
        blanks = gap if current else indent
        used_cells = (used_cells if current else 0) + blanks + size
        current += [(" " * blanks, "text"), *piece]
    return [*lines, tuple(current)] if current else lines
