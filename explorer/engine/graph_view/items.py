"""Drafts of the boxes of a graph view: which rows of the tree are drawn, and which rows share a box.

Groups are opened level by level while there is room, or one by one in place. A run of equal groups stays one
box, except for groups that are opened. If there are too many neighbors for one picture, several share a box.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from explorer.engine.graph_view.rows import TreeRows

MAX_AUTOMATIC_BOXES = 64
"""Number of boxes from which on no level is opened unless the user asks for it."""
MAX_BOXES = 300
HOPS = 2
"""Default distance from a layer to the border of its neighborhood, in edges."""
MAX_READERS = 24
"""Maximum number of readers of one tensor in a neighborhood."""

Span = tuple[int, int]
"""First row, and the row after the last one."""


class BoxDraft(Struct):
    """A box before it is drawn.

    Attributes:
        rows: Rows that the box shows.
        run: Whether the rows are equal groups.
        summed: Whether the rows are products and the sum that reads them.
        call: Number of the call of a layer that the box shows, or 0 for all calls.
    """

    rows: Sequence[int]
    run: bool = False
    summed: bool = False
    call: int = 0

    @property
    def is_part(self) -> bool:
        """Whether the box combines different neighboring rows."""
        return len(self.rows) > 1 and not self.run

    def rows_span(self, tree: TreeRows) -> Span:
        """Returns the span of all rows of the box."""
        return self.rows[0], tree.ends[self.rows[-1]]

    def span(self, tree: TreeRows) -> Span:
        """Returns the span that opens with the box: for a run of groups, the span of the first group."""
        return self.rows_span(tree) if self.is_part else (self.rows[0], tree.ends[self.rows[0]])

    def content_rows(self, tree: TreeRows) -> Iterator[int]:
        """Returns the rows that replace the box when it is opened."""
        return iter(self.rows) if self.is_part else tree.children(self.rows[0])


class OpenedGroups:
    """The groups that are opened in place, and the rows that must be visible.

    Args:
        unfolded: Spans of groups and parts that are opened.
        visible: Spans of rows that need a box of their own.
    """

    def __init__(self, unfolded: Iterable[Span] = (), visible: Iterable[Span] = ()) -> None:
        self._unfolded = frozenset(unfolded)
        self._all = sorted({*self._unfolded, *visible})

    def __bool__(self) -> bool:
        return bool(self._all)

    def opens(self, span: Span) -> bool:
        """Whether a group or part is opened, because it or a span inside it was passed."""
        if span in self._unfolded:
            return True
        index = bisect_left(self._all, (span[0], 0))
        while index < len(self._all) and self._all[index][0] < span[1]:
            if self._all[index] != span and self._all[index][1] <= span[1]:
                return True
            index += 1
        return False

    def names(self, span: Span) -> bool:
        """Whether a group must be visible or is opened."""
        return span in self._all or self.opens(span)


def sibling_items(tree: TreeRows, rows: Iterable[int], opened: OpenedGroups) -> Iterator[BoxDraft]:
    """Yields the boxes of sibling rows.

    A run of equal groups is one box, except for the groups that are opened or must be visible.
    """
    run: list[int] = []
    remaining = 0
    for row in rows:
        if tree.ends[row] == row + 1:
            if run:
                yield from _run_draft(run)
                run = []
            remaining = 0
            yield BoxDraft((row,))
            continue
        repeat = tree.layers[row].repeat
        if repeat or not remaining:
            yield from _run_draft(run)
            run, remaining = [], max(1, repeat)
        remaining -= 1
        if opened.names((row, tree.ends[row])):
            yield from _run_draft(run)
            yield BoxDraft((row,))
            run = []
        else:
            run.append(row)
    yield from _run_draft(run)


def sibling_drafts(tree: TreeRows, rows: Iterable[int], opened: OpenedGroups) -> list[BoxDraft]:
    """Returns the boxes of sibling rows. If there are many, products and their sum share a box."""
    drafts = [*sibling_items(tree, rows, opened)]
    return drafts if len(drafts) <= MAX_AUTOMATIC_BOXES else _join_sums(tree, drafts)


def _join_sums(tree: TreeRows, drafts: list[BoxDraft]) -> list[BoxDraft]:
    """Combines products with the sum that reads them: one output column of a tiled layer is one box."""
    summed: list[BoxDraft] = []
    products: list[int] = []
    for draft in drafts:
        row = draft.rows[0]
        if len(draft.rows) == 1 and tree.layers[row].macs:
            products.append(row)
            continue
        makers = {value.maker for value in tree.flow.read.get(row, ())}
        is_sum = len(draft.rows) == 1 and len(products) > 1 and makers.issuperset(products)
        summed += (
            [BoxDraft((*products, row), summed=True)]
            if is_sum
            else [*(BoxDraft((at,)) for at in products), draft]
        )
        products = []
    summed += [BoxDraft((at,)) for at in products]
    # a box of all rows would hide what it shows
    return summed if len(summed) > 1 else drafts


def _run_draft(rows: list[int]) -> Iterator[BoxDraft]:
    if rows:
        yield BoxDraft(tuple(rows), run=len(rows) > 1)


def group_items(drafts: Sequence[BoxDraft], most: int) -> list[BoxDraft]:
    """Combines neighboring drafts until there are at most `most`."""
    group_size = -(-len(drafts) // most)
    groups = [drafts[start : start + group_size] for start in range(0, len(drafts), max(1, group_size))]
    return [
        group[0] if len(group) == 1 else BoxDraft(tuple([row for draft in group for row in draft.rows]))
        for group in groups
    ]


def open_by_level(
    tree: TreeRows, drafts: Sequence[BoxDraft], opened: OpenedGroups, depth: int | None, notes: list[str]
) -> tuple[list[BoxDraft], int]:
    """Opens groups level by level. Returns the drafts and the number of levels, and adds to `notes`."""
    if len(drafts) > MAX_BOXES:
        notes.append(f"{len(drafts):,} layers stand beside each other: neighbors are drawn as one box")
        drafts = group_items(drafts, MAX_AUTOMATIC_BOXES)
    level, current = 1, [*drafts]
    while depth is None or level < depth:
        following: list[BoxDraft] = []
        closed_count = 0
        for index, draft in enumerate(current):
            # tiles and runs of groups are opened only on request
            can_open = draft.summed or (len(draft.rows) == 1 and not tree.layers[draft.rows[0]].tiled)
            inside = sibling_drafts(tree, draft.content_rows(tree), opened) if can_open else []
            if inside and len(following) + len(inside) + len(current) - index - 1 <= MAX_BOXES:
                following += inside
            else:
                following.append(draft)
                closed_count += bool(inside)
        if len(following) == len(current) and not closed_count:
            break
        if depth is None and len(following) > MAX_AUTOMATIC_BOXES:
            break
        current, level = following, level + 1
        if closed_count:
            notes.append(_describe_closed(closed_count))
            break
    return current, level


def unfold_items(
    tree: TreeRows,
    drafts: Sequence[BoxDraft],
    opened: OpenedGroups,
    notes: list[str],
    opened_spans: list[Span],
) -> list[BoxDraft]:
    """Opens the groups that `opened` names in the drafts, and adds their spans to `done`."""
    unfolded: list[BoxDraft] = []
    room, closed_count = MAX_BOXES - len(drafts), 0
    pending = [*reversed(drafts)]
    while pending:
        draft = pending.pop()
        span = draft.span(tree)
        inside: list[BoxDraft] = []
        if opened.opens(span):
            inside = _content(tree, draft, opened)
        if len(inside) - 1 > room:
            closed_count += room < 1
            inside = group_items(inside, min(MAX_AUTOMATIC_BOXES, room + 1)) if room > 0 else []
        if inside:
            opened_spans.append(span)
            room -= len(inside) - 1
            pending += reversed(inside)
        else:
            unfolded.append(draft)
    if closed_count:
        notes.append(_describe_closed(closed_count))
    return unfolded


def _content(tree: TreeRows, draft: BoxDraft, opened: OpenedGroups) -> list[BoxDraft]:
    """Returns the content of a box. A group with a single group as its content is skipped."""
    inside = sibling_drafts(tree, draft.content_rows(tree), opened)
    while len(inside) == 1 and inside[0].span(tree)[1] > inside[0].rows[0] + 1:
        inside = sibling_drafts(tree, inside[0].content_rows(tree), opened)
    return inside


def _describe_closed(groups: int) -> str:
    stay = "group stays" if groups == 1 else "groups stay"
    return f"{groups:,} {stay} closed: a drawing has at most {MAX_BOXES} boxes"


def neighborhood_items(tree: TreeRows, row: int, steps: int) -> list[BoxDraft]:
    """Returns drafts of a layer or group and of the layers up to `steps` edges away."""
    flow, own_rows = tree.flow, range(row, tree.ends[row])
    near_rows: set[int] = set()
    front: Sequence[int] = own_rows
    # the neighborhood of a hidden layer includes other hidden layers
    is_drawn = tree.count if tree.count(row) else lambda neighbor: 1
    for _ in range(steps):
        further: list[int] = []
        for near_row in front:
            producers = [value.maker for value in flow.read.get(near_row, ())]
            readers = [
                reader for value in flow.made.get(near_row, ()) for reader in value.readers[:MAX_READERS]
            ]
            for neighbor in (*producers, *readers):
                is_new = neighbor >= 0 and neighbor not in own_rows and neighbor not in near_rows
                if is_new and tree.ends[neighbor] == neighbor + 1 and is_drawn(neighbor):
                    near_rows.add(neighbor)
                    further.append(neighbor)
        front = further
        if len(near_rows) > MAX_BOXES:
            break
    nearest = sorted(near_rows, key=lambda near_row: abs(near_row - row))[: MAX_BOXES - 1]
    return [BoxDraft((near_row,)) for near_row in sorted([row, *nearest])]
