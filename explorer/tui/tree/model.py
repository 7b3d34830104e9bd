"""Tree model: the visible rows of the layer tree, their order, and which of them are open.

The model builds child rows when their parent is opened. It needs no terminal, so tests run it directly.
`explorer.tui.tree.rows` defines the rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct

from explorer.session.cache.rows import GROUP, MAX_PLAIN_CHILDREN, RANGE
from explorer.tui.tree.rows import METRICS, FoldedRows, Metric, find_metric, is_known, list_columns

if TYPE_CHECKING:
    from explorer.facts import Layer


_OPEN_AT_FIRST = 60
"""Maximum number of rows in a new tree, whose groups are opened level by level."""
_MAX_OPENED_LAYERS = 20
"""Number of layers in a group above which it stays closed at first if a filter matches all of them."""
MATCHES = 2_000
"""Maximum number of matching layers that the tree shows. Further matches are only counted."""


class TreeShape(Struct, frozen=True):
    """View settings of a tree that can be applied to a tree with other layers.

    Attributes:
        metric: ID of the metric that rows are sorted by; an unknown ID selects the default metric.
        by_cost: Whether siblings are sorted by the metric instead of execution order.
        open_rows: Open rows, as pairs of a layer path and whether the row is the run that starts at this
            layer.
        turned: Whether the sort order is reversed (smallest first).
        columns: Column names of the table from left to right; empty for the default columns.
        flat: Whether layers are listed without the groups around them.
        constants: Whether constants and shape arithmetic appear among the other rows.
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
        layers: Layers in pre-order, as `facts.Analysis` lists them.

    Attributes:
        metric, by_cost, turned, columns, flat: See `TreeShape`; `metric` is the metric itself.
        open_rows: Open rows without a filter.
        rows: Visible rows in display order.
        matches: IDs of the layers that the filter shows, or None without a filter.
        match_count: Number of layers that the filter has matched so far, including those that are not shown.
        searched: Number of layers that an unfinished search has examined, or None without one.
        constants: Whether constants and shape arithmetic appear among the other rows. If False, each group
            folds them into one row.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__(layers)
        self._is_metric_chosen = False  # whether the user has chosen the metric
        self.metric = self._choose_first_metric()
        self.by_cost = False
        self.turned = False
        self.columns: tuple[str, ...] = ()
        self.flat = False
        self.constants = False
        self._constants = b""  # 1 for each layer with only constants and shape arithmetic; empty without any
        self.open_rows: set[int] = set()
        self.matches: set[int] | None = None
        self.match_count = 0
        self.searched: int | None = None
        self._matching: tuple[list[int], list[int]] = ([], [])  # matches without constants, and constants
        self._constant_matches = 0
        self._constant_leaves: int | None = None
        self._visible_children: dict[int, list[int]] = {}
        self._user_opened: dict[int, bool] = {}  # rows that the user opened (True) or closed under a filter
        self._whole_matches: set[int] = (
            set()
        )  # large groups that match with all their layers: closed at first
        self._open_matches: frozenset[int] | None = None
        self._parents: dict[int, int | None] = {}
        self._depths: dict[int, int] = {}
        self._paths: dict[int, str] = {}
        self.rows: list[int] = []
        self._open_first_levels()
        self.rebuild()

    # structure of the visible rows

    def depth(self, row: int) -> int:
        """Return the indentation level of a visible row. Open runs and open ranges count as levels."""
        return self._depths[row]

    def is_expandable(self, row: int) -> bool:
        """Whether the row has child rows."""
        if row < 0:
            return True
        if self.flat or self.end[row] <= row + 1:
            return False
        return self.matches is None or row in self._visible_children

    def is_open(self, row: int) -> bool:
        """Whether the children of the row are visible."""
        if self.matches is None:
            return row in self.open_rows
        is_open = row not in self._whole_matches
        if self._open_matches is not None:
            is_open = row in self._open_matches
        return self._user_opened.get(row, is_open)

    def value(self, row: int) -> tuple[float | None, str]:
        """Return the row's value in the current metric, and its sign: '≤', '≥', '≈', or '' if exact."""
        return self.figure(row, self.metric)

    def children(self, row: int | None) -> Iterator[int]:
        """Iterate over the child rows of `row` in display order; None stands for the root."""
        if self.flat:
            return iter(self._list_flat_rows() if row is None else ())
        rows: Iterable[int]
        if self.matches is not None:
            rows = self._visible_children.get(-1 if row is None else row, ())
        elif row is None or row >= 0:
            rows = self._list_children(row)
        elif self.is_constants(row):
            rows = self._fold_runs(self.members(row))
        elif row >= -self.count:
            members = self.members(row)
            rows = self._list_ranges(row) if len(members) > MAX_PLAIN_CHILDREN else members
        elif (container := self._ranges[-row - self.count - 1][0]) is not None and container < 0:
            rows = self.members(row)
        else:
            rows = self._merge_constants(row, self._fold_runs(self._iterate_siblings(*self._find_span(row))))
        if self.by_cost:
            sign = 1 if self.turned else -1
            # unknown values come last in both directions
            values = ((self.value(layer)[0], layer) for layer in rows)
            ranked = sorted(
                (value is None, sign * (value or 0), place, layer)
                for place, (value, layer) in enumerate(values)
            )
            rows = [layer for *_, layer in ranked]
        return iter(rows)

    def _list_flat_rows(self) -> list[int]:
        """Return the layers of the flat list, without groups: the first or the largest `MATCHES` of them."""
        flags, column = self.structure.flags, self.column(self.metric)
        candidates: Iterable[int] = range(self.count) if self.matches is None else sorted(self.matches)
        if self.matches is None and (folds := self._folds):
            candidates = (layer for layer in candidates if not folds[layer])
        leaves = (layer for layer in candidates if not flags[layer] & GROUP)
        if not self.by_cost or column is None:
            return list(islice(leaves, MATCHES))
        sign, lacking = (1 if self.turned else -1), float("inf")

        def place(layer: int) -> float:
            return sign * column[layer] if is_known(column[layer], self.metric) else lacking

        return nsmallest(MATCHES, leaves, key=place)

    def _list_children(self, row: int | None) -> Iterable[int]:
        if (-1 if row is None else row) in self.structure.wide:
            return self._list_ranges(row)
        start, stop = (0, self.count) if row is None else (row + 1, self.end[row])
        return self._merge_constants(row, self._fold_runs(self._iterate_siblings(start, stop)))

    def _merge_constants(self, container: int | None, rows: Iterable[int]) -> Iterator[int]:
        """Yield the child rows of `container`. One row, at the first constant, replaces all constants."""
        folds, place = self._folds, None
        group = (
            -1
            if container is None
            else container
            if container >= 0
            else self.structure.parent[self.find_first_layer(container)]
        )
        if not folds or (group >= 0 and folds[group]):
            yield from rows
            return
        for row in rows:
            if not folds[row if row >= 0 else -row - 1]:
                yield row
                continue
            if place is None:
                yield (place := self._find_constants_row(container))
            # a cursor on a folded constant moves to the row that hides it
            self._parents[row] = place

    def _open_first_levels(self) -> None:
        """Open the groups level by level, as long as at most `_OPEN_AT_FIRST` rows are visible."""
        level = list(self.children(None))
        count = len(level)
        while level and count <= _OPEN_AT_FIRST:
            next_level: list[int] = []
            for row in level:
                if row >= 0 and self.end[row] > row + 1:
                    next_level += self.children(row)
                if count + len(next_level) > _OPEN_AT_FIRST:
                    return
            if not next_level:
                return
            self.open_rows.update(row for row in level if row >= 0 and self.end[row] > row + 1)
            count += len(next_level)
            level = next_level

    def rebuild(self) -> None:
        """Recompute the list of visible rows after a change of the order or the filter."""
        self.rows = list(self._list_visible_rows(None))

    def _list_visible_rows(self, row: int | None) -> Iterator[int]:
        """Yield the visible rows below `row`, and store the parent and the depth of each."""
        parents, depths = self._parents, self._depths
        stack = [(row, self.children(row))]
        base = 0 if row is None else depths[row] + 1
        while stack:
            parent, children = stack[-1]
            child = next(children, None)
            if child is None:
                stack.pop()
                continue
            parents[child], depths[child] = parent, base + len(stack) - 1
            yield child
            if self.is_open(child) and self.is_expandable(child):
                stack.append((child, self.children(child)))

    # user actions

    def toggle(self, index: int) -> bool:
        """Open or close the row at `index`. Returns whether anything changed."""
        row = self.rows[index]
        if not self.is_expandable(row):
            return False
        if self.is_open(row):
            depth, stop = self._depths[row], index + 1
            while stop < len(self.rows) and self._depths[self.rows[stop]] > depth:
                stop += 1
            del self.rows[index + 1 : stop]
            self._set_open(row, False)
        else:
            self._set_open(row, True)
            self.rows[index + 1 : index + 1] = list(self._list_visible_rows(row))
        return True

    def _set_open(self, row: int, opened: bool) -> None:
        if self.matches is not None:
            self._user_opened[row] = opened
        else:
            (self.open_rows.add if opened else self.open_rows.discard)(row)

    def parent_row(self, row: int) -> int | None:
        """Return the parent row of a visible row, or None at the top level."""
        return self._parents.get(row)

    def parent_index(self, index: int) -> int | None:
        """Return the index of the parent of the row at `index`, or None at the top level."""
        row = self._parents.get(self.rows[index])
        return None if row is None else self.rows.index(row, 0, index)

    def fold_all(self) -> None:
        """Close all rows."""
        if self.matches is not None:
            self._user_opened = dict.fromkeys(self._visible_children, False)
        else:
            self.open_rows.clear()
        self.rebuild()

    def set_filter(self, matches: Iterable[int] | None, open_rows: frozenset[int] | None = None) -> None:
        """Show only `matches` and their ancestors; None removes the filter.

        Groups are open, except large groups whose layers all match, as with a filter that is a part of their
        path. With `open_rows`, only these groups are open.
        """
        self.matches = None if matches is None else set()
        self.match_count = self._constant_matches = 0
        self._matching = ([], [])
        self._user_opened, self._open_matches = {}, open_rows
        self._visible_children, self._whole_matches = {}, set()
        if not self.add_matches(matches or ()):
            self.rebuild()

    def add_matches(self, matches: Iterable[int]) -> bool:
        """Add further matches of the current filter, in tree order. The tree shows at most `MATCHES` of them.

        Folded constants stay hidden as long as the filter matches any other layer.

        Returns whether the visible rows changed.
        """
        marks, is_extended = self._constants, False
        for match in matches:
            constant = bool(marks) and bool(marks[match])
            self.match_count += 1
            self._constant_matches += constant
            if len(self._matching[constant]) < MATCHES:
                self._matching[constant].append(match)
                is_extended = True
        is_changed = is_extended and self._update_matches()  # in a large model most matches are only counted
        if is_changed:
            self.rebuild()
        return is_changed

    @property
    def hidden_constants(self) -> int:
        """Number of folded constants that match the filter, or that the flat list leaves out."""
        if self.matches is not None:
            return self._constant_matches if self._folds and self._matching[0] else 0
        if not self.flat or not self._folds:
            return 0
        if self._constant_leaves is None:
            flags, folds = self.structure.flags, self._folds
            self._constant_leaves = sum(
                folds[layer] and not flags[layer] & GROUP for layer in range(self.count)
            )
        return self._constant_leaves

    def _update_matches(self) -> bool:
        """Recompute the shown matches and their ancestors. Returns whether the matches changed."""
        if self.matches is None:
            return False
        plain, constant = self._matching
        shown_matches = (
            plain if not constant or (self._folds and plain) else sorted(plain + constant)[:MATCHES]
        )
        if self.matches == set(shown_matches):
            return False
        self.matches, self._visible_children = set(shown_matches), {}
        self._whole_matches = set(self._find_whole_matches(shown_matches))
        visible_children, parent = self._visible_children, self.structure.parent
        for match in shown_matches:
            child, row = match, parent[match]
            while True:
                siblings = visible_children.get(row)
                if siblings is None:
                    visible_children[row] = [child]
                elif siblings[-1] != child:
                    siblings.append(child)
                if siblings is not None or row < 0:
                    break
                child, row = row, parent[row]
        return True

    def _find_whole_matches(self, matches: Sequence[int]) -> Iterator[int]:
        """Yield the large groups among `matches` whose layers all match, up to the last match so far."""
        has_constants = not self._folds or not self._matching[0]
        for index, row in enumerate(matches):
            stop = min(self.end[row], matches[-1] + 1)
            if self.end[row] - row <= _MAX_OPENED_LAYERS:
                continue
            hidden_count = 0 if has_constants else sum(map(bool, self._folds[row:stop]))
            if bisect_left(matches, stop) - index == stop - row - hidden_count:
                yield row

    @property
    def open_matches(self) -> frozenset[str] | None:
        """Paths of the groups that are open under the filter, or None without a filter."""
        if self.matches is None:
            return None
        return frozenset(
            self._get_path(row) for row in self._visible_children if row >= 0 and self.is_open(row)
        )

    @property
    def is_full(self) -> bool:
        """Whether the tree shows `MATCHES` matches, so that further matches are only counted."""
        return self.matches is not None and len(self.matches) >= MATCHES

    @property
    def shape(self) -> TreeShape:
        """The current view settings."""
        opened = frozenset(
            (self._get_path(self.find_first_layer(row)), row < 0)
            for row in self.open_rows
            if not self.is_range(row)
        )
        order = (self.by_cost, opened, self.turned, self.columns, self.flat, self.constants)
        return TreeShape(self._metric_id, *order)

    @property
    def _metric_id(self) -> str:
        """ID of the metric, or '' for the second metric if it is the default because the first is unknown."""
        return self.metric.id if self._is_metric_chosen or self.metric is METRICS[0] else ""

    def _choose_first_metric(self) -> Metric:
        """Return the default metric: MACs, or parameters for a file of tensors, whose MACs are unknown."""
        known_columns = self.structure.known_columns
        return (
            METRICS[1]
            if METRICS[0].array not in known_columns and METRICS[1].array in known_columns
            else METRICS[0]
        )

    def _get_path(self, layer: int) -> str:
        path = self._paths.get(layer)
        if path is None:
            path = self._paths[layer] = self.layers[layer].path
        return path

    def apply_shape(self, shape: TreeShape, ids: Mapping[str, int] | None = None) -> None:
        """Apply the view settings of another tree, so that the tree looks the same after a model change.

        Open rows are matched by path. If no path matches, the open rows of this tree stay open.

        Args:
            shape: View settings to apply.
            ids: Layer ID by path, or None to look the paths up in `layers`.
        """
        metric = find_metric(shape.metric, list_columns(self) if self.overlay else None) or METRICS[0]
        self._is_metric_chosen = metric is not METRICS[0]
        self.metric = metric if self._is_metric_chosen else self._choose_first_metric()
        self.by_cost, self.turned, self.columns = shape.by_cost, shape.turned, shape.columns
        self.flat = shape.flat
        self._show_constants(shape.constants)
        opened: set[int] = set()
        if shape.open_rows:
            if ids is None:
                paths = {path for path, _ in shape.open_rows}
                ids = {facts.path: facts.id for facts in self.layers if facts.path in paths}
            for path, is_run in shape.open_rows:
                layer = ids.get(path)
                if (
                    layer is not None
                    and layer < self.count
                    and (not is_run or self.structure.repeat[layer] > 1)
                ):
                    opened.add(-layer - 1 if is_run else layer)
        self.open_rows = opened or self.open_rows
        self.rebuild()

    def grow_from(self, previous: TreeModel) -> None:
        """Take over the view settings of a tree whose layers are the first layers of this one."""
        self.by_cost, self._is_metric_chosen = previous.by_cost, previous._is_metric_chosen
        self.turned, self.columns, self.flat = previous.turned, previous.columns, previous.flat
        if previous._is_metric_chosen:
            self.metric = previous.metric
        repeat = self.structure.repeat
        self.open_rows = {
            row
            for row in previous.open_rows
            if row >= 0 or (not previous.is_range(row) and repeat[previous.find_first_layer(row)] > 1)
        }
        self._ranges, self._range_of, self._constants_by_row, self._listed = [], {}, {}, {}
        self.forget_sums()
        self._show_constants(previous.constants)
        self.rebuild()

    def index_of(self, layer: int | None, otherwise: int, *, run: bool = False) -> int:
        """Return the index of the visible row of a layer, or `otherwise` if it is not visible.

        With `run`, the row of the run that starts at the layer is preferred; otherwise the layer's own row.
        """
        if layer is not None:
            for row in (-layer - 1, layer) if run else (layer, -layer - 1):
                with suppress(ValueError):
                    return self.rows.index(row)
        return otherwise

    def set_order(self, *, by_cost: bool, turned: bool = False) -> None:
        """Sort siblings by the current metric (`turned`: smallest first), or in execution order."""
        self.by_cost, self.turned = by_cost, turned
        self.rebuild()

    def set_columns(self, columns: tuple[str, ...]) -> None:
        """Set the columns of the table; empty for the default columns."""
        self.columns = columns

    def set_flat(self, flat: bool) -> None:
        """Show either a flat list of the layers without groups, or the tree."""
        self.flat = flat
        self.rebuild()

    def set_constants(self, rows: Iterable[int]) -> None:
        """Set which layers contain only constants and shape arithmetic."""
        marks = bytearray(self.count)
        for row in rows:
            marks[row] = 1
        self._constants = bytes(marks) if 1 in marks else b""
        matching = sorted(self._matching[0] + self._matching[1])
        self._matching = (
            [layer for layer in matching if not marks[layer]],
            [layer for layer in matching if marks[layer]],
        )
        self._constant_matches = len(self._matching[1])
        self._constants_by_row.clear()
        self.forget_sums()
        self.show_constants(self.constants)

    def show_constants(self, is_shown: bool) -> None:
        """Show constants and shape arithmetic among the other rows, or fold them into one row a group."""
        self._show_constants(is_shown)
        self.rebuild()

    def _show_constants(self, is_shown: bool) -> None:
        self.constants, self._constant_leaves = is_shown, None
        self._folds = b"" if is_shown else self._constants
        self._update_matches()

    def next_order(self) -> None:
        """Cycle the order: execution order, largest first, smallest first."""
        self.set_order(by_cost=not self.turned, turned=self.by_cost and not self.turned)

    def sort_by(self, metric: Metric) -> None:
        """Sort by `metric`. If it is the current metric, switch to the next order instead."""
        if metric is self.metric:
            self.next_order()
        else:
            self.set_metric(metric)
            self.set_order(by_cost=True)

    def set_metric(self, metric: Metric) -> None:
        """Set the metric, and re-sort the rows if they are sorted."""
        self.metric, self._is_metric_chosen = metric, True
        if self.by_cost:
            self.rebuild()

    def reveal(self, layer: int) -> int:
        """Open all rows that contain `layer`. Returns the index of its row, or 0 if a filter hides it."""
        if self.flat and layer not in self.rows:
            self.flat = False  # the flat list has no groups, and at most MATCHES layers
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
        """Open the run, the range and the constants row that hide a layer among its siblings."""
        repeat = self.structure.repeat[layer]
        head = layer
        if repeat != 1:
            place = 0 if repeat > 1 else -repeat
            head = layer - place * (self.end[layer] - layer)
            run = -head - 1
            self.open_rows.add(run)
            if self.structure.repeat[head] > MAX_PLAIN_CHILDREN:
                self.open_rows.add(self._find_range_row(run, place // RANGE))
        parent = self.structure.parent[layer]
        starts = self.structure.wide.get(parent)
        container = None if parent < 0 else parent
        if starts:
            container = self._find_range_row(container, bisect_right(starts, head) - 1)
            self.open_rows.add(container)
        if self.is_gathered(head) and not (parent >= 0 and self.is_gathered(parent)):
            self.open_rows.add(self._find_constants_row(container))
