"""Folds the nodes of one graph that the other graph of a diff lacks because a tool folded them.

If only one graph has a node, `engine.fold` folds the node there, and the diff compares the results. A
BatchNormalization that another tool folded therefore does not count as removed. Its folded weight is compared
with the expected weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from explorer.engine.diff.def_use import DefUse
from explorer.engine.diff.describe import Describer
from explorer.engine.diff.folded_weights import describe_folded_change
from explorer.engine.fold.activations import ACTIVATIONS, FUSED
from explorer.engine.fold.fold import FoldedAway, describe_folding, fold_away
from explorer.engine.fold.tensors import Array
from explorer.engine.graph.model import Model
from explorer.facts import NodeDiff

_ALWAYS_FOLDED = frozenset({"BatchNormalization", "Dropout", "Identity"})


def find_foldable(
    side: DefUse, partners: Sequence[int | None], excluded_nodes: set[int], opposite: DefUse
) -> set[int]:
    """Returns the indices of unpaired nodes that another tool may have folded in the other graph.

    These are constant nodes and operators that `engine.fold` can fold.
    """
    fused = {node.op for node in opposite.nodes} & set(FUSED.values())
    ops = _ALWAYS_FOLDED | (ACTIVATIONS.keys() if fused else set())
    foldable_positions: set[int] = set()
    constant_names: set[str] = set()
    for position, node in enumerate(side.nodes):
        if node.domain or partners[position] is not None or position in excluded_nodes:
            continue
        is_constant = node.op == "Shape" or all(
            not n or n in constant_names or n in side.stored for n in node.inputs
        )
        if is_constant and (node.inputs or node.op == "Constant"):
            constant_names.update(node.outputs)
            foldable_positions.add(position)
        elif node.op in ops:
            foldable_positions.add(position)
    return foldable_positions


def fold_side(model: Model, positions: set[int], opposite: DefUse) -> FoldedAway | None:
    """Folds the nodes at `positions`; returns None if none of them can be folded."""
    if not positions:
        return None
    folded = fold_away(model, positions, any(node.op in FUSED.values() for node in opposite.nodes))
    return folded if folded.folded else None


_CHECK_TEXT = {
    "identity": "",
    "constants": ", values within rounding",
    "stored": "",
    "batchnorm": ", values within rounding",
    "activation": ", with the same parameters",
}
"""Text about the checks that every node of a row passed, by kind of rewrite."""
_INDEPENDENT_KINDS = ("batchnorm", "activation")
"""Kinds of rewrites that change each node independently. A differing node leaves the others checked."""


class SideFolds(Struct, eq=False):
    """The folding of one graph of a diff, with the result of the comparison.

    Attributes:
        folding: Result of the folding.
        original: Model before the folding.
        side: Graph after the folding.
        differing: Indices into `folding.folded` of nodes that the other graph folded differently.
    """

    folding: FoldedAway
    original: Model
    side: DefUse
    differing: set[int]

    def describe_folded_nodes(self) -> dict[int, str]:
        """Returns a text about each folded node, by node index in the original graph."""
        texts = (f"folded into {', '.join(n.into)}" if n.into else "folded" for n in self.folding.folded)
        return dict(zip((position for position, _ in self.folding.replacements), texts, strict=True))

    def describe_absorbing_nodes(self) -> dict[int, str]:
        """Returns a text about each node into which others were folded, by node index after the folding."""
        ops_by_position: dict[int, list[str]] = {}
        for (_, into), node in zip(self.folding.replacements, self.folding.folded, strict=True):
            for position in into:
                ops_by_position.setdefault(position, []).append(node.op)
        return {
            position: f"{' and '.join(dict.fromkeys(ops))} folded in"
            for position, ops in ops_by_position.items()
        }

    def list_rows(self, is_second: bool) -> Iterator[NodeDiff]:
        """Yields one row for each kind of rewrite.

        `is_second` tells whether the folded nodes are in the second graph.
        """
        for kind in dict.fromkeys(self.folding.kinds):
            nodes = [
                node
                for number, node in enumerate(self.folding.folded)
                if self.folding.kinds[number] == kind and number not in self.differing
            ]
            if not nodes:
                continue
            text = describe_folding(kind, nodes)
            is_checked = kind in _INDEPENDENT_KINDS or all(
                self.folding.kinds[number] != kind for number in self.differing
            )
            first = nodes[0]
            names, ops = (first.name, (first.into or (None,))[0]), (first.op, first.op_into or None)
            yield NodeDiff(
                status="folded",
                before=names[is_second],
                after=names[1 - is_second],
                what=locate_replacement(f"{text}{_CHECK_TEXT[kind] if is_checked else ''}", is_second),
                op_before=ops[is_second],
                op_after=ops[1 - is_second],
            )


def locate_replacement(text: str, is_second: bool) -> str:
    """Returns a text about replaced nodes, which names the graph with the replacement if it is the first.

    Nodes of the first graph are replaced in the second graph. A reader of a diff expects this order, so the
    text names the graph only if nodes of the second graph (`is_second`) are replaced in the first.
    """
    return f"in the first graph: {text}" if is_second else text


def find_rejected_folds(
    folds: SideFolds, partners: Sequence[int | None], describer: Describer, is_second: bool
) -> set[int]:
    """Finds the folded nodes that the other graph did not fold.

    Nodes that the other graph folded differently are recorded in `folds.differing`.

    Args:
        folds: Folding of one graph.
        partners: Partner of each node after the folding, or None.
        describer: Comparison of the two graphs.
        is_second: Whether `folds` belongs to the second graph.

    Returns:
        Node indices in the original graph.
    """
    rejected: set[int] = set()
    opposite = describer.before if is_second else describer.after
    for number, (position, into) in enumerate(folds.folding.replacements):
        folded_names = {
            name for name in folds.original.graph.nodes[position].outputs if name in folds.folding.magnitudes
        }
        readers = {user for name in folded_names for user, _ in folds.side.users.get(name, ())}
        affected = into or tuple(sorted(readers))
        pairs = [
            (partner, index) if is_second else (index, partner)
            for index in affected
            if (partner := partners[index]) is not None
        ]
        if len(pairs) < len(into) or (affected and not pairs):
            rejected.add(position)  # the node that absorbed or reads the folded node has no partner
        elif folds.folding.kinds[number] == "activation":
            if any(opposite.nodes[pair[not is_second]].op not in FUSED.values() for pair in pairs):
                rejected.add(position)
            elif any(_differs_in_activation(describer, pair) for pair in pairs):
                folds.differing.add(number)  # the row of the pair describes the difference
        elif differing := [
            pair for pair in pairs if _differs_from_expected(folds, describer, pair, is_second)
        ]:
            folds.differing.add(number)
            if into and all(_is_unchanged(folds, describer, pair, is_second) for pair in differing):
                rejected.add(position)
    return rejected


def _differs_in_activation(describer: Describer, pair: tuple[int, int]) -> bool:
    """Whether the fused activations of a pair or their parameters differ."""
    first, second = describer.before.nodes[pair[0]], describer.after.nodes[pair[1]]
    differences = describer.list_attribute_changes(first, second)
    return any(difference.name.startswith("activation") for difference in differences)


def _list_weights(
    folds: SideFolds, describer: Describer, pair: tuple[int, int], is_second: bool
) -> Iterator[tuple[str, str]]:
    """Yields the names of a pair's folded weights, each with the name in the other graph ('' if absent)."""
    opposite = describer.before if is_second else describer.after
    opposite_names = opposite.input_names[pair[not is_second]]
    rounded_node = describer.get_rounding(*pair)
    for slot, name in enumerate(folds.side.input_names[pair[is_second]]):
        is_rounded = rounded_node is not None and slot in rounded_node.inputs
        if name in folds.folding.magnitudes and not is_rounded:
            yield name, opposite_names[slot] if slot < len(opposite_names) else ""


