"""Rows of two trees side by side that are on show: folded, all or differing ones, with a way to the next."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from explorer.facts.comparison import SAME

if TYPE_CHECKING:
    from explorer.facts.comparison import RowPair, TreeDiff


class PairRows:
    """What is on show of a `TreeDiff`.

    Args:
        fact: It.

    Attributes:
        only: Whether rows that are the same are left out.
        visible: Rows of the fact that are on show; -1, -2, ... stand for what differs in no row.
        stops: Rows where something differs, which `n` goes through: of what came or went whole the group.
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
        """All rows that are on show."""
        self.visible = [*self._above, *self._within(0, len(self.fact.rows))]

    def _within(self, at: int, stop: int) -> list[int]:
        rows, found = self.fact.rows, []
        while at < stop:
            row = rows[at]
            if not self.only or row.differs or row.status == "part":
                found.append(at)
            at = at + 1 if at in self.open else row.end
        return found

    def row(self, place: int) -> RowPair | None:
        """The row at a place on show; None for what differs in no row."""
        at = self.visible[place]
        return None if at < 0 else self.fact.rows[at]

    def has_inside(self, place: int) -> bool:
        """Whether a row can be opened."""
        at = self.visible[place]
        return at >= 0 and self.fact.rows[at].end > at + 1

    def toggle(self, place: int, want: bool | None = None) -> bool:
        """Open or close a row (`want`: only that); whether the rows changed."""
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
        """The place of the row that a row lies in."""
        row = self.row(place)
        if row is None or not row.depth:
            return None
        for above in range(place - 1, -1, -1):
            found = self.row(above)
            if found is not None and found.depth < row.depth:
                return above
        return None

    def show_only(self, only: bool, place: int) -> int:
        """All rows or those that differ; the place of the row under the cursor, or of the one before it."""
        at = self.visible[place] if self.visible else 0
        self.only = only
        self.rebuild()
        return self.place_of(at)

    def fold_all(self, place: int) -> int:
        """Close every row; where the cursor is then."""
        at = self.visible[place] if self.visible else 0
        self.open.clear()
        self.rebuild()
        return self.place_of(at)

    def place_of(self, at: int) -> int:
        """Where a row is on show, or the last one before it."""
        if at < 0:
            return -1 - at
        first = len(self._above)
        return max(0, bisect_right(self.visible, at, first) - 1)

    def next_stop(self, place: int, step: int) -> tuple[int, int] | None:
        """To the next difference or the one before, opening what it lies in.

        Returns:
            Its place, and which of all it is; None if there is none.
        """
        if not self.stops:
            return None
        at = self.visible[place] if self.visible else -1
        number = bisect_right(self.stops, at) if step > 0 else bisect_left(self.stops, at) - 1
        number %= len(self.stops)  # from the last to the first, as a search goes
        return self.reveal(self.stops[number]), number

    def reveal(self, goal: int) -> int:
        """Open what a row lies in; its place, or that of the one before it where it is left out."""
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
