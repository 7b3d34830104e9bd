"""Rows of two trees side by side: which are visible, and their lines in one or two columns."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from explorer.facts import NodeDiff
from explorer.facts.comparison import SAME
from explorer.features.compare.compare_words import (
    FIGURES,
    STATES,
    change,
    either,
    pair_blocks,
    summary,
)
from explorer.report.present.figures import count, size
from explorer.report.terms import field_terms
from explorer.tui.text.drawing import ROLES, draw
from explorer.tui.text.lines import BLANK, Line, Span, cut, fit, flow, middle, safe, wrap

if TYPE_CHECKING:
    from explorer.facts.comparison import RowPair, RowSide, TreeDiff


FROM = 100
"""Width in cells from which both names of a row have a column of their own."""

_DELTA = 12
"""Cells of a rounded difference; an exact one takes twice as many."""
_KIND, _MACS = 13, 10
_SHORT = {"activations": "act."}


class PairColumns(Struct, frozen=True):
    """Cells of a side's name, kind and MACs, and of each difference that fits."""

    name: int
    kind: int
    macs: int
    deltas: tuple[int, ...]
    beside: bool

    @property
    def side(self) -> int:
        """Cells of one side together."""
        return self.name + self.kind + self.macs


def columns(width: int, *, exact: bool) -> PairColumns:
    """The columns that fit into a width."""
    delta = 2 * _DELTA if exact else _DELTA
    beside = width >= FROM
    rest = 68 if beside else 30
    most = max(1, min(len(FIGURES), (width - rest) // delta))
    most = min(most, 3 if width < 130 else 4 if width < 180 else len(FIGURES))
    side = (width - 4 - most * delta) // (2 if beside else 1)
    kind = _KIND if side >= 30 else 0
    macs = _MACS if beside and side >= 42 else 0
    return PairColumns(side - kind - macs, kind, macs, (delta,) * most, beside)


def head_line(width: int, *, exact: bool) -> Line:
    """The titles of the columns."""
    laid = columns(width, exact=exact)
    line = "   "
    for title in ("before", "after") if laid.beside else ("layer",):
        line += fit(title, laid.name) + fit("kind", laid.kind) + fit("MACs ", laid.macs, right=True)
    for (title, _, _), cells in zip(FIGURES, laid.deltas, strict=False):
        line += fit(f"Δ {_SHORT.get(title, title)}", cells, right=True)
    return ((line, "dim"),)


def row_line(row: RowPair, sign: str, width: int, *, exact: bool) -> Line:
    """The line of a row; `sign` shows whether it is open."""
    laid = columns(width, exact=exact)
    mark, role = STATES[row.status]
    color = ROLES[role] if row.differs else "dim"
    spans: list[Span] = [(f" {mark if row.status != 'same' else '·' if row.inside else ' '} ", color)]
    if laid.beside:
        spans += _side(row.before, row, sign, laid, "bad" if row.after is None else "text")
        spans += _side(row.after, row, sign, laid, "good" if row.before is None else "text")
    else:
        room = max(1, laid.name - 2 * row.depth - 3)
        name = middle(safe(either(row, "name")), room)
        spans.append((fit("  " * row.depth + sign + name, laid.name), "dim" if not row.differs else "text"))
        spans.append((fit(safe(row.either.kind), laid.kind - 1) + " ", "dim"))
    for (_, field, of_bytes), cells in zip(FIGURES, laid.deltas, strict=False):
        delta = change(row, field, of_bytes)
        text = (delta.exact or delta.text) if exact else delta.text
        spans.append((fit(text, cells, right=True), ROLES[delta.role]))
    return _joined(spans)


def _joined(spans: Sequence[Span]) -> Line:
    """Spans with neighbors of one role joined, since each span costs bytes on a remote terminal."""
    joined: list[Span] = []
    for text, role in spans:
        if joined and (joined[-1][1] == role or not text.strip()):
            joined[-1] = (joined[-1][0] + text, joined[-1][1])
        else:
            joined.append((text, role))
    return tuple(joined)


def _side(side: RowSide | None, row: RowPair, sign: str, laid: PairColumns, role: str) -> list[Span]:
    if side is None:
        return [(" " * laid.side, "text")]
    room = max(1, laid.name - 2 * row.depth - 3)
    name = fit("  " * row.depth + sign + middle(safe(side.name), room), laid.name)
    alike = row.before is not None and row.after is not None and row.before.kind == row.after.kind
    macs = "" if side.macs == 0 else count(side.macs).text
    return [
        (name, role if row.differs else "dim"),
        (fit(safe(side.kind), laid.kind - 1) + " " * bool(laid.kind), "dim" if alike else "accent"),
        (fit(f"{macs} ", laid.macs, right=True), "number" if row.differs else "dim"),
    ]


def graph_line(row: NodeDiff, width: int) -> Line:
    """The line of a difference outside the rows: an input, an output, an operator set."""
    return ((fit(f" ~ {_of_graph(row)}", width - 1), "warn"),)  # the last cell is the scroll bar's


def _of_graph(row: NodeDiff) -> str:
    op = row.op_before or row.op_after or ""
    return safe(f"{op} {row.before or row.after or ''}: {field_terms(row.what)}")


def title_lines(fact: TreeDiff, only: bool, width: int) -> tuple[Line, ...]:
    """The names of both models, and the number of layers in each state."""
    room = max(8, (width - 6) // 2)
    names: Line = (
        (f" {middle(safe(fact.before), room)}", "strong"),
        ("  →  ", "dim"),
        (middle(safe(fact.after), room), "strong"),
    )
    text = f" {summary(fact)}{' · differences only' * only}"
    return names, ((fit(text, width), "good" if fact.equal else "warn"),)


def about_lines(row: RowPair | NodeDiff, width: int, height: int) -> list[Line]:
    """Both sides of the row under the cursor, one below the other, with their figures and differences."""
    if isinstance(row, NodeDiff):
        return wrap(((f" {_of_graph(row)}", "warn"),), width, 1)[:height]
    if height >= 12:
        return draw(pair_blocks(row), width - 1)[:height]
    mark = ROLES[STATES[row.status][1]] if row.differs else "dim"
    inside = f", {row.inside:,} differ in it" if row.inside else ""
    reason = f"  {safe(field_terms(row.what))}" if row.what else ""
    lines = wrap(((f" {row.status}{inside}", mark), (reason, "text")), width, 1)[: max(1, height - 4)]
    for title, side in (("before", row.before), ("after", row.after)):
        layer = f"{side.path}  {side.kind}" if side else "-"
        lines.append(cut(((f" {title:<7}", "dim"), (safe(layer), "text")), width))
    pieces: list[Line] = []
    for label, field, of_bytes in FIGURES:
        text = size if of_bytes else count
        sides = [text(getattr(side, field)).text for side in (row.before, row.after) if side is not None]
        delta = change(row, field, of_bytes)
        name, grown = (f"{label} ", "dim"), (f"  {delta.text}", ROLES[delta.role])
        if delta.text and len(sides) == 2:
            pieces.append((name, (" → ".join(sides), "number"), grown))
        elif field in ("macs", "params"):
            pieces.append((name, (sides[0], "number")))
    return [*lines, *flow(pieces, width)][:height] or [BLANK]


class PairRows:
    """The visible rows of a `TreeDiff`.

    Args:
        fact: Both trees.

    Attributes:
        only: Whether equal rows are left out.
        visible: Positions of the visible rows; -1, -2, ... stand for differences outside the rows.
        stops: Rows with a difference, where `n` stops; of a group that was added or removed, the group.
    """

    def __init__(self, fact: TreeDiff) -> None:
        self.fact = fact
        self.only = False
        self.open: set[int] = set()
        self.stops: list[int] = []
        at, rows = 0, fact.rows
        while at < len(rows):
            row = rows[at]
            whole = fact.folds(at)
            if row.status not in SAME:
                self.stops.append(at)
            if not whole:
                self.open.add(at)
            at = row.end if whole else at + 1
        self._above = tuple(-1 - place for place in range(len(fact.graph)))
        self.visible: list[int] = []
        self.rebuild()

    def rebuild(self) -> None:
        """Compute the visible rows."""
        self.visible = [*self._above, *self._within(0, len(self.fact.rows))]

    def _within(self, at: int, stop: int) -> list[int]:
        rows, places = self.fact.rows, []
        while at < stop:
            row = rows[at]
            if not self.only or row.differs or row.status == "part":
                places.append(at)
            at = at + 1 if at in self.open else row.end
        return places

    def row(self, place: int) -> RowPair | None:
        """The row at a visible place; None for a difference outside the rows."""
        at = self.visible[place]
        return None if at < 0 else self.fact.rows[at]

    def has_inside(self, place: int) -> bool:
        """Whether a row can be opened."""
        at = self.visible[place]
        return at >= 0 and self.fact.rows[at].end > at + 1

    def toggle(self, place: int, want: bool | None = None) -> bool:
        """Open or close a row, or do only what `want` says; return whether the rows changed."""
        at = self.visible[place]
        if not self.has_inside(place) or (want is not None and want == (at in self.open)):
            return False
        end = self.fact.rows[at].end
        if at in self.open:
            self.open.discard(at)
            del self.visible[place + 1 : bisect_left(self.visible, end, place + 1)]
        else:
            self.open.add(at)
            self.visible[place + 1 : place + 1] = self._within(at + 1, end)
        return True

    def parent(self, place: int) -> int | None:
        """The place of the group that contains a row."""
        row = self.row(place)
        if row is None or not row.depth:
            return None
        for above in range(place - 1, -1, -1):
            above_row = self.row(above)
            if above_row is not None and above_row.depth < row.depth:
                return above
        return None

    def show_only(self, only: bool, place: int) -> int:
        """Show all rows or only different ones; return the new place of the cursor."""
        at = self.visible[place] if self.visible else 0
        self.only = only
        self.rebuild()
        return self.place_of(at)

    def fold_all(self, place: int) -> int:
        """Close every row; return the new place of the cursor."""
        at = self.visible[place] if self.visible else 0
        self.open.clear()
        self.rebuild()
        return self.place_of(at)

    def place_of(self, at: int) -> int:
        """The place of a row among the visible ones, or of the last visible one before it."""
        if at < 0:
            return -1 - at
        first = len(self._above)
        return max(0, bisect_right(self.visible, at, first) - 1)

    def next_stop(self, place: int, step: int) -> tuple[int, int] | None:
        """Go to the next difference, or to the one before, and open the groups around it.

        Returns:
            Its place, and its number among the differences; None if there is none.
        """
        if not self.stops:
            return None
        at = self.visible[place] if self.visible else -1
        number = bisect_right(self.stops, at) if step > 0 else bisect_left(self.stops, at) - 1
        number %= len(self.stops)  # from the last to the first, as a search goes
        return self.reveal(self.stops[number]), number

    def reveal(self, goal: int) -> int:
        """Open the groups around a row; return its place, or that of the row before it if it is left out."""
        rows, closed = self.fact.rows, False
        around = 0
        while around < goal:
            if rows[around].end > goal:
                closed |= around not in self.open
                self.open.add(around)
                around += 1
            else:
                around = rows[around].end
        if closed:
            self.rebuild()
        return self.place_of(goal)
