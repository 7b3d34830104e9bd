"""Rows of two aligned layer trees: which rows are visible, and the text of each row.

In a wide terminal each tree has a column of names; in a narrow one both share a column. A place is the index
of a row among the visible rows. A row index counts all rows of the `TreeDiff`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from rich.cells import cell_len

from explorer.facts import NodeDiff
from explorer.facts.comparison import SAME
from explorer.features.compare.compare_words import (
    FIGURES,
    STATES,
    build_pair_blocks,
    format_both_sides,
    format_change,
    summarize_states,
)
from explorer.report.names import shorten_name
from explorer.report.present.figures import count, size
from explorer.report.terms import field_terms
from explorer.tui.text.drawing import ROLES, draw
from explorer.tui.text.lines import (
    BLANK,
    Line,
    Span,
    cut_line,
    cut_start,
    escape_name,
    fit,
    flow_pieces,
    wrap_within,
)

if TYPE_CHECKING:
    from explorer.facts.comparison import RowPair, RowSide, TreeDiff


MIN_TWO_COLUMNS = 100
"""Minimum terminal width, in cells, for a name column for each side."""

_DELTA_WIDTH = 12
"""Width of a rounded difference, in cells. An exact difference takes twice this width."""
_MACS_WIDTH = 10
_SHORT_TITLES = {"activations": "act."}
_BETWEEN = " -> "
"""Text between the names of both sides, as `format_both_sides` joins them."""
_NEIGHBORS = 24
"""Number of rows before and after a row from which its shortened name must differ."""
_MAX_SHORT_NAMES = 4096
"""Number of shortened names that are cached."""

ShortName = Callable[[str, int], str]
"""Function that returns a name in a number of cells."""


_MIN_KIND, _MAX_KIND = 13, 18
"""Minimum and usual maximum width of the kinds, in cells. GlobalAveragePool has 17."""
_NAME, _MIN_NAME = 28, 18
"""Width of a name above which kinds may exceed `_MAX_KIND`, and below which a difference is left out."""


class PairColumns(Struct, frozen=True):
    """Widths, in cells, of the name, kind and MACs of a side, and of each difference that fits.

    `has_two_sides` tells whether each side has its own name column.
    """

    name: int
    kind: int
    macs: int
    deltas: tuple[int, ...]
    has_two_sides: bool

    @property
    def side(self) -> int:
        """Total width of one side, in cells."""
        return self.name + self.kind + self.macs


def choose_columns(width: int, longest_kind: int = 0, *, exact: bool) -> PairColumns:
    """Choose the columns that fit in `width` cells. `longest_kind` is the width of the longest kind.

    Where names would get too narrow, the last differences are left out.
    """
    delta = 2 * _DELTA_WIDTH if exact else _DELTA_WIDTH
    has_two_sides = width >= MIN_TWO_COLUMNS
    reserved = 68 if has_two_sides else 30  # cells for the names and kinds
    delta_count = max(1, min(len(FIGURES), (width - reserved) // delta))
    delta_count = min(delta_count, 3 if width < 130 else 4 if width < 180 else len(FIGURES))
    for shown_count in range(delta_count, 0, -1):
        # four cells: the mark with its blanks on the left, and the scroll bar
        side = (width - 4 - shown_count * delta) // (2 if has_two_sides else 1)
        macs = _MACS_WIDTH if has_two_sides and side >= 42 else 0
        room = max(min(longest_kind + 1, _MAX_KIND), side - macs - _NAME)
        kind = max(_MIN_KIND, min(longest_kind + 1, room)) if side >= 30 else 0
        if side - kind - macs >= _MIN_NAME:
            break
    return PairColumns(side - kind - macs, kind, macs, (delta,) * shown_count, has_two_sides)


def draw_head(widths: PairColumns) -> Line:
    """Build the line of column titles."""
    line = "   "
    for title in ("before", "after") if widths.has_two_sides else ("layer",):
        line += fit(title, widths.name) + fit("kind", widths.kind) + fit("MACs ", widths.macs, right=True)
    for (title, _, _), cells in zip(FIGURES, widths.deltas, strict=False):
        line += fit(f"Δ {_SHORT_TITLES.get(title, title)}", cells, right=True)
    return ((line, "dim"),)


def row_line(row: RowPair, sign: str, widths: PairColumns, shorten: ShortName, *, exact: bool) -> Line:
    """Build the line of a row; `sign` shows whether its group is open, `shorten` cuts its names."""
    mark, role = STATES[row.status]
    color = ROLES[role] if row.differs else "dim"
    spans: list[Span] = [(f" {mark if row.status != 'same' else '·' if row.inside else ' '} ", color)]
    if widths.has_two_sides:
        spans += _draw_side(row.before, row, sign, widths, "bad" if row.after is None else "text", shorten)
        spans += _draw_side(row.after, row, sign, widths, "good" if row.before is None else "text", shorten)
    else:
        room = max(1, widths.name - 2 * row.depth - 3)
        name = escape_name(format_both_sides(row, "name"))
        if cell_len(name) > room:
            names = name.split(_BETWEEN)
            name = _BETWEEN.join(
                [
                    shorten(part, max(1, (room + len(_BETWEEN)) // len(names) - len(_BETWEEN)))
                    for part in names
                ]
            )
        spans.append((fit("  " * row.depth + sign + name, widths.name), "dim" if not row.differs else "text"))
        spans.append((fit(escape_name(row.either.kind), widths.kind - 1) + " ", "dim"))
    for (_, field, is_bytes), cells in zip(FIGURES, widths.deltas, strict=False):
        delta = format_change(row, field, is_bytes)
        text = (delta.exact or delta.text) if exact else delta.text
        spans.append((fit(text, cells, right=True), ROLES[delta.role]))
    return _join_spans(spans)


def draw_constants_line(row: RowPair, count: int, widths: PairColumns) -> Line:
    """Build the line that stands for the equal constants of a group; `row` is the first of them."""
    name = fit("  " * row.depth + f"▸ {count:,} constants", widths.name)
    sides = 2 if widths.has_two_sides else 1
    return (((f"   {fit(name, widths.side)}" + fit(name, widths.side) * (sides - 1)), "dim"),)


def _join_spans(spans: Sequence[Span]) -> Line:
    """Merge neighboring spans of the same role, because each span costs bytes on a remote terminal."""
    merged: list[Span] = []
    for text, role in spans:
        if merged and (merged[-1][1] == role or not text.strip()):
            merged[-1] = (merged[-1][0] + text, merged[-1][1])
        else:
            merged.append((text, role))
    return tuple(merged)


def _draw_side(
    side: RowSide | None, row: RowPair, sign: str, widths: PairColumns, role: str, shorten: ShortName
) -> list[Span]:
    if side is None:
        return [(" " * widths.side, "text")]
    room = max(1, widths.name - 2 * row.depth - 3)
    name = fit("  " * row.depth + sign + shorten(escape_name(side.name), room), widths.name)
    has_equal_kinds = row.before is not None and row.after is not None and row.before.kind == row.after.kind
    macs = "" if side.macs == 0 else count(side.macs).text
    return [
        (name, role if row.differs else "dim"),
        (
            fit(escape_name(side.kind), widths.kind - 1) + " " * bool(widths.kind),
            "dim" if has_equal_kinds else "accent",
        ),
        (fit(f"{macs} ", widths.macs, right=True), "number" if row.differs else "dim"),
    ]


def graph_line(row: NodeDiff, width: int) -> Line:
    """Build the line of a difference outside the layer tree: an input, an output or an operator set."""
    return ((fit(f" ~ {_format_graph(row)}", width - 1), "warn"),)  # the last cell is the scroll bar's


def _format_graph(row: NodeDiff) -> str:
    op = row.op_before or row.op_after or ""
    return escape_name(f"{op} {row.before or row.after or ''}: {field_terms(row.what)}")


def draw_title(fact: TreeDiff, only_differences: bool, width: int) -> tuple[Line, ...]:
    """Build the title: the names of both models, and the number of layers in each state."""
    room = max(8, (width - 6) // 2)
    before, after = escape_name(fact.before), escape_name(fact.after)
    folder, short_before = after[: after.rfind("/") + 1], shorten_name(before, room, [after])
    if folder and before.startswith(folder):  # the first path shows the folder
        after = after.removeprefix(folder)
        short_before = cut_start(before, max(room, width - 6 - cell_len(after)))
    short_after = shorten_name(after, room, [before])
    names: Line = ((f" {short_before}", "strong"), ("  →  ", "dim"), (short_after, "strong"))
    text = f" {summarize_states(fact)}{' · differences only' * only_differences}"
    return names, ((fit(text, width), "good" if fact.equal else "warn"),)


def build_detail_lines(row: RowPair | NodeDiff, width: int, height: int) -> list[Line]:
    """Build the details of the row under the cursor: both sides, their figures and differences."""
    if isinstance(row, NodeDiff):
        return wrap_within(((f" {_format_graph(row)}", "warn"),), width, height, 1)
    if height >= 12:
        return draw(build_pair_blocks(row), width - 1)[:height]
    mark = ROLES[STATES[row.status][1]] if row.differs else "dim"
    inner_text = f", {row.inside:,} differ in it" if row.inside else ""
    reason = f"  {escape_name(field_terms(row.what))}" if row.what else ""
    about: Line = ((f" {row.status}{inner_text}", mark), (reason, "text"))
    lines = wrap_within(about, width, max(1, height - 4), 1)
    for title, side in (("before", row.before), ("after", row.after)):
        layer = f"{side.path}  {side.kind}" if side else "-"
        lines.append(cut_line(((f" {title:<7}", "dim"), (escape_name(layer), "text")), width))
    pieces: list[Line] = []
    for label, field, is_bytes in FIGURES:
        text = size if is_bytes else count
        sides = [text(getattr(side, field)).text for side in (row.before, row.after) if side is not None]
        delta = format_change(row, field, is_bytes)
        name, delta_span = (f"{label} ", "dim"), (f"  {delta.text}", ROLES[delta.role])
        if delta.text and len(sides) == 2:
            pieces.append((name, (" → ".join(sides), "number"), delta_span))
        elif field in ("macs", "params"):
            pieces.append((name, (sides[0], "number")))
    return [*lines, *flow_pieces(pieces, width)][:height] or [BLANK]


class PairRows:
    """The rows of a `TreeDiff`, some of them folded or hidden.

    Args:
        fact: The two aligned layer trees.

    Attributes:
        only: Whether equal rows are hidden.
        open: Indices of the open groups.
        longest_kind: Width of the longest kind, in cells.
        visible: Indices of the visible rows. Negative values -1, -2, ... are differences outside the layer
            tree.
        stops: Indices of the rows with a difference, where the key `n` stops. A group that was added or
            removed counts once.
    """

    def __init__(self, fact: TreeDiff) -> None:
        self.fact = fact
        self.only = False
        self.open: set[int] = set()
        self.stops: list[int] = []
        index, rows = 0, fact.rows
        while index < len(rows):
            row = rows[index]
            is_folded = fact.folds(index)
            if row.status not in SAME:
                self.stops.append(index)
            if not is_folded:
                self.open.add(index)
            index = row.end if is_folded else index + 1
        kinds = {side.kind for row in rows for side in (row.before, row.after) if side is not None}
        self.longest_kind = max((cell_len(escape_name(kind)) for kind in kinds), default=0)
        self._constants, self._shown_by = _group_constants(fact)
        self._open_constants: set[int] = set()
        self._above = tuple(-1 - place for place in range(len(fact.graph)))
        self.visible: list[int] = []
        self._short_names: dict[tuple[int, str, int], str] = {}
        self.rebuild()

    def rebuild(self) -> None:
        """Recompute `visible` from the open groups and from `only`."""
        self.visible = [*self._above, *self._list_visible_between(0, len(self.fact.rows))]

    def _list_visible_between(self, index: int, stop: int) -> list[int]:
        """Return the indices of the visible rows from `index` to before `stop`."""
        rows, visible = self.fact.rows, []
        while index < stop:
            row = rows[index]
            shown_by = self._shown_by.get(index, index)
            is_folded = shown_by != index and shown_by not in self._open_constants
            if not is_folded and (not self.only or row.differs or row.status == "part"):
                visible.append(index)
            index = index + 1 if index in self.open else row.end
        return visible

    def count_folded_constants(self, index: int) -> int:
        """Return the number of constants that row `index` stands for, or 0 for any other row."""
        return 0 if index in self._open_constants else self._constants.get(index, 0)

    def is_open(self, index: int) -> bool:
        """Return whether a row shows the rows inside it, or the constants that it stands for."""
        return index in (self._open_constants if index in self._constants else self.open)

    def shorten_name(self, place: int, name: str, room: int) -> str:
        """Return a name of the row at `place` in `room` cells, so that it differs from nearby siblings."""
        if cell_len(name) <= room:
            return name
        key = self.visible[place], name, room
        if key not in self._short_names:
            if len(self._short_names) >= _MAX_SHORT_NAMES:
                self._short_names.clear()
            depth = self.fact.rows[key[0]].depth
            nearby_rows = [
                self.fact.rows[index]
                for index in self.visible[max(0, place - _NEIGHBORS) : place + _NEIGHBORS + 1]
                if index >= 0 and self.fact.rows[index].depth == depth
            ]
            sides = [side for row in nearby_rows for side in (row.before, row.after) if side is not None]
            self._short_names[key] = shorten_name(name, room, [escape_name(side.name) for side in sides])
        return self._short_names[key]

    def find_first_difference(self) -> int:
        """Return the place of the first difference, with its groups open. Without differences, return 0."""
        return self.reveal(self.stops[0]) if self.stops and not self._above else 0

    def row(self, place: int) -> RowPair | None:
        """Return the row at a place, or None for a difference outside the layer tree."""
        index = self.visible[place]
        return None if index < 0 else self.fact.rows[index]

    def has_inside(self, place: int) -> bool:
        """Return whether the row at a place has rows inside it, or stands for several constants."""
        index = self.visible[place]
        return index >= 0 and (self.fact.rows[index].end > index + 1 or index in self._constants)

    def toggle(self, place: int, should_open: bool | None = None) -> bool:
        """Open or close the group at a place and return whether the visible rows changed.

        `should_open` True only opens, False only closes, None toggles.
        """
        index = self.visible[place]
        if not self.has_inside(place) or (should_open is not None and should_open == self.is_open(index)):
            return False
        if index in self._constants:
            self._open_constants ^= {index}
            self.rebuild()
            return True
        end = self.fact.rows[index].end
        if index in self.open:
            self.open.discard(index)
            del self.visible[place + 1 : bisect_left(self.visible, end, place + 1)]
        else:
            self.open.add(index)
            self.visible[place + 1 : place + 1] = self._list_visible_between(index + 1, end)
        return True

    def parent(self, place: int) -> int | None:
        """Return the place of the group that contains a row, or None at the top level."""
        row = self.row(place)
        if row is None or not row.depth:
            return None
        for above in range(place - 1, -1, -1):
            above_row = self.row(above)
            if above_row is not None and above_row.depth < row.depth:
                return above
        return None

    def show_only(self, only: bool, place: int) -> int:
        """Show all rows, or only rows that differ. Return the new place of the cursor."""
        index = self.visible[place] if self.visible else 0
        self.only = only
        self.rebuild()
        return self.place_of(index)

    def fold_all(self, place: int) -> int:
        """Close every group. Return the new place of the cursor."""
        index = self.visible[place] if self.visible else 0
        self.open.clear()
        self._open_constants.clear()
        self.rebuild()
        return self.place_of(index)

    def place_of(self, index: int) -> int:
        """Return the place of a row, or of the last visible row before it."""
        if index < 0:
            return -1 - index
        first = len(self._above)
        return max(0, bisect_right(self.visible, index, first) - 1)

    def find_next_stop(self, place: int, step: int) -> tuple[int, int] | None:
        """Find the next (`step` 1) or previous (`step` -1) difference and open the groups that contain it.

        Returns:
            The place of the difference and its number among the differences, or None without differences.
        """
        if not self.stops:
            return None
        index = self.visible[place] if self.visible else -1
        number = bisect_right(self.stops, index) if step > 0 else bisect_left(self.stops, index) - 1
        number %= len(self.stops)  # wrap around at the ends
        return self.reveal(self.stops[number]), number

    def reveal(self, goal: int) -> int:
        """Open the groups that contain row `goal` and return its place.

        If the row is hidden, return the place of the last visible row before it.
        """
        rows, has_closed = self.fact.rows, False
        if (first := self._shown_by.get(goal, goal)) != goal and first not in self._open_constants:
            self._open_constants.add(first)
            has_closed = True
        group = 0
        while group < goal:
            if rows[group].end > goal:
                has_closed |= group not in self.open
                self.open.add(group)
                group += 1
            else:
                group = rows[group].end
        if has_closed:
            self.rebuild()
        return self.place_of(goal)


def _group_constants(fact: TreeDiff) -> tuple[dict[int, int], dict[int, int]]:
    """Group the equal constants of each group of the tree that has several.

    Returns:
        The number of constants by the index of the first one, and the index of the first one by the index of
        each.
    """
    rows, constants = fact.rows, set(fact.constants)
    siblings: dict[int, list[int]] = {}
    parents: list[int] = []
    for index, row in enumerate(rows if constants else ()):
        while parents and rows[parents[-1]].end <= index:
            parents.pop()
        if index in constants and row.end == index + 1:
            siblings.setdefault(parents[-1] if parents else -1, []).append(index)
        parents.append(index)
    several = [indices for indices in siblings.values() if len(indices) > 1]
    counts = {indices[0]: len(indices) for indices in several}
    return counts, {index: indices[0] for indices in several for index in indices}
