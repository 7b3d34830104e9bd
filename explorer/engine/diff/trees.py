"""Merges the layer trees of two models into one list of rows, each with its counterpart.

The diff pairs the layers (see `links`). Two groups are paired if most of their layers are paired with each
other. An equal path counts as much as half of the layers. The diff does not cover rows in loops and
functions. Such rows are paired within paired groups: first by name, then in order by kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from operator import attrgetter

from explorer.base.units import shape_text
from explorer.engine.costs.value_flow import ValueFlow
from explorer.engine.diff.links import RowLinks, TreePlaces, build_row_graph, link_graphs, link_rows
from explorer.engine.graph.model import Model
from explorer.engine.progress import Cancel, OnProgress, report, stop_if
from explorer.facts import Analysis, Layer
from explorer.facts.comparison import FIGURES, SAME, RowPair, RowSide, TreeDiff, TreeForm

_MAX_ORDERED_ROWS = 2_000
"""Maximum number of rows in a group that are paired in order. In larger groups only names count."""
_CHECK_INTERVAL = 4096
"""Number of rows between two checks for cancellation."""


def compare_trees(
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
    """Compares the layer trees of two models row by row.

    Args:
        before: Analysis of the first model.
        after: Analysis of the second model.
        form: Content of the trees.
        graphs: ONNX graphs, each node of which is a row, or None for models of other formats.
        flows: Edges between the rows of each tree, or None if unknown. Ignored if `graphs` is given.
        value_states: Status of a row's values and text about the difference, by path in the first tree.
        on_progress: Receives the phase.
        cancel: Callback between steps; the comparison stops when it returns True.

    Raises:
        Cancelled: `cancel` returned True.
    """
    report_phase = partial(report, on_progress, cancel)
    report_phase("reading both trees", 0, 0)
    tree_before, tree_after = _Tree(before.layers), _Tree(after.layers)
    if graphs is not None:
        places = tree_before.build_places(), tree_after.build_places()
        links = link_graphs(*graphs, places, report_phase, cancel)
    else:
        first, rows = build_row_graph(before.info, tree_before.layers, tree_before.end, flows[0])
        second, rows_after = build_row_graph(after.info, tree_after.layers, tree_after.end, flows[1])
        links = link_rows(first, second, (rows, rows_after), report_phase)
        paths = {layer.path: layer.id for layer in before.layers} if value_states else {}
        links.states.update(
            (paths[path], state) for path, state in (value_states or {}).items() if path in paths
        )
    report_phase("aligning both trees", 0, 0)
    merge = _Merge(tree_before, tree_after, links, cancel)
    merge.pair_quantized_groups()
    merge.pair_groups()
    merge.pair_uncovered_rows()
    pairs = merge.list_rows()
    counts = Counter(row.status for row in pairs if merge.is_counted(row))
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
    """Rows of one tree.

    Attributes:
        layers: Layers, in pre-order; a row is an index into this list.
        sides: Path, kind and figures of each row.
        parent: Parent of each row, or -1 at the top level.
        is_group: Whether each row is a group.
        tiled: Rows that are tiled.
        end: Index after the last descendant of each row.
        children: Children of each row; key -1 has the rows at the top level.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.sides: list[RowSide] = []
        self.parent: list[int] = []
        self.is_group: list[bool] = []
        self.tiled: set[int] = set()
        for layer in layers:
            output = layer.outputs[0].shape if layer.outputs else None
            figures = [getattr(layer, name) for name in FIGURES]
            self.sides.append(RowSide(layer.id, layer.path, layer.name, layer.kind_text, output, *figures))
            self.parent.append(-1 if layer.parent is None else layer.parent)
            self.is_group.append(layer.group)
            if layer.tiled:
                self.tiled.add(layer.id)
        self.end = list(range(1, len(self.sides) + 1))
        self.children: dict[int, list[int]] = {-1: []}
        for row in range(len(self.sides) - 1, -1, -1):
            parent = self.parent[row]
            if parent >= 0:
                self.end[parent] = max(self.end[parent], self.end[row])
            self.children.setdefault(parent, []).append(row)
        for children in self.children.values():
            children.reverse()

    def build_places(self) -> TreePlaces:
        """Returns the row and kind at each path, and the parent and the end of the subtree of each row."""
        rows = {side.path: (row, side.kind) for row, side in enumerate(self.sides)}
        return TreePlaces(rows, self.parent, self.end)


