"""Drafts of the boxes of a graph view: which rows of the tree are drawn, and which rows share a box.

Groups are opened level by level while there is room, or one by one in their place. A run of equal groups
stays one box, except for the groups that are opened. Neighbours too many for one picture share boxes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from explorer.engine.graph_view.rows import TreeRows

ENOUGH = 64
"""Boxes from which on no level is opened unless it was asked for."""
MAX_BOXES = 300
HOPS = 2
"""Edges from a layer to the border of its neighborhood, by default."""
MAX_READERS = 24
"""Most readers of one tensor that are part of a neighborhood."""

Span = tuple[int, int]
"""Rows, from the first to behind the last."""


class BoxDraft(Struct):
    """A box before it is drawn: its rows, whether they are equal groups, and which call of a layer."""

    rows: Sequence[int]
    run: bool = False
    call: int = 0

    @property
    def is_part(self) -> bool:
        """Whether it stands for neighbors that have nothing in common."""
        return len(self.rows) > 1 and not self.run

    def rows_span(self, tree: TreeRows) -> Span:
        """From its first row to behind its last."""
        return self.rows[0], tree.ends[self.rows[-1]]

    def span(self, tree: TreeRows) -> Span:
        """The rows that open with it: for a run of groups, the first group."""
        return self.rows_span(tree) if self.is_part else (self.rows[0], tree.ends[self.rows[0]])

    def inside(self, tree: TreeRows) -> Iterator[int]:
        """The rows that replace it when it is opened."""
        return iter(self.rows) if self.is_part else tree.children(self.rows[0])


class OpenedGroups:
    """The groups that are opened in place, and the rows that must be visible.

    Args:
        unfolded: Groups and parts that are opened.
        seen: Rows that each need a box of their own.
    """

    def __init__(self, unfolded: Iterable[Span] = (), visible: Iterable[Span] = ()) -> None:
        self._unfolded = frozenset(unfolded)
        self._all = sorted({*self._unfolded, *visible})

    def __bool__(self) -> bool:
        return bool(self._all)

    def opens(self, span: Span) -> bool:
        """Whether a group or part is opened: itself or something inside it was named."""
        if span in self._unfolded:
            return True
        at = bisect_left(self._all, (span[0], 0))
        while at < len(self._all) and self._all[at][0] < span[1]:
            if self._all[at] != span and self._all[at][1] <= span[1]:
                return True
            at += 1
        return False

    def names(self, span: Span) -> bool:
        """Whether a group must be visible or is opened."""
        return span in self._all or self.opens(span)


def sibling_items(tree: TreeRows, rows: Iterable[int], opened: OpenedGroups) -> Iterator[BoxDraft]:
    """Boxes of sibling rows: a run of equal groups is one box, unless some are opened or must be visible."""
    run: list[int] = []
    remaining = 0
    for row in rows:
        if tree.ends[row] == row + 1:
            if run:
                yield from _run(run)
                run = []
            remaining = 0
            yield BoxDraft((row,))
            continue
        repeat = tree.layers[row].repeat
        if repeat or not remaining:
            yield from _run(run)
            run, remaining = [], max(1, repeat)
        remaining -= 1
        if opened.names((row, tree.ends[row])):
            yield from _run(run)
            yield BoxDraft((row,))
            run = []
        else:
            run.append(row)
    yield from _run(run)


def _run(rows: list[int]) -> Iterator[BoxDraft]:
    if rows:
        yield BoxDraft(tuple(rows), run=len(rows) > 1)


def grouped_items(drafts: Sequence[BoxDraft], most: int) -> list[BoxDraft]:
    """At most `most` drafts: neighbours are joined."""
    each = -(-len(drafts) // most)
    groups = [drafts[at : at + each] for at in range(0, len(drafts), max(1, each))]
    return [
        some[0] if len(some) == 1 else BoxDraft(tuple([row for draft in some for row in draft.rows]))
        for some in groups
    ]


def by_level(
    tree: TreeRows, drafts: Sequence[BoxDraft], opened: OpenedGroups, depth: int | None, notes: list[str]
) -> tuple[list[BoxDraft], int]:
    """The drafts with groups opened level by level, and the number of levels; adds remarks to `notes`."""
    if len(drafts) > MAX_BOXES:
        notes.append(f"{len(drafts):,} layers stand beside each other: neighbours are drawn as one box")
        drafts = grouped_items(drafts, ENOUGH)
    level, current = 1, [*drafts]
    while depth is None or level < depth:
        following: list[BoxDraft] = []
        closed = 0
        for at, draft in enumerate(current):
            # tiles and runs of groups are not opened level by level
            opens = len(draft.rows) == 1 and not tree.layers[draft.rows[0]].tiled
            inside = [*sibling_items(tree, draft.inside(tree), opened)] if opens else []
            if inside and len(following) + len(inside) + len(current) - at - 1 <= MAX_BOXES:
                following += inside
            else:
                following.append(draft)
                closed += bool(inside)
        if len(following) == len(current) and not closed:
            break
        if depth is None and len(following) > ENOUGH:
            break
        current, level = following, level + 1
        if closed:
            notes.append(_closed(closed))
            break
    return current, level


def unfolded_items(
    tree: TreeRows, drafts: Sequence[BoxDraft], opened: OpenedGroups, notes: list[str], done: list[Span]
) -> list[BoxDraft]:
    """The drafts, with the groups opened that `opened` names; adds their rows to `done`."""
    unfolded: list[BoxDraft] = []
    room, closed = MAX_BOXES - len(drafts), 0
    waiting = [*reversed(drafts)]
    while waiting:
        draft = waiting.pop()
        span = draft.span(tree)
        inside: list[BoxDraft] = []
        if opened.opens(span):
            inside = _inside(tree, draft, opened)
        if len(inside) - 1 > room:
            closed += room < 1
            inside = grouped_items(inside, min(ENOUGH, room + 1)) if room > 0 else []
        if inside:
            done.append(span)
            room -= len(inside) - 1
            waiting += reversed(inside)
        else:
            unfolded.append(draft)
    if closed:
        notes.append(_closed(closed))
    return unfolded


def _inside(tree: TreeRows, draft: BoxDraft, opened: OpenedGroups) -> list[BoxDraft]:
    """The content of a box; of a group that holds a single group, the content of that group."""
    inside = [*sibling_items(tree, draft.inside(tree), opened)]
    while len(inside) == 1 and inside[0].span(tree)[1] > inside[0].rows[0] + 1:
        inside = [*sibling_items(tree, inside[0].inside(tree), opened)]
    return inside


def _closed(groups: int) -> str:
    stay = "group stays" if groups == 1 else "groups stay"
    return f"{groups:,} {stay} closed: a drawing has at most {MAX_BOXES} boxes"


def around(tree: TreeRows, row: int, steps: int) -> list[BoxDraft]:
    """A layer or group, and the layers that feed and read it, up to `steps` edges away."""
    flow, own_rows = tree.flow, range(row, tree.ends[row])
    near: set[int] = set()
    front: Sequence[int] = own_rows
    # the neighborhood of a layer that is normally hidden includes other hidden layers
    is_drawn = tree.count if tree.count(row) else lambda neighbor: 1
    for _ in range(steps):
        further: list[int] = []
        for at in front:
            makers = [value.maker for value in flow.read.get(at, ())]
            readers = [reader for value in flow.made.get(at, ()) for reader in value.readers[:MAX_READERS]]
            for neighbor in (*makers, *readers):
                new = neighbor >= 0 and neighbor not in own_rows and neighbor not in near
                if new and tree.ends[neighbor] == neighbor + 1 and is_drawn(neighbor):
                    near.add(neighbor)
                    further.append(neighbor)
        front = further
        if len(near) > MAX_BOXES:
            break
    nearest = sorted(near, key=lambda at: abs(at - row))[: MAX_BOXES - 1]
    return [BoxDraft((at,)) for at in sorted([row, *nearest])]
