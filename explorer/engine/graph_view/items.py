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
"""Maximum number of boxes of a drawing whose levels are opened without a request of the user."""
MAX_BOXES = 300
"""Maximum number of boxes of a drawing."""
DEFAULT_STEPS = 2
"""Default distance from a layer to the border of its neighborhood, in edges."""
MAX_READERS = 24
"""Maximum number of readers of one tensor in a neighborhood."""

Span = tuple[int, int]
"""First row, and the row after the last one."""


class BoxDraft(Struct):
    """A box before it is drawn.

    Attributes:
        rows: Rows that the box shows.
        is_run: Whether the rows are equal groups that follow each other.
        is_sum: Whether the rows are matrix products and the sum that reads them.
        call: Number of the call of a layer that the box shows, or 0 for all calls.
    """

    rows: Sequence[int]
    is_run: bool = False
    is_sum: bool = False
    call: int = 0

    @property
    def is_part(self) -> bool:
        """Whether the box combines different neighboring rows."""
        return len(self.rows) > 1 and not self.is_run

    def get_rows_span(self, tree: TreeRows) -> Span:
        """Returns the span of all rows of the box."""
        return self.rows[0], tree.ends[self.rows[-1]]

    def get_opening_span(self, tree: TreeRows) -> Span:
        """Returns the span that is opened when the user opens the box.

        For a run of equal groups, it is the span of the first group.
        """
        return self.get_rows_span(tree) if self.is_part else (self.rows[0], tree.ends[self.rows[0]])

    def list_content_rows(self, tree: TreeRows) -> Iterator[int]:
        """Yields the rows that replace the box when it is opened."""
        return iter(self.rows) if self.is_part else tree.list_children(self.rows[0])


class OpenedGroups:
    """The groups that are opened in place, and the rows that must be visible.

    Args:
        unfolded: Spans of groups and parts that are opened.
        visible: Spans of rows that need a box of their own.
    """

    def __init__(self, unfolded: Iterable[Span] = (), visible: Iterable[Span] = ()) -> None:
        self._unfolded = frozenset(unfolded)
        self._shown_spans = sorted({*self._unfolded, *visible})

    def __bool__(self) -> bool:
        return bool(self._shown_spans)

    def opens(self, span: Span) -> bool:
        """Whether a group or part is opened: it is unfolded, or contains an unfolded or visible span."""
        if span in self._unfolded:
            return True
        index = bisect_left(self._shown_spans, (span[0], 0))
        while index < len(self._shown_spans) and self._shown_spans[index][0] < span[1]:
            if self._shown_spans[index] != span and self._shown_spans[index][1] <= span[1]:
                return True
            index += 1
        return False

    def needs_own_box(self, span: Span) -> bool:
        """Whether a group must be visible or is opened. A run of groups must not contain such a group."""
        return span in self._shown_spans or self.opens(span)


def draft_rows(tree: TreeRows, rows: Iterable[int], opened: OpenedGroups) -> Iterator[BoxDraft]:
    """Yields drafts of the boxes of sibling rows.

    A run of equal groups is one box, except for the groups that are opened or must be visible.
    """
    run: list[int] = []
    remaining = 0  # groups that still belong to the current run
    for row in rows:
        if tree.ends[row] == row + 1:
            if run:
                yield from _draft_run(run)
                run = []
            remaining = 0
            yield BoxDraft((row,))
            continue
        repeat = tree.layers[row].repeat
        if repeat or not remaining:
            yield from _draft_run(run)
            run, remaining = [], max(1, repeat)
        remaining -= 1
        if opened.needs_own_box((row, tree.ends[row])):
            yield from _draft_run(run)
            yield BoxDraft((row,))
            run = []
        else:
            run.append(row)
    yield from _draft_run(run)


def draft_siblings(tree: TreeRows, rows: Iterable[int], opened: OpenedGroups) -> list[BoxDraft]:
    """Returns drafts of the boxes of sibling rows. If there are many, products and their sum share a box."""
    drafts = [*draft_rows(tree, rows, opened)]
    return drafts if len(drafts) <= MAX_AUTOMATIC_BOXES else _join_sums(tree, drafts)


def _join_sums(tree: TreeRows, drafts: list[BoxDraft]) -> list[BoxDraft]:
    """Combines tile products with the sum that reads them, for example of an output column of a tiled layer.

    Returns `drafts` themselves if all rows would share one box.
    """
    joined: list[BoxDraft] = []
    products: list[int] = []
    for draft in drafts:
        row = draft.rows[0]
        if len(draft.rows) == 1 and tree.layers[row].macs:
            products.append(row)
            continue
        makers = {value.maker for value in tree.flow.read.get(row, ())}
        is_sum = len(draft.rows) == 1 and len(products) > 1 and makers.issuperset(products)
        if is_sum:
            joined.append(BoxDraft((*products, row), is_sum=True))
        else:
            joined += [*(BoxDraft((product,)) for product in products), draft]
        products = []
    joined += [BoxDraft((product,)) for product in products]
    return joined if len(joined) > 1 else drafts


def _draft_run(rows: list[int]) -> Iterator[BoxDraft]:
    """Yields the draft of a run of equal groups, or nothing if there are no rows."""
    if rows:
        yield BoxDraft(tuple(rows), is_run=len(rows) > 1)