class _Merge:
    """Merges two trees into one list.

    Attributes:
        partner: Row of the second tree, by the row of the first tree with which it is paired.
        partner_before: Row of the first tree, by the row of the second tree with which it is paired.
    """

    def __init__(self, before: _Tree, after: _Tree, links: RowLinks, cancel: Cancel) -> None:
        self.before, self.after, self.links, self.cancel = before, after, links, cancel
        self.partner = links.partner
        self.partner_before = {b: a for a, b in links.partner.items()}

    def join(self, a: int, b: int) -> None:
        """Pairs two rows."""
        self.partner[a] = b
        self.partner_before[b] = a

    def pair_quantized_groups(self) -> None:
        """Pairs a layer with the group of its quantized form, which also contains the dequantizing nodes."""
        before, after = self.before, self.after
        for a, b in list(self.partner.items()):
            group_after = after.parent[b]
            status, _ = self.links.states.get(a, ("", ""))
            if (
                status != "quantized"
                or group_after < 0
                or before.sides[a].name != after.sides[group_after].name
            ):
                continue
            if not any(
                row in self.partner_before for row in range(group_after, after.end[group_after]) if row != b
            ):
                del self.partner_before[b]
                self.join(a, group_after)

    def pair_groups(self) -> None:
        """Pairs groups by the number of paired layers in them, innermost groups first."""
        before, after = self.before, self.after
        votes: dict[int, Counter[int]] = {}
        for a, b in self.partner.items():
            votes.setdefault(before.parent[a], Counter())[after.parent[b]] += 1
        paths = {
            side.path: row_index for row_index, side in enumerate(after.sides) if after.is_group[row_index]
        }
        for row_index in range(len(before.sides) - 1, -1, -1):
            if not before.is_group[row_index]:
                continue
            candidates = votes.pop(row_index, Counter())
            candidates.pop(-1, None)
            vote_count, size = sum(candidates.values()), before.end[row_index] - row_index
            same_path_row = paths.get(before.sides[row_index].path)
            if same_path_row is not None:
                candidates[same_path_row] += size // 2 + 1
            if row_index not in self.partner:
                best = next((b for b, _ in candidates.most_common() if b not in self.partner_before), None)
                if best is not None and (
                    best == same_path_row or 2 * candidates[best] >= max(size, after.end[best] - best) - 1
                ):
                    self.join(row_index, best)
            if row_index in self.partner and vote_count:
                parent_votes = votes.setdefault(before.parent[row_index], Counter())
                parent_votes[after.parent[self.partner[row_index]]] += vote_count

    def pair_uncovered_rows(self) -> None:
        """Pairs rows that the diff does not cover, within paired groups, outermost groups first."""
        self._pair_children(-1, -1)
        for a in range(len(self.before.sides)):
            if a % _CHECK_INTERVAL == 0:
                stop_if(self.cancel)
            b = self.partner.get(a)
            if b is not None:
                self._pair_children(a, b)

    def _pair_children(self, a: int, b: int) -> None:
        """Pairs children without a partner of two paired rows, by name and then by order of the operators."""
        before, after = self.before, self.after
        open_before = [row for row in before.children.get(a, ()) if row not in self.partner]
        open_after = [row for row in after.children.get(b, ()) if row not in self.partner_before]
        if not open_before or not open_after:
            return
        names = {after.sides[row].name: row for row in open_after}
        for row in open_before:
            counterpart = names.get(before.sides[row].name)
            if counterpart is not None and self._can_pair(row, counterpart):
                self.join(row, counterpart)
        unpaired_before = [
            row for row in open_before if row not in self.partner and self._is_uncovered_layer(row, 0)
        ]
        unpaired_after = [
            row for row in open_after if row not in self.partner_before and self._is_uncovered_layer(row, 1)
        ]
        if (
            not unpaired_before
            or not unpaired_after
            or max(len(unpaired_before), len(unpaired_after)) > _MAX_ORDERED_ROWS
        ):
            return
        kinds_of_unpaired = (
            [before.sides[row].kind for row in unpaired_before],
            [after.sides[row].kind for row in unpaired_after],
        )
        for block in SequenceMatcher(None, *kinds_of_unpaired, autojunk=False).get_matching_blocks():
            for step in range(block.size):
                self.join(unpaired_before[block.a + step], unpaired_after[block.b + step])

    def _is_uncovered_layer(self, row: int, side: int) -> bool:
        """Whether a row is a layer (not a group) that the diff does not cover."""
        return row not in self.links.covered[side] and not (self.after if side else self.before).is_group[row]

    def _can_pair(self, a: int, b: int) -> bool:
        """Whether an equal name is sufficient to pair two rows. It is not for layers that the diff covers."""
        if self.before.is_group[a] or self.after.is_group[b]:
            return True
        return a not in self.links.covered[0] and b not in self.links.covered[1]

    # methods that build the list of rows

    def is_counted(self, row: RowPair) -> bool:
        """Whether the summary counts a row: a layer, or a group in both trees that differs itself."""
        if row.status == "part":
            return False
        before, after = row.before, row.after
        if before is not None and after is not None and row.status not in SAME:
            return True
        has_layer_before = before is not None and not self.before.is_group[before.id]
        return has_layer_before or (after is not None and not self.after.is_group[after.id])

    def list_rows(self) -> list[RowPair]:
        """Returns every row of both trees once, in pre-order."""
        order: list[tuple[int | None, int | None, int]] = []
        stack = [iter(self._pair_inner_rows(-1, -1))]
        while stack:
            pair = next(stack[-1], None)
            if pair is None:
                stack.pop()
                continue
            if len(order) % _CHECK_INTERVAL == 0:
                stop_if(self.cancel)
            order.append((*pair, len(stack) - 1))
            child_pairs = self._pair_inner_rows(*pair)
            if child_pairs:
                stack.append(iter(child_pairs))
        return self._add_states(order)

    def _pair_inner_rows(self, a: int | None, b: int | None) -> list[tuple[int | None, int | None]]:
        """Pairs the children of a pair. Removed rows, then added rows, precede the next paired row."""
        rows_before = () if a is None else self.before.children.get(a, ())
        rows_after = () if b is None else self.after.children.get(b, ())
        positions = {row: position for position, row in enumerate(rows_after)}
        pairs: list[tuple[int | None, int | None]] = []
        next_position = 0
        for row in rows_before:
            partner = self.partner.get(row)
            if partner in positions:
                pairs += [
                    (None, added)
                    for added in rows_after[next_position : positions[partner]]
                    if added not in self.partner_before
                ]
                next_position = max(next_position, positions[partner] + 1)
            pairs.append((row, partner))
        return pairs + [
            (None, added) for added in rows_after[next_position:] if added not in self.partner_before
        ]

    def _add_states(self, order: list[tuple[int | None, int | None, int]]) -> list[RowPair]:
        """Adds states to the rows, from last to first because a group depends on its descendants."""
        states = [self._describe_state(a, b) for a, b, _ in order]
        open_until = 0  # depth of the enclosing tiled or quantized row, plus one; 0 without one
        for index, (a, b, depth) in enumerate(order):
            if open_until and depth >= open_until:
                states[index] = "part", states[index][1]
            else:
                is_tiled_site = states[index][0] in ("tiled", "merged") or (
                    a is not None and a in self.links.sites
                )
                is_tiled_site = is_tiled_site or (
                    states[index][0] == "quantized" and b is not None and self.after.is_group[b]
                )
                open_until = depth + 1 if is_tiled_site else 0
        rows: list[RowPair] = []
        ends: dict[int, int] = {}  # index after the last row of a depth, by depth
        changed_counts: Counter[int] = Counter()
        count = len(order)
        for index in range(count - 1, -1, -1):
            a, b, depth = order[index]
            end = max(index + 1, ends.pop(depth + 1, 0))
            changed_below = changed_counts.pop(depth + 1, 0) if end > index + 1 else 0
            side_before = None if a is None else self.before.sides[a]
            side_after = None if b is None else self.after.sides[b]
            status, text = states[index]
            if (
                status in ("same", "renamed")
                and side_before
                and side_after
                and not changed_below
                and _read_figures(side_before) != _read_figures(side_after)
            ):
                status, text = "resized", _describe_figure_changes(side_before, side_after)
            rows.append(RowPair(depth, side_before, side_after, status, text, changed_below, end))
            changed_counts[depth] += changed_below + (status not in SAME)
            ends[depth] = max(ends.get(depth, 0), end)
        rows.reverse()
        return rows

    def _describe_state(self, a: int | None, b: int | None) -> tuple[str, str]:
        """Returns the status of a row and a text about the difference."""
        if a is None or b is None:
            side, row, status = (1, b, "added") if a is None else (0, a, "removed")
            return status, self.links.unpaired_texts[side].get(row if row is not None else -1, "")
        if (state := self.links.states.get(a)) is not None:
            return state
        before, after = self.before, self.after
        side_before, side_after = before.sides[a], after.sides[b]
        if (a in before.tiled) != (b in after.tiled):
            return ("merged" if a in before.tiled else "tiled"), f"{side_before.kind} -> {side_after.kind}"
        if side_before.kind != side_after.kind:
            return "changed", f"{side_before.kind} -> {side_after.kind}"
        if not before.is_group[a]:
            first, second = before.layers[a].attributes, after.layers[b].attributes
            changes = [
                f"attribute {name} {first.get(name, 'not given')} -> {second.get(name, 'not given')}"
                for name in dict.fromkeys((*first, *second))
                if first.get(name) != second.get(name)
            ]
            if changes:
                return "changed", "; ".join(changes)
        return ("same", "") if side_before.path == side_after.path else ("renamed", "another name")


_read_figures = attrgetter("output", *FIGURES)


def _describe_figure_changes(before: RowSide, after: RowSide) -> str:
    """Describes the difference in output shape or figures of two otherwise equal layers."""
    if before.output != after.output:
        return f"output {shape_text(before.output)} -> {shape_text(after.output)}"
    return "other figures: " + ", ".join(
        name.replace("_", " ") for name in FIGURES if getattr(before, name) != getattr(after, name)
    )
