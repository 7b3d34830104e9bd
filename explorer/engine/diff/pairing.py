"""Node pairing: the nodes, inputs, outputs and tiled sites of two graphs that belong together.

This is the first half of a diff; its rows and the trees side by side both build on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.diff.def_use import DefUse
from explorer.engine.diff.describe import Describer
from explorer.engine.diff.folding import SideFolds, fold_side, foldable, give_up, sizes_of
from explorer.engine.diff.forms import Forms
from explorer.engine.diff.match import Matching, match
from explorer.engine.diff.rounding import OPERATORS, QUANTIZERS, fold_rounding, in_range
from explorer.engine.diff.sites import SitePair, nodes_of, pair_sites, ties_of
from explorer.engine.fold.calls import inline_calls
from explorer.engine.fold.fold import FoldedAway
from explorer.engine.graph.model import Model, Value
from explorer.engine.graph.repeated_nodes import node_sequence
from explorer.engine.progress import Cancel

Tell = Callable[[str, int, int], None]
"""Receives the phase, and the progress in it."""

_FOLDED = ("part of a tiled weight now", "part of a tiled weight before")
_ROUNDS = "rounds what a tiled matmul reads"
FOLDED = (*_FOLDED, _ROUNDS)
"""Texts about nodes that only served a tiled site: the Transpose of its weight, its rounding."""

_TRIES = 4
"""Rounds in which folds that the other side lacks are given up and all nodes are matched again."""

_ROUNDING = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")

ValuePair = tuple[Value | None, Value | None]
"""An input or output of either graph, and its counterpart."""


class NodePairing(Struct, frozen=True, eq=False):
    """Two graphs and their pairs.

    Attributes:
        before, after: The graphs.
        forms: Forms that are equal for equal attributes and weights.
        sites: Tiled sites that differ.
        closed: Nodes of either graph that belong to the sites, or only round values.
        inputs, outputs: Pairs of the graphs' inputs and outputs.
        matching: Pairs of the other nodes.
        describer: Describes the differences of pairs.
        folds: The folding of either side. `before` and `after` are the graphs after folding, and positions of
            nodes refer to them.
    """

    before: DefUse
    after: DefUse
    forms: Forms
    sites: list[SitePair]
    closed: tuple[set[int], set[int]]
    inputs: list[ValuePair]
    outputs: list[ValuePair]
    matching: Matching
    describer: Describer
    folds: tuple[SideFolds | None, SideFolds | None] = (None, None)

    def ranged(self) -> tuple[dict[int, int], dict[int, int]]:
        """On each side, activations that the other side's integer range replaces, with the quantizer."""
        rounded = self.describer.rounded
        if rounded is None:
            return {}, {}
        if rounded.side is self.after:
            return in_range(self.before, self.matching.before, rounded), {}
        return {}, in_range(self.after, self.matching.after, rounded)

    def shared(self) -> tuple[dict[int, int], dict[int, int]]:
        """On each side, Constants whose readers read equal Constants of other names on the other side."""
        sides = (self.before, self.matching.before), (self.after, self.matching.after)
        first, second = (
            {
                i: twin
                for i, partner in enumerate(partners)
                if partner is None
                and i not in self.closed[at]
                and (twin := self.describer.shared(i, later=at == 1)) is not None
            }
            for at, (side, partners) in enumerate(sides)
        )
        return first, second


def opened_as(model: Model, reference: Model) -> Model:
    """A model with function calls opened, if that gives nodes whose names the reference has."""
    called = {node.key for node in node_sequence(model.graph.nodes)} & model.functions.keys()
    if not called - reference.functions.keys():
        return model
    own_names, names = (
        {node.name for node in node_sequence(graph_model.graph.nodes)} for graph_model in (model, reference)
    )
    opened_model = inline_calls(model, OPERATORS)
    return (
        opened_model
        if any(node.name in names - own_names for node in node_sequence(opened_model.graph.nodes))
        else model
    )


def pair_nodes(before: Model, after: Model, tell: Tell, cancel: Cancel) -> NodePairing:
    """Pairs the parts of two graphs; a fold that one graph has is done in the other first."""
    pairing = _pair(before, after, tell, cancel)
    partners = pairing.matching.before, pairing.matching.after
    sides, models = (pairing.before, pairing.after), (before, after)
    shared = pairing.shared()
    candidates = [
        foldable(sides[at], partners[at], pairing.closed[at], sides[1 - at])
        - folded(sides[at], partners[at], pairing.closed[at]).keys()
        - shared[at].keys()
        for at in (0, 1)
    ]
    for _ in range(_TRIES):
        tell("folding", 0, 0)
        away = [fold_side(models[at], candidates[at], sides[1 - at]) for at in (0, 1)]
        if not any(away):
            break
        reduced = [
            models[at] if side_folds is None else side_folds.model for at, side_folds in enumerate(away)
        ]
        again = _with_folds(_pair(reduced[0], reduced[1], tell, cancel), away, models)
        wrong = [_unmatched_folds(again, at) for at in (0, 1)]
        if not any(wrong):
            return again
        candidates = [places - less for places, less in zip(candidates, wrong, strict=True)]
    return pairing