def group_drafts(drafts: Sequence[BoxDraft], max_count: int) -> list[BoxDraft]:
    """Combines neighboring drafts into at most `max_count` drafts."""
    group_size = -(-len(drafts) // max_count)
    groups = [drafts[start : start + group_size] for start in range(0, len(drafts), max(1, group_size))]
    return [
        group[0] if len(group) == 1 else BoxDraft(tuple([row for draft in group for row in draft.rows]))
        for group in groups
    ]


def open_by_level(
    tree: TreeRows, drafts: Sequence[BoxDraft], opened: OpenedGroups, depth: int | None, notes: list[str]
) -> tuple[list[BoxDraft], int]:
    """Opens groups level by level while there is room.

    Args:
        tree: Rows and edges of the model.
        drafts: Drafts of the first level.
        opened: The groups that the user opened.
        depth: Number of levels, or None for as many as `MAX_AUTOMATIC_BOXES` allows.
        notes: Notes, to which the function adds.

    Returns:
        The drafts, and the number of levels.
    """
    if len(drafts) > MAX_BOXES:
        notes.append(f"{len(drafts):,} layers stand beside each other: neighbors are drawn as one box")
        drafts = group_drafts(drafts, MAX_AUTOMATIC_BOXES)
    level, current = 1, [*drafts]
    while depth is None or level < depth:
        following: list[BoxDraft] = []
        closed_count = 0
        for index, draft in enumerate(current):
            # tiles and runs of groups are opened only on request
            can_open = draft.is_sum or (len(draft.rows) == 1 and not tree.layers[draft.rows[0]].tiled)
            content = draft_siblings(tree, draft.list_content_rows(tree), opened) if can_open else []
            if content and len(following) + len(content) + len(current) - index - 1 <= MAX_BOXES:
                following += content
            else:
                following.append(draft)
                closed_count += bool(content)
        if len(following) == len(current) and not closed_count:
            break
        if depth is None and len(following) > MAX_AUTOMATIC_BOXES:
            break
        current, level = following, level + 1
        if closed_count:
            notes.append(_describe_closed(closed_count))
            break
    return current, level


def unfold_drafts(
    tree: TreeRows,
    drafts: Sequence[BoxDraft],
    opened: OpenedGroups,
    notes: list[str],
    opened_spans: list[Span],
) -> list[BoxDraft]:
    """Opens the groups in `opened` in place while there is room.

    Args:
        tree: Rows and edges of the model.
        drafts: The drafts.
        opened: The groups that the user opened.
        notes: Notes, to which the function adds.
        opened_spans: Spans of the groups that were opened, to which the function adds.
    """
    unfolded: list[BoxDraft] = []
    boxes_left, closed_count = MAX_BOXES - len(drafts), 0
    pending = [*reversed(drafts)]
    while pending:
        draft = pending.pop()
        span = draft.get_opening_span(tree)
        content: list[BoxDraft] = []
        if opened.opens(span):
            content = _draft_content(tree, draft, opened)
        if len(content) - 1 > boxes_left and boxes_left > 0:
            content = group_drafts(content, min(MAX_AUTOMATIC_BOXES, boxes_left + 1))
        elif len(content) - 1 > boxes_left:
            content = []
            closed_count += 1
        if content:
            opened_spans.append(span)
            boxes_left -= len(content) - 1
            pending += reversed(content)
        else:
            unfolded.append(draft)
    if closed_count:
        notes.append(_describe_closed(closed_count))
    return unfolded


def _draft_content(tree: TreeRows, draft: BoxDraft, opened: OpenedGroups) -> list[BoxDraft]:
    """Returns drafts of the content of a box. If the content is a single group, its content is returned."""
    content = draft_siblings(tree, draft.list_content_rows(tree), opened)
    while len(content) == 1 and content[0].get_opening_span(tree)[1] > content[0].rows[0] + 1:
        content = draft_siblings(tree, content[0].list_content_rows(tree), opened)
    return content


def _describe_closed(groups: int) -> str:
    stay = "group stays" if groups == 1 else "groups stay"
    return f"{groups:,} {stay} closed: a drawing has at most {MAX_BOXES} boxes"


def draft_neighborhood(tree: TreeRows, row: int, steps: int) -> list[BoxDraft]:
    """Returns drafts of a layer or group and of the layers up to `steps` edges away, at most `MAX_BOXES`.

    Of the readers of one tensor, only the first `MAX_READERS` count.
    """
    flow, own_rows = tree.flow, range(row, tree.ends[row])
    near_rows: set[int] = set()
    last_rows: Sequence[int] = own_rows
    is_hidden = not tree.count_leaves(row)
    for _ in range(steps):
        new_rows: list[int] = []
        for near_row in last_rows:
            producers = [value.maker for value in flow.read.get(near_row, ())]
            readers = [
                reader for value in flow.made.get(near_row, ()) for reader in value.readers[:MAX_READERS]
            ]
            for neighbor in (*producers, *readers):
                is_new = neighbor >= 0 and neighbor not in own_rows and neighbor not in near_rows
                # only the neighborhood of a hidden layer includes other hidden layers
                if (
                    is_new
                    and tree.ends[neighbor] == neighbor + 1
                    and (is_hidden or tree.count_leaves(neighbor))
                ):
                    near_rows.add(neighbor)
                    new_rows.append(neighbor)
        last_rows = new_rows
        if len(near_rows) > MAX_BOXES:
            break
    nearest = sorted(near_rows, key=lambda near_row: abs(near_row - row))[: MAX_BOXES - 1]
    return [BoxDraft((near_row,)) for near_row in sorted([row, *nearest])]
