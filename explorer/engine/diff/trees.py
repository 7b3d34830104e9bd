"""Trees side by side: the layer trees of two models as one list of rows, each with its counterpart.

Layers belong together as the diff says (`links`). Groups do where most of what is in them does; a path that
both have counts as much as half of it. What the diff has no word for, the inside of loops and functions, is
paired up within groups that belong together: by name, then in order by kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from operator import attrgetter

from explorer.base.units import shape_text
from explorer.engine.costs.value_flow import ValueFlow
from explorer.engine.diff.links import RowLinks, TreePlaces, graph_links, row_graph, row_links
from explorer.engine.graph.model import Model
from explorer.engine.progress import Cancel, OnProgress, report, stop_if
from explorer.facts import Analysis, Layer
from explorer.facts.comparison import FIGURES, SAME, RowPair, RowSide, TreeDiff, TreeForm

_IN_ORDER = 2_000
"""Rows of a group that are paired up in order; of more by their names alone."""
_STEP = 4096


def tree_diff(
    before: Analysis,
    after: Analysis,
    *,
    form: TreeForm,
    graphs: tuple[Model, Model] | None = None,
    flows: tuple[ValueFlow | None, ValueFlow | None] = (None, None),
    known: Mapping[str, tuple[str, str]] | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> TreeDiff:
    """The layer trees of two models side by side.

    Args:
        before: One model.
        after: The other.
        form: What the trees are of.
        graphs: The ONNX graphs whose nodes the rows are; None for rows that are no nodes.
        flows: The edges between the rows of either, as far as they are known; not needed beside graphs.
        known: By path of the first, what the user of rows knows of their values: the state, what differs.
        on_progress: Told the phase.
        cancel: Asked between steps; True stops.

    Raises:
        Cancelled: `cancel` said so.
    """
    tell = partial(report, on_progress, cancel)
    tell("reading both trees", 0, 0)
    one, other = _Tree(before.layers), _Tree(after.layers)
    if graphs is not None:
        places = one.places(), other.places()
        links = graph_links(*graphs, places, tell, cancel)
    else:
        first, rows = row_graph(before.info, one.layers, one.end, flows[0])
        second, others = row_graph(after.info, other.layers, other.end, flows[1])
        links = row_links(first, second, (rows, others), tell)
        paths = {layer.path: layer.id for layer in before.layers} if known else {}
        links.said.update((paths[path], said) for path, said in (known or {}).items() if path in paths)
    tell("aligning both trees", 0, 0)
    merged = _Merge(one, other, links, cancel)
    merged.pair_unfolded()
    merged.pair_groups()
    merged.pair_rest()
    pairs = merged.rows()
    counts = Counter(row.status for row in pairs if merged.counts(row))
    return TreeDiff(
        before=before.info.model.source,
        after=after.info.model.source,
        rows=tuple(pairs),
        graph=tuple(links.graph),
        counts=tuple(counts.most_common()),
        equal=not any(row.status not in SAME for row in pairs) and not links.graph,
        form=form,
        values_compared=graphs is not None or known is not None,
        totals_before=before.info.totals,
        totals_after=after.info.totals,
    )


class _Tree:
    """The rows of one tree, as much of each as is looked at; `end` is behind the last row in it."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.sides: list[RowSide] = []
        self.parent: list[int] = []
        self.group: list[bool] = []
        self.tiled: set[int] = set()
        for layer in layers:
            output = layer.outputs[0].shape if layer.outputs else None
            figures = [getattr(layer, name) for name in FIGURES]
            self.sides.append(RowSide(layer.id, layer.path, layer.name, layer.kind_text, output, *figures))
            self.parent.append(-1 if layer.parent is None else layer.parent)
            self.group.append(layer.group)
            if layer.tiled:
                self.tiled.add(layer.id)
        self.end = list(range(1, len(self.sides) + 1))
        self.children: dict[int, list[int]] = {-1: []}
        for at in range(len(self.sides) - 1, -1, -1):
            above = self.parent[at]
            if above >= 0:
                self.end[above] = max(self.end[above], self.end[at])
            self.children.setdefault(above, []).append(at)
        for inside in self.children.values():
            inside.reverse()

    def places(self) -> TreePlaces:
        """Where the rows are."""
        rows = {side.path: (at, side.kind) for at, side in enumerate(self.sides)}
        return TreePlaces(rows, self.parent, self.end)