def _with_folds(
    pairing: NodePairing, away: Sequence[FoldedAway | None], models: tuple[Model, Model]
) -> NodePairing:
    """A pairing of two folded graphs, with the folds."""
    sides = pairing.before, pairing.after
    first, second = [
        None if folded_away is None else SideFolds(folded_away, models[at], sides[at], set())
        for at, folded_away in enumerate(away)
    ]
    describer = pairing.describer
    describer.folded = sizes_of((first, second))
    describer.targets = first.away.ops if first else {}, second.away.ops if second else {}
    return replace(pairing, folds=(first, second))


def _unmatched_folds(pairing: NodePairing, at: int) -> set[int]:
    """Positions of the nodes that were folded on one side, but not on the other."""
    folds = pairing.folds[at]
    if folds is None:
        return set()
    partners = pairing.matching.after if at else pairing.matching.before
    return give_up(folds, partners, pairing.describer, at == 1)


def _pair(before: Model, after: Model, tell: Tell, cancel: Cancel) -> NodePairing:
    tell("indexing both graphs", 0, 0)
    first, second = DefUse(before), DefUse(after)
    forms = Forms(cancel)
    sites = pair_sites(first, second, forms)
    inputs = _pair_values(first.inputs, second.inputs)
    outputs = _pair_values(first.outputs, second.outputs)
    joined = [(a.name, b.name) for a, b in inputs if a is not None and b is not None]
    joined += ties_of(sites)
    ends = [(a.name, b.name) for a, b in outputs if a is not None and b is not None]
    closed = nodes_of(sites)
    rounded = None if sites else fold_rounding(first, second)
    if rounded is not None:
        closed[rounded.side is second].update(rounded.folded)
    matching = match(
        first, second, forms, closed=closed, ties=[*joined, *ends], on_phase=lambda phase: tell(phase, 0, 0)
    )
    if rounded is not None:  # a node unlike any of the original keeps its own operator
        partners = matching.after if rounded.side is second else matching.before
        original_nodes = rounded.side.model.graph.nodes
        nodes = zip(rounded.side.nodes, original_nodes, partners, strict=True)
        rounded.side.nodes = [node if partner is not None else it for node, it, partner in nodes]
    describer = Describer(first, second, forms, matching, set(joined), rounded)
    return NodePairing(first, second, forms, sites, closed, inputs, outputs, matching, describer)


def folded(
    side: DefUse, partners: Sequence[int | None], closed: set[int], later: bool = False
) -> dict[int, str]:
    """Nodes without a partner that only served a tiled site, with a text about each.

    Args:
        side: A graph.
        partners: Partners of its nodes.
        closed: Its nodes that belong to tiled sites.
        later: Whether it is the second graph.
    """
    texts: dict[int, str] = {}
    if not closed:
        return texts
    ends = {value.name for value in side.outputs}
    for i in range(len(side.nodes) - 1, -1, -1):
        if partners[i] is not None or i in closed:
            continue
        node = side.nodes[i]
        users = [user for name in node.outputs for user, _ in side.users.get(name, ())]
        if users and not ends.intersection(node.outputs) and all(u in closed or u in texts for u in users):
            rounds = node.op in _ROUNDING or node.domain in QUANTIZERS
            texts[i] = _ROUNDS if rounds else _FOLDED[later]
    return texts


def _pair_values(before: Sequence[Value], after: Sequence[Value]) -> list[ValuePair]:
    """Pairs of inputs or outputs: by name, then in order where type and shape agree."""
    by_name = {value.name: value for value in after}
    partner: dict[str, Value] = {v.name: by_name[v.name] for v in before if v.name in by_name}
    taken = {v.name for v in partner.values()}
    rest = [v for v in before if v.name not in partner]
    others = [v for v in after if v.name not in taken]
    for value in rest:
        same = next((o for o in others if (o.dtype, o.shape) == (value.dtype, value.shape)), None)
        if same is None and len(rest) == len(others) == 1:
            same = others[0]
        if same is not None:
            partner[value.name] = same
            others.remove(same)
            rest = [v for v in rest if v.name not in partner]
    pairs: list[ValuePair] = [(v, partner.get(v.name)) for v in before]
    return pairs + [(None, v) for v in others]
