"""Tree model: which rows of the layer tree are on show, in which order.

Rows come to be when what they lie in is opened. No terminal is needed to test it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct

from explorer.session.cache.rows import GROUP, RANGE, WIDE
from explorer.tui.tree.rows import METRICS, FoldedRows, Metric, columns_of, is_known, metric_of

if TYPE_CHECKING:
    from explorer.facts import Layer


_OPEN_AT_FIRST = 60
MATCHES = 2_000
"""Layers found by a filter that are shown; what is found beyond is counted."""


class TreeShape(Struct, frozen=True):
    """How a tree is laid out, whatever its layers.

    Attributes:
        metric: Id of the column; of none that exists leaves the first.
        open_rows: Open rows: the path of a layer, and whether the row is the run that it begins.
        turned: Sorted from the smallest.
        columns: Of the table, from left to right; empty for those that are shown first.
        flat: Layers without the groups around them.
        constants: Constants and shape arithmetic are shown among the others.
    """

    metric: str
    by_cost: bool
    open_rows: frozenset[tuple[str, bool]]
    turned: bool = False
    columns: tuple[str, ...] = ()
    flat: bool = False
    constants: bool = False


class TreeModel(FoldedRows):
    """The visible rows of a tree of layers.

    Args:
        layers: In pre-order, as `facts.Analysis` lists them.

    Attributes:
        matches: Of a filter, those that are shown; None without one.
        found: How many layers it has found so far.
        constants: Constants and shape arithmetic are shown among the others, not as one row a group.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__(layers)
        self._chosen = False
        self.metric = self._first_metric()
        self.by_cost = False
        self.turned = False
        self.columns: tuple[str, ...] = ()
        self.flat = False
        self.constants = False
        self._constants = b""
        self.open_rows: set[int] = set()
        self.matches: set[int] | None = None
        self.found = 0
        self._matching: tuple[list[int], list[int]] = ([], [])
        self._constant_matches = 0
        self._constant_leaves: int | None = None
        self._within: dict[int, list[int]] = {}
        self._closed: set[int] = set()
        self._above: dict[int, int | None] = {}
        self._depths: dict[int, int] = {}
        self._paths: dict[int, str] = {}
        self.rows: list[int] = []
        self._open_first_levels()
        self.rebuild()

    # which rows there are

    def depth(self, row: int) -> int:
        """Steps of indentation of a row that is on show: runs and ranges that are open count as a level."""
        return self._depths[row]

    def expandable(self, row: int) -> bool:
        """Whether something lies under the row."""
        if row < 0:
            return True
        if self.flat or self.end[row] <= row + 1:
            return False
        return self.matches is None or row in self._within

    def is_open(self, row: int) -> bool:
        """Whether the row's children are on show."""
        return (row not in self._closed) if self.matches is not None else (row in self.open_rows)

    def value(self, row: int) -> tuple[float | None, str]:
        """The row's figure in the current column, and '≤' or '≥' if it is a bound only."""
        return self.figure(row, self.metric)

    def children(self, row: int | None) -> Iterator[int]:
        """The rows right under `row` (None: the top), in the order shown."""
        if self.flat:
            return iter(self._leaves() if row is None else ())
        rows: Iterable[int]
        if self.matches is not None:
            rows = self._within.get(-1 if row is None else row, ())
        elif row is None or row >= 0:
            rows = self._under(row)
        elif self.is_constants(row):
            rows = self._folded(self.members(row))
        elif row >= -self.count:
            members = self.members(row)
            rows = self._in_ranges(row) if len(members) > WIDE else members
        elif (above := self._ranges[-row - self.count - 1][0]) is not None and above < 0:
            rows = self.members(row)
        else:
            rows = self._gathered(row, self._folded(self._hop(*self._span(row))))
        if self.by_cost:
            sign = 1 if self.turned else -1
            # what is not known comes last, whichever way
            values = ((self.value(at)[0], at) for at in rows)
            ranked = sorted(
                (value is None, sign * (value or 0), place, at) for place, (value, at) in enumerate(values)
            )
            rows = [at for *_, at in ranked]
        return iter(rows)

    def _leaves(self) -> list[int]:
        """Layers without groups, the first or the largest `MATCHES` of them."""
        flags, column = self.structure.flags, self.column(self.metric)
        among: Iterable[int] = range(self.count) if self.matches is None else sorted(self.matches)
        if self.matches is None and (folds := self._folds):
            among = (at for at in among if not folds[at])
        leaves = (at for at in among if not flags[at] & GROUP)
        if not self.by_cost or column is None:
            return list(islice(leaves, MATCHES))
        sign, lacking = (1 if self.turned else -1), float("inf")

        def place(at: int) -> float:
            return sign * column[at] if is_known(column[at], self.metric) else lacking

        return nsmallest(MATCHES, leaves, key=place)

    def _under(self, row: int | None) -> Iterable[int]:
        if (-1 if row is None else row) in self.structure.wide:
            return self._in_ranges(row)
        start, stop = (0, self.count) if row is None else (row + 1, self.end[row])
        return self._gathered(row, self._folded(self._hop(start, stop)))

    def _gathered(self, above: int | None, rows: Iterable[int]) -> Iterator[int]:
        """Rows under `above`, its constants as one where the first of them stands."""
        folds, place = self._folds, None
        within = -1 if above is None else above if above >= 0 else self.structure.parent[self.first(above)]
        if not folds or (within >= 0 and folds[within]):
            yield from rows
            return
        for row in rows:
            if not folds[row if row >= 0 else -row - 1]:
                yield row
                continue
            if place is None:
                yield (place := self._constants_row(above))
            # who stood on it finds the row that it lies in
            self._above[row] = place

    def _open_first_levels(self) -> None:
        level = list(self.children(None))
        count = len(level)
        while level and count <= _OPEN_AT_FIRST:
            following: list[int] = []
            for row in level:
                if row >= 0 and self.end[row] > row + 1:
                    following += self.children(row)
                if count + len(following) > _OPEN_AT_FIRST:
                    return
            if not following:
                return
            self.open_rows.update(row for row in level if row >= 0 and self.end[row] > row + 1)
            count += len(following)
            level = following

    def rebuild(self) -> None:
        """Make the list of rows anew, after a change of order or filter."""
        self.rows = list(self._walk(None))

    def _walk(self, row: int | None) -> Iterator[int]:
        above, depths = self._above, self._depths
        stack = [(row, self.children(row))]
        base = 0 if row is None else depths[row] + 1
        while stack:
            parent, rest = stack[-1]
            child = next(rest, None)
            if child is None:
                stack.pop()
                continue
            above[child], depths[child] = parent, base + len(stack) - 1
            yield child
            if self.is_open(child) and self.expandable(child):
                stack.append((child, self.children(child)))

    # what a user does

    def toggle(self, index: int) -> bool:
        """Open or close the row at `index`. Returns whether anything changed."""
        row = self.rows[index]
        if not self.expandable(row):
            return False
        if self.is_open(row):
            depth, stop = self._depths[row], index + 1
            while stop < len(self.rows) and self._depths[self.rows[stop]] > depth:
                stop += 1
            del self.rows[index + 1 : stop]
            self._mark(row, False)
        else:
            self._mark(row, True)
            self.rows[index + 1 : index + 1] = list(self._walk(row))
        return True

    def _mark(self, row: int, opened: bool) -> None:
        if self.matches is not None:
            (self._closed.discard if opened else self._closed.add)(row)
        else:
            (self.open_rows.add if opened else self.open_rows.discard)(row)

    def above(self, row: int) -> int | None:
        """The row that a row on show lies in, or None at the top."""
        return self._above.get(row)

    def parent_index(self, index: int) -> int | None:
        """Where the row above in the hierarchy is, or None at the top."""
        row = self._above.get(self.rows[index])
        return None if row is None else self.rows.index(row, 0, index)

    def fold_all(self) -> None:
        """Close everything."""
        if self.matches is not None:
            self._closed = set(self._within)
        else:
            self.open_rows.clear()
        self.rebuild()

    def set_filter(self, matches: Iterable[int] | None) -> None:
        """Show only `matches` and what they lie in; None shows everything again."""
        self.matches = None if matches is None else set()
        self.found = self._constant_matches = 0
        self._matching = ([], [])
        self._closed.clear()
        self._within = {}
        if not self.add_matches(matches or ()):
            self.rebuild()

    def add_matches(self, matches: Iterable[int]) -> bool:
        """More that a filter finds, in the order of the tree; shown up to `MATCHES` of them.

        Constants are kept back where they are folded and something else is found.

        Returns whether any of these is shown.
        """
        marks, grew = self._constants, False
        for match in matches:
            constant = bool(marks) and bool(marks[match])
            self.found += 1
            self._constant_matches += constant
            if len(self._matching[constant]) < MATCHES:
                self._matching[constant].append(match)
                grew = True
        more = grew and self._lay_matches()  # of a million most only count
        if more:
            self.rebuild()
        return more

    @property
    def kept_back(self) -> int:
        """Constants that a filter found, or that are layers of a flat list, and that are not shown."""
        if self.matches is not None:
            return self._constant_matches if self._folds and self._matching[0] else 0
        if not self.flat or not self._folds:
            return 0
        if self._constant_leaves is None:
            flags, folds = self.structure.flags, self._folds
            self._constant_leaves = sum(folds[at] and not flags[at] & GROUP for at in range(self.count))
        return self._constant_leaves

    def _lay_matches(self) -> bool:
        """Which of what a filter found is shown, and what that lies in; whether that is other than before."""
        if self.matches is None:
            return False
        plain, constant = self._matching
        rows_found = plain if not constant or (self._folds and plain) else sorted(plain + constant)[:MATCHES]
        if self.matches == set(rows_found):
            return False
        self.matches, self._within = set(rows_found), {}
        within, parent = self._within, self.structure.parent
        for match in rows_found:
            child, row = match, parent[match]
            while True:
                beside = within.get(row)
                if beside is None:
                    within[row] = [child]
                elif beside[-1] != child:
                    beside.append(child)
                if beside is not None or row < 0:
                    break
                child, row = row, parent[row]
        return True

    @property
    def is_full(self) -> bool:
        """Whether what is found beyond is only counted."""
        return self.matches is not None and len(self.matches) >= MATCHES

    @property
    def shape(self) -> TreeShape:
        """Column, order and open rows."""
        opened = frozenset(
            (self._path(self.first(row)), row < 0) for row in self.open_rows if not self.is_range(row)
        )
        order = (self.by_cost, opened, self.turned, self.columns, self.flat, self.constants)
        return TreeShape(self._metric_id, *order)

    @property
    def _metric_id(self) -> str:
        """Of the column; empty if it stands in for the first, which says nothing of these rows."""
        return self.metric.id if self._chosen or self.metric is METRICS[0] else ""

    def _first_metric(self) -> Metric:
        """The column shown unless another is asked for: of tensors alone nobody knows the work."""
        known = self.structure.known
        return METRICS[1] if METRICS[0].of not in known and METRICS[1].of in known else METRICS[0]

    def _path(self, layer: int) -> str:
        path = self._paths.get(layer)
        if path is None:
            path = self._paths[layer] = self.layers[layer].path
        return path

    def take_shape(self, shape: TreeShape, ids: Mapping[str, int] | None = None) -> None:
        """Take over another tree's column, order and open rows: what follows a change looks alike.

        Rows are known by their path (`ids`: where those are, if that is known); where none is known, the
        first levels stay open.
        """
        metric = metric_of(shape.metric, columns_of(self) if self.overlay else None) or METRICS[0]
        self._chosen = metric is not METRICS[0]
        self.metric = metric if self._chosen else self._first_metric()
        self.by_cost, self.turned, self.columns = shape.by_cost, shape.turned, shape.columns
        self.flat = shape.flat
        self._show_constants(shape.constants)
        opened: set[int] = set()
        if shape.open_rows:
            if ids is None:
                paths = {path for path, _ in shape.open_rows}
                ids = {layer.path: layer.id for layer in self.layers if layer.path in paths}
            for path, is_run in shape.open_rows:
                at = ids.get(path)
                if at is not None and at < self.count and (not is_run or self.structure.repeat[at] > 1):
                    opened.add(-at - 1 if is_run else at)
        self.open_rows = opened or self.open_rows
        self.rebuild()

    def grow_from(self, before: TreeModel) -> None:
        """Take over what was open in a tree whose rows are the first of these."""
        self.by_cost, self._chosen = before.by_cost, before._chosen
        self.turned, self.columns, self.flat = before.turned, before.columns, before.flat
        if before._chosen:
            self.metric = before.metric
        repeat = self.structure.repeat
        self.open_rows = {
            row
            for row in before.open_rows
            if row >= 0 or (not before.is_range(row) and repeat[before.first(row)] > 1)
        }
        self._ranges, self._range_of, self._gathered_in, self._listed = [], {}, {}, {}
        self.forget_sums()
        self._show_constants(before.constants)
        self.rebuild()

    def index_of(self, layer: int | None, otherwise: int, *, run: bool = False) -> int:
        """Where a layer, or the run that it begins, is on show; `otherwise` if it is not."""
        if layer is not None:
            for row in (-layer - 1, layer) if run else (layer, -layer - 1):
                with suppress(ValueError):
                    return self.rows.index(row)
        return otherwise

    def set_order(self, *, by_cost: bool, turned: bool = False) -> None:
        """Sort siblings by the current column (`turned`: the smallest first), or as they are executed."""
        self.by_cost, self.turned = by_cost, turned
        self.rebuild()

    def set_columns(self, columns: tuple[str, ...]) -> None:
        """Other columns of the table; empty for those that are shown first."""
        self.columns = columns

    def set_flat(self, flat: bool) -> None:
        """Layers one below the other, whatever group they lie in; or the tree again."""
        self.flat = flat
        self.rebuild()

    def set_constants(self, rows: Iterable[int]) -> None:
        """Which rows hold constants and shape arithmetic only."""
        marks = bytearray(self.count)
        for row in rows:
            marks[row] = 1
        self._constants = bytes(marks) if 1 in marks else b""
        matching = sorted(self._matching[0] + self._matching[1])
        self._matching = ([at for at in matching if not marks[at]], [at for at in matching if marks[at]])
        self._constant_matches = len(self._matching[1])
        self._gathered_in.clear()
        self.forget_sums()
        self.show_constants(self.constants)

    def show_constants(self, shown: bool) -> None:
        """Show constants and shape arithmetic among the others, or as one row a group."""
        self._show_constants(shown)
        self.rebuild()

    def _show_constants(self, shown: bool) -> None:
        self.constants, self._constant_leaves = shown, None
        self._folds = b"" if shown else self._constants
        self._lay_matches()

    def next_order(self) -> None:
        """From as executed to the largest first, to the smallest first, and back."""
        self.set_order(by_cost=not self.turned, turned=self.by_cost and not self.turned)

    def sort_by(self, metric: Metric) -> None:
        """Sort by a column; by the one that it is sorted by already the other way, then not at all."""
        if metric is self.metric:
            self.next_order()
        else:
            self.set_metric(metric)
            self.set_order(by_cost=True)

    def set_metric(self, metric: Metric) -> None:
        """Switch the column; a sorted tree is sorted by it."""
        self.metric, self._chosen = metric, True
        if self.by_cost:
            self.rebuild()

    def reveal(self, layer: int) -> int:
        """Open what `layer` lies in. Returns the index of its row, or 0 if a filter hides it."""
        if self.flat and layer not in self.rows:
            self.flat = False  # a group, or one beyond those that are listed, stands in the tree
            self.rebuild()
        if self.matches is None and not self.flat:
            node = layer
            while node >= 0:
                self._open_to(node)
                node = self.structure.parent[node]
                if node >= 0:
                    self.open_rows.add(node)
            self.rebuild()
        try:
            return self.rows.index(layer)
        except ValueError:
            return 0

    def _open_to(self, layer: int) -> None:
        """Open the run and the range among its siblings that hide a layer."""
        repeat = self.structure.repeat[layer]
        head = layer
        if repeat != 1:
            place = 0 if repeat > 1 else -repeat
            head = layer - place * (self.end[layer] - layer)
            run = -head - 1
            self.open_rows.add(run)
            if self.structure.repeat[head] > WIDE:
                self.open_rows.add(self._range(run, place // RANGE))
        parent = self.structure.parent[layer]
        starts = self.structure.wide.get(parent)
        above = None if parent < 0 else parent
        if starts:
            above = self._range(above, bisect_right(starts, head) - 1)
            self.open_rows.add(above)
        if self.is_gathered(head) and not (parent >= 0 and self.is_gathered(parent)):
            self.open_rows.add(self._constants_row(above))