class _Merge:
    """Two trees on their way to one list."""

    def __init__(self, before: _Tree, after: _Tree, links: RowLinks, cancel: Cancel) -> None:
        self.before, self.after, self.links, self.cancel = before, after, links, cancel
        self.partner = links.partner
        self.back = {b: a for a, b in links.partner.items()}

    def join(self, a: int, b: int) -> None:
        """Two rows belong together."""
        self.partner[a] = b
        self.back[b] = a

    def pair_unfolded(self) -> None:
        """Pairs up a quantized layer with the group that it became: it and what dequantizes its weights."""
        one, other = self.before, self.after
        for a, b in list(self.partner.items()):
            above = other.parent[b]
            if self._status(a) != "quantized" or above < 0 or one.sides[a].name != other.sides[above].name:
                continue
            if not any(row in self.back for row in range(above, other.end[above]) if row != b):
                del self.back[b]
                self.join(a, above)

    def _status(self, a: int) -> str:
        return self.links.said.get(a, ("", ""))[0]

    def pair_groups(self) -> None:
        """Pairs up groups by what is in them, the innermost first."""
        one, other = self.before, self.after
        votes: dict[int, Counter[int]] = {}
        for a, b in self.partner.items():
            votes.setdefault(one.parent[a], Counter())[other.parent[b]] += 1
        paths = {side.path: at for at, side in enumerate(other.sides) if other.group[at]}
        for at in range(len(one.sides) - 1, -1, -1):
            if not one.group[at]:
                continue
            found = votes.pop(at, Counter())
            found.pop(-1, None)
            strength, size = sum(found.values()), one.end[at] - at
            same = paths.get(one.sides[at].path)
            if same is not None:
                found[same] += size // 2 + 1
            if at not in self.partner:
                best = next((b for b, _ in found.most_common() if b not in self.back), None)
                if best is not None and (
                    best == same or 2 * found[best] >= max(size, other.end[best] - best) - 1
                ):
                    self.join(at, best)
            if at in self.partner and strength:
                above = votes.setdefault(one.parent[at], Counter())
                above[other.parent[self.partner[at]]] += strength

    def pair_rest(self) -> None:
        """Pairs up what the diff has no word for, within groups that belong together, from the outside in."""
        self._pair_children(-1, -1)
        for at in range(len(self.before.sides)):
            if at % _STEP == 0:
                stop_if(self.cancel)
            b = self.partner.get(at)
            if b is not None:
                self._pair_children(at, b)

    def _pair_children(self, a: int, b: int) -> None:
        one, other = self.before, self.after
        left = [row for row in one.children.get(a, ()) if row not in self.partner]
        right = [row for row in other.children.get(b, ()) if row not in self.back]
        if not left or not right:
            return
        names = {other.sides[row].name: row for row in right}
        for row in left:
            found = names.get(one.sides[row].name)
            if found is not None and self._may_pair(row, found):
                self.join(row, found)
        rest = [row for row in left if row not in self.partner and self._is_silent(row, 0)]
        others = [row for row in right if row not in self.back and self._is_silent(row, 1)]
        if not rest or not others or max(len(rest), len(others)) > _IN_ORDER:
            return
        kinds = [one.sides[row].kind for row in rest], [other.sides[row].kind for row in others]
        for block in SequenceMatcher(None, *kinds, autojunk=False).get_matching_blocks():
            for step in range(block.size):
                self.join(rest[block.a + step], others[block.b + step])

    def _is_silent(self, row: int, side: int) -> bool:
        """Whether a row is a layer of which the diff says nothing."""
        return row not in self.links.known[side] and not (self.after if side else self.before).group[row]

    def _may_pair(self, a: int, b: int) -> bool:
        """Whether the same name is enough: not for two layers that the diff has told apart."""
        if self.before.group[a] or self.after.group[b]:
            return True
        return a not in self.links.known[0] and b not in self.links.known[1]

    # the list

    def counts(self, row: RowPair) -> bool:
        """Whether a row is counted: a layer, and a group that is on both sides and differs of itself."""
        if row.status == "part":
            return False
        one, other = row.before, row.after
        if one is not None and other is not None and row.status not in SAME:
            return True
        of_one = one is not None and not self.before.group[one.id]
        return of_one or (other is not None and not self.after.group[other.id])

    def rows(self) -> list[RowPair]:
        """Every row of either tree once, in pre-order."""
        order: list[tuple[int | None, int | None, int]] = []
        stack = [iter(self._inside(-1, -1))]
        while stack:
            pair = next(stack[-1], None)
            if pair is None:
                stack.pop()
                continue
            if len(order) % _STEP == 0:
                stop_if(self.cancel)
            order.append((*pair, len(stack) - 1))
            inside = self._inside(*pair)
            if inside:
                stack.append(iter(inside))
        return self._put_together(order)

    def _inside(self, a: int | None, b: int | None) -> list[tuple[int | None, int | None]]:
        """The rows in a pair: what was removed, then what was added, before the pair that follows both."""
        left = () if a is None else self.before.children.get(a, ())
        right = () if b is None else self.after.children.get(b, ())
        place = {row: at for at, row in enumerate(right)}
        found: list[tuple[int | None, int | None]] = []
        done = 0
        for row in left:
            partner = self.partner.get(row)
            if partner in place:
                found += [(None, added) for added in right[done : place[partner]] if added not in self.back]
                done = max(done, place[partner] + 1)
            found.append((row, partner))
        return found + [(None, added) for added in right[done:] if added not in self.back]

    def _put_together(self, order: list[tuple[int | None, int | None, int]]) -> list[RowPair]:
        """The rows with their states: from the last to the first, so that a group knows what is in it."""
        states = [self._state(a, b) for a, b, _ in order]
        open_until = 0  # the depth of the row around that is made of tiles, plus one
        for at, (a, b, depth) in enumerate(order):
            if open_until and depth >= open_until:
                states[at] = "part", states[at][1]
            else:
                whole = states[at][0] in ("tiled", "merged") or (a is not None and a in self.links.sites)
                whole = whole or (states[at][0] == "quantized" and b is not None and self.after.group[b])
                open_until = depth + 1 if whole else 0
        rows: list[RowPair] = []
        ends: dict[int, int] = {}  # by depth: behind the last row that lies deeper
        inside: Counter[int] = Counter()
        count = len(order)
        for at in range(count - 1, -1, -1):
            a, b, depth = order[at]
            end = max(at + 1, ends.pop(depth + 1, 0))
            below = inside.pop(depth + 1, 0) if end > at + 1 else 0
            left = None if a is None else self.before.sides[a]
            right = None if b is None else self.after.sides[b]
            status, what = states[at]
            if (
                status in ("same", "renamed")
                and left
                and right
                and not below
                and _figures(left) != _figures(right)
            ):
                status, what = "resized", _resized(left, right)
            rows.append(RowPair(depth, left, right, status, what, below, end))
            inside[depth] += below + (status not in SAME)
            ends[depth] = max(ends.get(depth, 0), end)
        rows.reverse()
        return rows

    def _state(self, a: int | None, b: int | None) -> tuple[str, str]:
        """What became of a row, and what differs."""
        if a is None or b is None:
            side, row, status = (1, b, "added") if a is None else (0, a, "removed")
            return status, self.links.alone[side].get(row if row is not None else -1, "")
        if (said := self.links.said.get(a)) is not None:
            return said
        one, other = self.before, self.after
        left, right = one.sides[a], other.sides[b]
        if (a in one.tiled) != (b in other.tiled):
            return ("merged" if a in one.tiled else "tiled"), f"{left.kind} -> {right.kind}"
        if left.kind != right.kind:
            return "changed", f"{left.kind} -> {right.kind}"
        if not one.group[a]:
            was, now = one.layers[a].attributes, other.layers[b].attributes
            changes = [
                f"attribute {name} {was.get(name, 'not given')} -> {now.get(name, 'not given')}"
                for name in dict.fromkeys((*was, *now))
                if was.get(name) != now.get(name)
            ]
            if changes:
                return "changed", "; ".join(changes)
        return ("same", "") if left.path == right.path else ("renamed", "another name")


_figures = attrgetter("output", *FIGURES)


def _resized(left: RowSide, right: RowSide) -> str:
    """What differs between two layers that are the same."""
    if left.output != right.output:
        return f"output {shape_text(left.output)} -> {shape_text(right.output)}"
    return "other figures: " + ", ".join(
        name.replace("_", " ") for name in FIGURES if getattr(left, name) != getattr(right, name)
    )
