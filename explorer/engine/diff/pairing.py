"""Pairs the nodes, inputs, outputs and tiled sites of two graphs.

This is the first half of a diff. Both the rows of the diff and the trees side by side are built from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.diff.def_use import DefUse
from explorer.engine.diff.describe import Describer
from explorer.engine.diff.folding import (
    SideFolds,
    collect_magnitudes,
    find_foldable,
    find_rejected_folds,
    fold_side,
)
from explorer.engine.diff.forms import Forms
from explorer.engine.diff.match import Matching, match
from explorer.engine.diff.rounding import OPERATORS, QUANTIZERS, find_absorbed_activations, fold_rounding
from explorer.engine.diff.sites import SitePair, collect_site_nodes, collect_ties, pair_sites
from explorer.engine.fold.calls import inline_calls
from explorer.engine.fold.fold import FoldedAway
from explorer.engine.graph.model import Model, Value
from explorer.engine.graph.repeated_nodes import list_stored_nodes
from explorer.engine.progress import Cancel

Tell = Callable[[str, int, int], None]
"""Callback that receives the phase, the number of completed steps and the total."""

_FOLDED = ("part of a tiled weight now", "part of a tiled weight before")
_ROUNDS = "rounds what a tiled matmul reads"
FOLDED = (*_FOLDED, _ROUNDS)
"""Texts about helper nodes of a tiled site, such as the Transpose or the rounding of its weight."""

_TRIES = 4
"""Maximum number of rounds. Each round drops the folds that the other graph lacks and matches again."""

_ROUNDING = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")

ValuePair = tuple[Value | None, Value | None]
"""A graph input or output of the first graph and its counterpart in the second; None if there is none."""


class NodePairing(Struct, frozen=True, eq=False):
    """Two graphs and their pairs.

    Attributes:
        before, after: Graphs after folding. Node indices refer to them.
        forms: Canonical forms of attributes and weights.
        sites: Tiled sites that differ.
        excluded_nodes: Nodes of each graph that belong to these sites or only round values.
        inputs, outputs: Pairs of the graphs' inputs and outputs.
        matching: Pairs of the other nodes.
        describer: Comparison of paired nodes.
        folds: Folding of each graph, or None if no node was folded.
    """

    before: DefUse
    after: DefUse
    forms: Forms
    sites: list[SitePair]
    excluded_nodes: tuple[set[int], set[int]]
    inputs: list[ValuePair]
    outputs: list[ValuePair]
    matching: Matching
    describer: Describer
    folds: tuple[SideFolds | None, SideFolds | None] = (None, None)

    def absorbed_activations(self) -> tuple[dict[int, int], dict[int, int]]:
        """Finds the activations that a quantizer of the other graph replaces by its integer range.

        Returns:
            Index of the quantizer, by node index of the activation, for the first and the second graph.
        """
        rounded = self.describer.rounded
        if rounded is None:
            return {}, {}
        if rounded.side is self.after:
            return find_absorbed_activations(self.before, self.matching.before, rounded), {}
        return {}, find_absorbed_activations(self.after, self.matching.after, rounded)

    def shared(self) -> tuple[dict[int, int], dict[int, int]]:
        """Finds unpaired Constants whose readers read an equal Constant in the other graph.

        Returns:
            Index of the equal Constant, by node index, for the first and the second graph.
        """
        sides = (self.before, self.matching.before), (self.after, self.matching.after)
        constants_before, constants_after = (
            {
                i: equal_constant
                for i, partner in enumerate(partners)
                if partner is None
                and i not in self.excluded_nodes[index]
                and (equal_constant := self.describer.shared(i, is_second=index == 1)) is not None
            }
            for index, (side, partners) in enumerate(sides)
        )
        return constants_before, constants_after


def open_calls_like(model: Model, reference: Model) -> Model:
    """Inlines the function calls of a model if the inlined nodes have names that `reference` has."""
    called_functions = {node.key for node in list_stored_nodes(model.graph.nodes)} & model.functions.keys()
    if not called_functions - reference.functions.keys():
        return model
    own_names, reference_names = (
        {node.name for node in list_stored_nodes(graph_model.graph.nodes)}
        for graph_model in (model, reference)
    )
    opened_model = inline_calls(model, OPERATORS)
    return (
        opened_model
        if any(
            node.name in reference_names - own_names for node in list_stored_nodes(opened_model.graph.nodes)
        )
        else model
    )


def pair_nodes(before: Model, after: Model, tell: Tell, cancel: Cancel) -> NodePairing:
    """Pairs the parts of two graphs, after each graph is folded like the other graph."""
    pairing = _pair_graphs(before, after, tell, cancel)
    partners = pairing.matching.before, pairing.matching.after
    sides, models = (pairing.before, pairing.after), (before, after)
    shared = pairing.shared()
    candidates = [
        find_foldable(sides[side], partners[side], pairing.excluded_nodes[side], sides[1 - side])
        - find_helper_nodes(sides[side], partners[side], pairing.excluded_nodes[side]).keys()
        - shared[side].keys()
        for side in (0, 1)
    ]
    for _ in range(_TRIES):
        tell("folding", 0, 0)
        foldings = [fold_side(models[side], candidates[side], sides[1 - side]) for side in (0, 1)]
        if not any(foldings):
            break
        reduced = [
            models[side] if side_folds is None else side_folds.model
            for side, side_folds in enumerate(foldings)
        ]
        folded_pairing = _add_folds(_pair_graphs(reduced[0], reduced[1], tell, cancel), foldings, models)
        rejected = [_find_unmatched_folds(folded_pairing, side) for side in (0, 1)]
        if not any(rejected):
            return folded_pairing
        candidates = [places - excluded for places, excluded in zip(candidates, rejected, strict=True)]
    return pairing


def _add_folds(
    pairing: NodePairing, foldings: Sequence[FoldedAway | None], models: tuple[Model, Model]
) -> NodePairing:
    """Adds the foldings of both graphs to the pairing of the folded graphs."""
    sides = pairing.before, pairing.after
    first, second = [
        None if folded_away is None else SideFolds(folded_away, models[side], sides[side], set())
        for side, folded_away in enumerate(foldings)
    ]
    describer = pairing.describer
    describer.folded = collect_magnitudes((first, second))
    describer.targets = first.folding.ops if first else {}, second.folding.ops if second else {}
    return replace(pairing, folds=(first, second))


def _find_unmatched_folds(pairing: NodePairing, side: int) -> set[int]:
    """Returns the indices of nodes that were folded in one graph but not by the tool of the other graph."""
    folds = pairing.folds[side]
    if folds is None:
        return set()
    partners = pairing.matching.after if side else pairing.matching.before
    return find_rejected_folds(folds, partners, pairing.describer, side == 1)


def _pair_graphs(before: Model, after: Model, tell: Tell, cancel: Cancel) -> NodePairing:
    tell("indexing both graphs", 0, 0)
    first, second = DefUse(before), DefUse(after)
    forms = Forms(cancel)
    sites = pair_sites(first, second, forms)
    inputs = _pair_values(first.inputs, second.inputs)
    outputs = _pair_values(first.outputs, second.outputs)
    input_pairs = [(a.name, b.name) for a, b in inputs if a is not None and b is not None]
    input_pairs += collect_ties(sites)
    output_pairs = [(a.name, b.name) for a, b in outputs if a is not None and b is not None]
    excluded_nodes = collect_site_nodes(sites)
    rounded = None if sites else fold_rounding(first, second)
    if rounded is not None:
        excluded_nodes[rounded.side is second].update(rounded.folded)
    matching = match(
        first,
        second,
        forms,
        excluded_nodes=excluded_nodes,
        ties=[*input_pairs, *output_pairs],
        on_phase=lambda phase: tell(phase, 0, 0),
    )
    if rounded is not None:  # a node without a partner keeps its quantized operator
        partners = matching.after if rounded.side is second else matching.before
        original_nodes = rounded.side.model.graph.nodes
        nodes = zip(rounded.side.nodes, original_nodes, partners, strict=True)
        rounded.side.nodes = [
            node if partner is not None else original_node for node, original_node, partner in nodes
        ]
    describer = Describer(first, second, forms, matching, set(input_pairs), rounded)
    return NodePairing(first, second, forms, sites, excluded_nodes, inputs, outputs, matching, describer)


def find_helper_nodes(
    side: DefUse, partners: Sequence[int | None], excluded_nodes: set[int], is_second: bool = False
) -> dict[int, str]:
    """Finds unpaired nodes that only tiled sites read; returns a text about each, by node index.

    Args:
        side: Graph to search.
        partners: Partner of each node, or None.
        excluded_nodes: Nodes of tiled sites.
        is_second: Whether `side` is the second graph.
    """
    texts: dict[int, str] = {}
    if not excluded_nodes:
        return texts
    output_names = {value.name for value in side.outputs}
    for i in range(len(side.nodes) - 1, -1, -1):
        if partners[i] is not None or i in excluded_nodes:
            continue
        node = side.nodes[i]
        users = [user for name in node.outputs for user, _ in side.users.get(name, ())]
        if (
            users
            and not output_names.intersection(node.outputs)
            and all(u in excluded_nodes or u in texts for u in users)
        ):
            is_rounding = node.op in _ROUNDING or node.domain in QUANTIZERS
            texts[i] = _ROUNDS if is_rounding else _FOLDED[is_second]
    return texts


def _pair_values(before: Sequence[Value], after: Sequence[Value]) -> list[ValuePair]:
    """Pairs inputs or outputs by name, then in order if type and shape agree."""
    by_name = {value.name: value for value in after}
    partner: dict[str, Value] = {v.name: by_name[v.name] for v in before if v.name in by_name}
    paired_names = {v.name for v in partner.values()}
    unpaired_before = [v for v in before if v.name not in partner]
    unpaired_after = [v for v in after if v.name not in paired_names]
    for value in unpaired_before:
        counterpart = next(
            (o for o in unpaired_after if (o.dtype, o.shape) == (value.dtype, value.shape)), None
        )
        if counterpart is None and len(unpaired_before) == len(unpaired_after) == 1:
            counterpart = unpaired_after[0]
        if counterpart is not None:
            partner[value.name] = counterpart
            unpaired_after.remove(counterpart)
            unpaired_before = [v for v in unpaired_before if v.name not in partner]
    pairs: list[ValuePair] = [(v, partner.get(v.name)) for v in before]
    return pairs + [(None, v) for v in unpaired_after]
