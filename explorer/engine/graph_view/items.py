"""Items of a graph view: which rows of the tree are drawn, and which of them are one box together.

Groups are opened level by level while there is room, or one by one in their place; runs of equal groups stay
one box but for those that are opened; of so many neighbours that no picture holds them some are one box.
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
"""How far around a layer its neighbourhood goes."""
MAX_READERS = 24
"""Readers of one tensor that belong to a neighbourhood."""

Span = tuple[int, int]
"""Rows, from the first to behind the last."""


class Item(Struct):
    """A box in the making: the rows that it stands for, whether they are equal groups, and which call."""

    rows: Sequence[int]
    run: bool = False
    call: int = 0

    @property
    def is_part(self) -> bool:
        """Whether it is neighbours that have nothing in common."""
        return len(self.rows) > 1 and not self.run

    def rows_span(self, tree: TreeRows) -> Span:
        """From its first row to behind its last."""
        return self.rows[0], tree.ends[self.rows[-1]]

    def span(self, tree: TreeRows) -> Span:
        """What is opened with it: of a run the first group."""
        return self.rows_span(tree) if self.is_part else (self.rows[0], tree.ends[self.rows[0]])

    def inside(self, tree: TreeRows) -> Iterator[int]:
        """The rows that stand in its place when it is opened."""
        return iter(self.rows) if self.is_part else tree.children(self.rows[0])


class OpenedGroups:
    """What is opened in its place, and what has to be seen.

    Args:
        unfolded: Groups and parts that are opened.
        seen: Rows of which each has its box.
    """

    def __init__(self, unfolded: Iterable[Span] = (), seen: Iterable[Span] = ()) -> None:
        self._unfolded = frozenset(unfolded)
        self._all = sorted({*self._unfolded, *seen})

    def __bool__(self) -> bool:
        return bool(self._all)

    def opens(self, span: Span) -> bool:
        """Whether a group or part is opened: it was asked for, or something in it."""
        if span in self._unfolded:
            return True
        at = bisect_left(self._all, (span[0], 0))
        while at < len(self._all) and self._all[at][0] < span[1]:
            if self._all[at] != span and self._all[at][1] <= span[1]:
                return True
            at += 1
        return False

    def names(self, span: Span) -> bool:
        """Whether a group is one of them, or opened."""
        return span in self._all or self.opens(span)


def sibling_items(tree: TreeRows, rows: Iterable[int], opened: OpenedGroups) -> Iterator[Item]:
    """Sibling rows as boxes: equal groups in a row are one, but for those that are opened or must be seen."""
    run: list[int] = []
    left = 0
    for row in rows:
        if tree.ends[row] == row + 1:
            if run:
                yield from _run(run)
                run = []
            left = 0
            yield Item((row,))
            continue
        repeat = tree.layers[row].repeat
        if repeat or not left:
            yield from _run(run)
            run, left = [], max(1, repeat)
        left -= 1
        if opened.names((row, tree.ends[row])):
            yield from _run(run)
            yield Item((row,))
            run = []
        else:
            run.append(row)
    yield from _run(run)


def _run(rows: list[int]) -> Iterator[Item]:
    if rows:
        yield Item(tuple(rows), run=len(rows) > 1)


def grouped_items(items: Sequence[Item], most: int) -> list[Item]:
    """No more items than `most`: neighbours together."""
    each = -(-len(items) // most)
    groups = [items[at : at + each] for at in range(0, len(items), max(1, each))]
    return [
        some[0] if len(some) == 1 else Item(tuple([row for item in some for row in item.rows]))
        for some in groups
    ]


def by_level(
    tree: TreeRows, items: Sequence[Item], opened: OpenedGroups, depth: int | None, notes: list[str]
) -> tuple[list[Item], int]:
    """The items with groups opened level by level, and how many levels those are; `notes` get what to say."""
    if len(items) > MAX_BOXES:
        notes.append(f"{len(items):,} layers stand beside each other: neighbours are drawn as one box")
        items = grouped_items(items, ENOUGH)
    level, current = 1, [*items]
    while depth is None or level < depth:
        following: list[Item] = []
        closed = 0
        for at, item in enumerate(current):
            # tiles and runs are looked into one by one
            opens = len(item.rows) == 1 and not tree.layers[item.rows[0]].tiled
            inside = [*sibling_items(tree, item.inside(tree), opened)] if opens else []
            if inside and len(following) + len(inside) + len(current) - at - 1 <= MAX_BOXES:
                following += inside
            else:
                following.append(item)
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
    tree: TreeRows, items: Sequence[Item], opened: OpenedGroups, notes: list[str], done: list[Span]
) -> list[Item]:
    """The items with those opened in their place that have to be; `done` gets what they are."""
    found: list[Item] = []
    room, closed = MAX_BOXES - len(items), 0
    waiting = [*reversed(items)]
    while waiting:
        item = waiting.pop()
        span = item.span(tree)
        inside: list[Item] = []
        if opened.opens(span):
            inside = _inside(tree, item, opened)
        if len(inside) - 1 > room:
            closed += room < 1
            inside = grouped_items(inside, min(ENOUGH, room + 1)) if room > 0 else []
        if inside:
            done.append(span)
            room -= len(inside) - 1
            waiting += reversed(inside)
        else:
            found.append(item)
    if closed:
        notes.append(_closed(closed))
    return found


def _inside(tree: TreeRows, item: Item, opened: OpenedGroups) -> list[Item]:
    """What stands in a box; of a group that holds one group alone what stands in that."""
    inside = [*sibling_items(tree, item.inside(tree), opened)]
    while len(inside) == 1 and inside[0].span(tree)[1] > inside[0].rows[0] + 1:
        inside = [*sibling_items(tree, inside[0].inside(tree), opened)]
    return inside


def _closed(groups: int) -> str:
    stay = "group stays" if groups == 1 else "groups stay"
    return f"{groups:,} {stay} closed: a drawing has at most {MAX_BOXES} boxes"


def around(tree: TreeRows, row: int, steps: int) -> list[Item]:
    """A layer or group, and the layers that feed and read it, as far as `steps` edges away."""
    flow, own = tree.flow, range(row, tree.ends[row])
    found: set[int] = set()
    front: Sequence[int] = own
    # around what is folded away elsewhere stands more of it
    seen = tree.count if tree.count(row) else lambda other: 1
    for _ in range(steps):
        further: list[int] = []
        for at in front:
            makers = [value.maker for value in flow.read.get(at, ())]
            readers = [reader for value in flow.made.get(at, ()) for reader in value.readers[:MAX_READERS]]
            for other in (*makers, *readers):
                new = other >= 0 and other not in own and other not in found
                if new and tree.ends[other] == other + 1 and seen(other):
                    found.add(other)
                    further.append(other)
        front = further
        if len(found) > MAX_BOXES:
            break
    nearest = sorted(found, key=lambda at: abs(at - row))[: MAX_BOXES - 1]
    return [Item((at,)) for at in sorted([row, *nearest])]
