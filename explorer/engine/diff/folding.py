"""Folded graphs in a diff: nodes that one side lacks because folding removed them.

Nodes that only one side has are folded there, too, with `engine.fold`, and the rest is compared. So a
BatchNormalization that another tool folded does not count as removed, and its folded weight is compared with
the expected weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from explorer.engine.diff.def_use import DefUse
from explorer.engine.diff.describe import Describer
from explorer.engine.diff.folded_weights import folded_change
from explorer.engine.fold.activations import ACTIVATIONS, FUSED
from explorer.engine.fold.fold import FoldedAway, describe_folding, fold_away
from explorer.engine.fold.tensors import Array
from explorer.engine.graph.model import Model
from explorer.facts import NodeDiff

_ALWAYS = frozenset({"BatchNormalization", "Dropout", "Identity"})


def foldable(side: DefUse, partners: Sequence[int | None], closed: set[int], opposite: DefUse) -> set[int]:
    """Positions of nodes without a partner that the other graph may have folded."""
    fused = {node.op for node in opposite.nodes} & set(FUSED.values())
    ops = _ALWAYS | (ACTIVATIONS.keys() if fused else set())
    places: set[int] = set()
    constant_names: set[str] = set()
    for at, node in enumerate(side.nodes):
        if node.domain or partners[at] is not None or at in closed:
            continue
        constant = node.op == "Shape" or all(
            not n or n in constant_names or n in side.stored for n in node.inputs
        )
        if constant and (node.inputs or node.op == "Constant"):
            constant_names.update(node.outputs)
            places.add(at)
        elif node.op in ops:
            places.add(at)
    return places


def fold_side(model: Model, positions: set[int], opposite: DefUse) -> FoldedAway | None:
    """A side without the chosen nodes; None where none of them can be folded."""
    if not positions:
        return None
    folded = fold_away(model, positions, any(node.op in FUSED.values() for node in opposite.nodes))
    return folded if folded.folded else None


_CHECKED = {
    "identity": "",
    "constants": ", values within rounding",
    "stored": "",
    "batchnorm": ", values within rounding",
    "activation": ", with the same parameters",
}
"""What holds for every node of a row, by the kind of rewrite."""
_COUNTED = ("batchnorm", "activation")
"""Kinds whose rows omit the nodes that the other side rewrote differently."""


class SideFolds(Struct, eq=False):
    """The folding on one side of a diff, with the result of the comparison.

    Attributes:
        away: The folding.
        original: The side before it.
        side: The side as it is compared.
        wrong: Indices of the folded nodes whose work the other side does differently.
    """

    away: FoldedAway
    original: Model
    side: DefUse
    wrong: set[int]

    def texts(self) -> dict[int, str]:
        """By position in the original: a text about each folded node."""
        texts = (f"folded into {', '.join(n.into)}" if n.into else "folded" for n in self.away.folded)
        return dict(zip((at for at, _ in self.away.places), texts, strict=True))

    def targets(self) -> dict[int, str]:
        """Positions, in the compared side, of nodes that do the work of folded nodes, with a text."""
        ops_by_place: dict[int, list[str]] = {}
        for (_, into), node in zip(self.away.places, self.away.folded, strict=True):
            for at in into:
                ops_by_place.setdefault(at, []).append(node.op)
        return {at: f"{' and '.join(dict.fromkeys(ops))} folded in" for at, ops in ops_by_place.items()}

    def rows(self, turned: bool) -> Iterator[NodeDiff]:
        """A row for each kind of rewrite; `turned`: the second graph has the nodes."""
        for kind in dict.fromkeys(self.away.kinds):
            nodes = [
                node
                for at, node in enumerate(self.away.folded)
                if self.away.kinds[at] == kind and at not in self.wrong
            ]
            if not nodes:
                continue
            text = describe_folding(kind, nodes)
            sound = kind in _COUNTED or all(self.away.kinds[at] != kind for at in self.wrong)
            first = nodes[0]
            names, ops = (first.name, (first.into or (None,))[0]), (first.op, first.op_into or None)
            yield NodeDiff(
                status="folded",
                before=names[turned],
                after=names[1 - turned],
                what=f"{'before: ' if turned else ''}{text}{_CHECKED[kind] if sound else ''}",
                op_before=ops[turned],
                op_after=ops[1 - turned],
            )


def give_up(folds: SideFolds, partners: Sequence[int | None], describer: Describer, turned: bool) -> set[int]:
    """Positions in the original of nodes that the other side did not fold; notes wrong folds in `folds`.

    Args:
        folds: The folding of one side.
        partners: Partners of its nodes as they are compared.
        describer: Describes the two graphs.
        turned: Whether it is the second side.
    """
    places: set[int] = set()
    opposite = describer.before if turned else describer.after
    for number, (at, into) in enumerate(folds.away.places):
        folded_names = {name for name in folds.original.graph.nodes[at].outputs if name in folds.away.sizes}
        readers = {user for name in folded_names for user, _ in folds.side.users.get(name, ())}
        concerned = into or tuple(sorted(readers))
        pairs = [
            (partner, place) if turned else (place, partner)
            for place in concerned
            if (partner := partners[place]) is not None
        ]
        if len(pairs) < len(into) or (concerned and not pairs):
            places.add(at)  # the node that does its work, or reads it, has no counterpart
        elif folds.away.kinds[number] == "activation":
            if any(opposite.nodes[pair[not turned]].op not in FUSED.values() for pair in pairs):
                places.add(at)
            elif any(_acts_otherwise(describer, pair) for pair in pairs):
                folds.wrong.add(number)  # the row of the pair says what differs
        elif wrong := [pair for pair in pairs if _differs_from_expected(folds, describer, pair, turned)]:
            folds.wrong.add(number)
            if into and all(_is_unchanged(folds, describer, pair, turned) for pair in wrong):
                places.add(at)
    return places


def _acts_otherwise(describer: Describer, pair: tuple[int, int]) -> bool:
    """Whether a node has another activation on the other side, or other parameters of it."""
    differences = describer.attributes(describer.before.nodes[pair[0]], describer.after.nodes[pair[1]])
    return any(difference.name.startswith("activation") for difference in differences)


def _weights(
    folds: SideFolds, describer: Describer, pair: tuple[int, int], turned: bool
) -> Iterator[tuple[str, str]]:
    """Names of the folded weights of a node, and of the weights in their places on the other side."""
    opposite = describer.before if turned else describer.after
    theirs = opposite.takes[pair[not turned]]
    quantized = describer.quantized(*pair)
    for slot, name in enumerate(folds.side.takes[pair[turned]]):
        if name in folds.away.sizes and not (quantized is not None and slot in quantized.inputs):
            yield name, theirs[slot] if slot < len(theirs) else ""


def _differs_from_expected(
    folds: SideFolds, describer: Describer, pair: tuple[int, int], turned: bool
) -> bool:
    """Whether a node's weights on the other side differ from the expected ones."""
    opposite_tensors = (describer.before if turned else describer.after).stored
    return any(
        theirs not in opposite_tensors
        or folded_change(name, folds.side.stored[name], opposite_tensors[theirs], folds.away.sizes[name])
        for name, theirs in _weights(folds, describer, pair, turned)
    )


def _is_unchanged(folds: SideFolds, describer: Describer, pair: tuple[int, int], turned: bool) -> bool:
    """Whether a node's weight is unchanged on the other side: then nothing was folded into it."""
    opposite = describer.before if turned else describer.after
    original, label = folds.original.graph, folds.side.nodes[pair[turned]].label
    was = next((node for node in original.nodes if node.label == label), None)
    theirs = opposite.takes[pair[not turned]]
    if was is None or len(was.inputs) < 2 or len(theirs) < 2:
        return True
    weight, there = original.initializers.get(was.inputs[1]), opposite.stored.get(theirs[1])
    return weight is None or there is None or describer.forms.equal_content(weight, there)


def sizes_of(folds: tuple[SideFolds | None, SideFolds | None]) -> Mapping[tuple[bool, str], Array | None]:
    """By side and name of each folded weight: the size of the terms that it adds up."""
    return {
        (at == 1, name): size
        for at, side_folds in enumerate(folds)
        if side_folds is not None
        for name, size in side_folds.away.sizes.items()
    }
