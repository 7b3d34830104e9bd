"""Trees side by side: the layer trees of two models as one list of rows, each with its counterpart.

Layers are paired by the diff (`links`). Groups are paired where most of their layers are; an equal path
counts as much as half of the layers. Rows that the diff does not cover, inside loops and functions, are
paired within paired
groups: by name, then in order by kind.
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
"""Most rows of a group that are paired in order; in a larger group only names count."""
_STEP = 4096


def tree_diff(
    before: Analysis,
    after: Analysis,
    *,
    form: TreeForm,
    graphs: tuple[Model, Model] | None = None,
    flows: tuple[ValueFlow | None, ValueFlow | None] = (None, None),
    value_states: Mapping[str, tuple[str, str]] | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> TreeDiff:
    """The layer trees of two models side by side.

    Args:
        before: One model.
        after: The other model.
        form: What the trees show.
        graphs: The ONNX graphs whose nodes the rows are; None for rows that are no nodes.
        flows: The known edges between the rows of either tree; unused if there are graphs.
        value_states: By path in the first tree: the state of a row's values, and what differs.
        on_progress: Receives the phase.
        cancel: Called between steps; True stops.

    Raises:
        Cancelled: `cancel` returned True.
    """
    tell = partial(report, on_progress, cancel)
    tell("reading both trees", 0, 0)
    tree_before, tree_after = _Tree(before.layers), _Tree(after.layers)
    if graphs is not None:
        places = tree_before.places(), tree_after.places()
        links = graph_links(*graphs, places, tell, cancel)
    else:
        first, rows = row_graph(before.info, tree_before.layers, tree_before.end, flows[0])
        second, others = row_graph(after.info, tree_after.layers, tree_after.end, flows[1])
        links = row_links(first, second, (rows, others), tell)
        paths = {layer.path: layer.id for layer in before.layers} if value_states else {}
        links.states.update(
            (paths[path], state) for path, state in (value_states or {}).items() if path in paths
        )
    tell("aligning both trees", 0, 0)
    merged = _Merge(tree_before, tree_after, links, cancel)
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
        values_compared=graphs is not None or value_states is not None,
        totals_before=before.info.totals,
        totals_after=after.info.totals,
    )


class _Tree:
    """The rows of one tree; `end` is the index behind the last row inside each."""

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
        """The positions of the rows."""
        rows = {side.path: (at, side.kind) for at, side in enumerate(self.sides)}
        return TreePlaces(rows, self.parent, self.end)


class _Merge:
    """Two trees that are merged into one list."""

    def __init__(self, before: _Tree, after: _Tree, links: RowLinks, cancel: Cancel) -> None:
        self.before, self.after, self.links, self.cancel = before, after, links, cancel
        self.partner = links.partner
        self.back = {b: a for a, b in links.partner.items()}

    def join(self, a: int, b: int) -> None:
        """Pairs two rows."""
        self.partner[a] = b
        self.back[b] = a

    def pair_unfolded(self) -> None:
        """Pairs a quantized layer with its group in the other tree: the layer and its dequantizing nodes."""
        before, after = self.before, self.after
        for a, b in list(self.partner.items()):
            above = after.parent[b]
            status, _ = self.links.states.get(a, ("", ""))
            if status != "quantized" or above < 0 or before.sides[a].name != after.sides[above].name:
                continue
            if not any(row in self.back for row in range(above, after.end[above]) if row != b):
                del self.back[b]
                self.join(a, above)

    def pair_groups(self) -> None:
        """Pairs groups by their paired layers, the innermost groups first."""
        before, after = self.before, self.after
        votes: dict[int, Counter[int]] = {}
        for a, b in self.partner.items():
            votes.setdefault(before.parent[a], Counter())[after.parent[b]] += 1
        paths = {side.path: at for at, side in enumerate(after.sides) if after.group[at]}
        for at in range(len(before.sides) - 1, -1, -1):
            if not before.group[at]:
                continue
            candidates = votes.pop(at, Counter())
            candidates.pop(-1, None)
            strength, size = sum(candidates.values()), before.end[at] - at
            same = paths.get(before.sides[at].path)
            if same is not None:
                candidates[same] += size // 2 + 1
            if at not in self.partner:
                best = next((b for b, _ in candidates.most_common() if b not in self.back), None)
                if best is not None and (
                    best == same or 2 * candidates[best] >= max(size, after.end[best] - best) - 1
                ):
                    self.join(at, best)
            if at in self.partner and strength:
                above = votes.setdefault(before.parent[at], Counter())
                above[after.parent[self.partner[at]]] += strength

    def pair_rest(self) -> None:
        """Pairs rows that the diff does not cover, within paired groups, from the outside in."""
        self._pair_children(-1, -1)
        for at in range(len(self.before.sides)):
            if at % _STEP == 0:
                stop_if(self.cancel)
            b = self.partner.get(at)
            if b is not None:
                self._pair_children(at, b)

    def _pair_children(self, a: int, b: int) -> None:
        before, after = self.before, self.after
        open_before = [row for row in before.children.get(a, ()) if row not in self.partner]
        open_after = [row for row in after.children.get(b, ()) if row not in self.back]
        if not open_before or not open_after:
            return
        names = {after.sides[row].name: row for row in open_after}
        for row in open_before:
            twin = names.get(before.sides[row].name)
            if twin is not None and self._may_pair(row, twin):
                self.join(row, twin)
        rest = [row for row in open_before if row not in self.partner and self._is_silent(row, 0)]
        others = [row for row in open_after if row not in self.back and self._is_silent(row, 1)]
        if not rest or not others or max(len(rest), len(others)) > _IN_ORDER:
            return
        kinds = [before.sides[row].kind for row in rest], [after.sides[row].kind for row in others]
        for block in SequenceMatcher(None, *kinds, autojunk=False).get_matching_blocks():
            for step in range(block.size):
                self.join(rest[block.a + step], others[block.b + step])

    def _is_silent(self, row: int, side: int) -> bool:
        """Whether a row is a layer that the diff does not cover."""
        return row not in self.links.covered[side] and not (self.after if side else self.before).group[row]

    def _may_pair(self, a: int, b: int) -> bool:
        """Whether an equal name suffices to pair two rows: not for layers that the diff found different."""
        if self.before.group[a] or self.after.group[b]:
            return True
        return a not in self.links.covered[0] and b not in self.links.covered[1]

    # the list

    def counts(self, row: RowPair) -> bool:
        """Whether a row is counted: a layer, or a group that is on both sides and differs itself."""
        if row.status == "part":
            return False
        before, after = row.before, row.after
        if before is not None and after is not None and row.status not in SAME:
            return True
        of_one = before is not None and not self.before.group[before.id]
        return of_one or (after is not None and not self.after.group[after.id])

    def rows(self) -> list[RowPair]:
        """Every row of either tree once, in pre-order."""
        order: list[tuple[int | None, int | None, int]] = []
        stack = [iter(self._inner_pairs(-1, -1))]
        while stack:
            pair = next(stack[-1], None)
            if pair is None:
                stack.pop()
                continue
            if len(order) % _STEP == 0:
                stop_if(self.cancel)
            order.append((*pair, len(stack) - 1))
            inside = self._inner_pairs(*pair)
            if inside:
                stack.append(iter(inside))
        return self._rows_with_states(order)

    def _inner_pairs(self, a: int | None, b: int | None) -> list[tuple[int | None, int | None]]:
        """The rows inside a pair: removed rows, then added rows, before the pair that follows both."""
        rows_before = () if a is None else self.before.children.get(a, ())
        rows_after = () if b is None else self.after.children.get(b, ())
        place = {row: at for at, row in enumerate(rows_after)}
        pairs: list[tuple[int | None, int | None]] = []
        done = 0
        for row in rows_before:
            partner = self.partner.get(row)
            if partner in place:
                pairs += [
                    (None, added) for added in rows_after[done : place[partner]] if added not in self.back
                ]
                done = max(done, place[partner] + 1)
            pairs.append((row, partner))
        return pairs + [(None, added) for added in rows_after[done:] if added not in self.back]

    def _rows_with_states(self, order: list[tuple[int | None, int | None, int]]) -> list[RowPair]:
        """The rows with their states, from the last to the first: a group depends on the rows inside it."""
        states = [self._state(a, b) for a, b, _ in order]
        open_until = 0  # one more than the depth of the enclosing row that consists of tiles
        for at, (a, b, depth) in enumerate(order):
            if open_until and depth >= open_until:
                states[at] = "part", states[at][1]
            else:
                whole = states[at][0] in ("tiled", "merged") or (a is not None and a in self.links.sites)
                whole = whole or (states[at][0] == "quantized" and b is not None and self.after.group[b])
                open_until = depth + 1 if whole else 0
        rows: list[RowPair] = []
        ends: dict[int, int] = {}  # by depth: index behind the last deeper row
        inside: Counter[int] = Counter()
        count = len(order)
        for at in range(count - 1, -1, -1):
            a, b, depth = order[at]
            end = max(at + 1, ends.pop(depth + 1, 0))
            below = inside.pop(depth + 1, 0) if end > at + 1 else 0
            side_before = None if a is None else self.before.sides[a]
            side_after = None if b is None else self.after.sides[b]
            status, text = states[at]
            if (
                status in ("same", "renamed")
                and side_before
                and side_after
                and not below
                and _figures(side_before) != _figures(side_after)
            ):
                status, text = "resized", _figure_changes(side_before, side_after)
            rows.append(RowPair(depth, side_before, side_after, status, text, below, end))
            inside[depth] += below + (status not in SAME)
            ends[depth] = max(ends.get(depth, 0), end)
        rows.reverse()
        return rows

    def _state(self, a: int | None, b: int | None) -> tuple[str, str]:
        """The state of a row, and what differs."""
        if a is None or b is None:
            side, row, status = (1, b, "added") if a is None else (0, a, "removed")
            return status, self.links.alone[side].get(row if row is not None else -1, "")
        if (state := self.links.states.get(a)) is not None:
            return state
        before, after = self.before, self.after
        side_before, side_after = before.sides[a], after.sides[b]
        if (a in before.tiled) != (b in after.tiled):
            return ("merged" if a in before.tiled else "tiled"), f"{side_before.kind} -> {side_after.kind}"
        if side_before.kind != side_after.kind:
            return "changed", f"{side_before.kind} -> {side_after.kind}"
        if not before.group[a]:
            was, now = before.layers[a].attributes, after.layers[b].attributes
            changes = [
                f"attribute {name} {was.get(name, 'not given')} -> {now.get(name, 'not given')}"
                for name in dict.fromkeys((*was, *now))
                if was.get(name) != now.get(name)
            ]
            if changes:
                return "changed", "; ".join(changes)
        return ("same", "") if side_before.path == side_after.path else ("renamed", "another name")


_figures = attrgetter("output", *FIGURES)


def _figure_changes(before: RowSide, after: RowSide) -> str:
    """The differences in shape or figures of two otherwise equal layers."""
    if before.output != after.output:
        return f"output {shape_text(before.output)} -> {shape_text(after.output)}"
    return "other figures: " + ", ".join(
        name.replace("_", " ") for name in FIGURES if getattr(before, name) != getattr(after, name)
    )