def _differs_from_expected(
    folds: SideFolds, describer: Describer, pair: tuple[int, int], is_second: bool
) -> bool:
    """Whether the weights of the node in the other graph differ from the expected folded weights."""
    opposite_tensors = (describer.before if is_second else describer.after).stored
    return any(
        opposite_name not in opposite_tensors
        or describe_folded_change(
            name, folds.side.stored[name], opposite_tensors[opposite_name], folds.folding.magnitudes[name]
        )
        for name, opposite_name in _list_weights(folds, describer, pair, is_second)
    )


def _is_unchanged(folds: SideFolds, describer: Describer, pair: tuple[int, int], is_second: bool) -> bool:
    """Whether the node in the other graph has the original weight, so that nothing was folded into it.

    Also true if either graph does not store this weight.
    """
    opposite = describer.before if is_second else describer.after
    original, label = folds.original.graph, folds.side.nodes[pair[is_second]].label
    original_node = next((node for node in original.nodes if node.label == label), None)
    opposite_names = opposite.input_names[pair[not is_second]]
    if original_node is None or len(original_node.inputs) < 2 or len(opposite_names) < 2:
        return True
    weight = original.initializers.get(original_node.inputs[1])
    opposite_weight = opposite.stored.get(opposite_names[1])
    return (
        weight is None
        or opposite_weight is None
        or describer.forms.has_equal_content(weight, opposite_weight)
    )


def collect_magnitudes(
    folds: tuple[SideFolds | None, SideFolds | None],
) -> Mapping[tuple[bool, str], Array | None]:
    """Returns the magnitude of each folded weight, by (is second graph, weight name).

    The magnitude is the sum of the absolute terms of each element; see `describe_folded_change`.
    """
    return {
        (side == 1, name): size
        for side, side_folds in enumerate(folds)
        if side_folds is not None
        for name, size in side_folds.folding.magnitudes.items()
    }
