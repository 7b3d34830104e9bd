"""Pairs the nodes, inputs, outputs and tiled sites of two graphs.

This is the first half of a diff. The table of the diff (`compare`) and the view of two layer trees side by
side (`trees`) both use it.
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
from explorer.engine.diff.sites import SitePair, collect_known_pairs, collect_site_nodes, pair_sites
from explorer.engine.fold.calls import inline_calls
from explorer.engine.fold.fold import FoldedAway
from explorer.engine.graph.model import Model, Value
from explorer.engine.graph.repeated_nodes import list_stored_nodes
from explorer.engine.progress import Cancel

ReportPhase = Callable[[str, int, int], None]
"""Callback that receives the phase, the number of completed steps and the total."""

_TILED_WEIGHT_TEXTS = (
    "part of a tiled weight in the second graph",
    "part of a tiled weight in the first graph",
)
"""Texts about a node that only the first graph has, and about a node that only the second graph has."""

_ROUNDING_TEXT = "rounds an input of a tiled matmul"

_MAX_ATTEMPTS = 4
"""Maximum number of attempts. Each attempt drops the folds that the other graph lacks and matches again."""

_ROUNDING_OPS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")

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
        folds: Folding of the first and of the second graph, or None if no node of the graph was folded.
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

    def find_absorbed_activations(self) -> tuple[dict[int, int], dict[int, int]]:
        """Finds the activations that a quantizer of the other graph makes unnecessary.

        The integer range of the quantizer clips values in the same way as an activation such as Relu.

        Returns:
            Index of the quantizer, by node index of the activation, for the first and the second graph.
        """
        rounded = self.describer.rounded
        if rounded is None:
            return {}, {}
        if rounded.side is self.after:
            return find_absorbed_activations(self.before, self.matching.before, rounded), {}
        return {}, find_absorbed_activations(self.after, self.matching.after, rounded)

    def find_equal_constants(self) -> tuple[dict[int, int], dict[int, int]]:
        """Finds unpaired Constants whose readers read an equal Constant in the other graph.

        Returns:
            Index of the equal Constant, by node index, for the first and the second graph.
        """
        constants: tuple[dict[int, int], dict[int, int]] = ({}, {})
        for side, partners in enumerate((self.matching.before, self.matching.after)):
            for i, partner in enumerate(partners):
                if partner is None and i not in self.excluded_nodes[side]:
                    equal_constant = self.describer.find_equal_constant(i, is_second=side == 1)
                    if equal_constant is not None:
                        constants[side][i] = equal_constant
        return constants


def inline_calls_if_named_in(model: Model, reference: Model) -> Model:
    """Inlines the function calls of a model if the inlined nodes have names that `reference` has."""
    called_functions = {node.key for node in list_stored_nodes(model.graph.nodes)} & model.functions.keys()
    if not called_functions - reference.functions.keys():
        return model
    own_names = {node.name for node in list_stored_nodes(model.graph.nodes)}
    reference_names = {node.name for node in list_stored_nodes(reference.graph.nodes)}
    inlined_model = inline_calls(model, OPERATORS)
    inlined_names = {node.name for node in list_stored_nodes(inlined_model.graph.nodes)}
    return inlined_model if inlined_names & (reference_names - own_names) else model


def pair_nodes(before: Model, after: Model, report_phase: ReportPhase, cancel: Cancel) -> NodePairing:
    """Pairs the nodes, inputs, outputs and sites of two graphs.

    A node that only one graph has may have been folded away in the other graph. Such nodes are folded first.
    """
    pairing = _pair_graphs(before, after, report_phase, cancel)
    partners = pairing.matching.before, pairing.matching.after
    sides, models = (pairing.before, pairing.after), (before, after)
    equal_constants = pairing.find_equal_constants()
    candidates = [
        find_foldable(sides[side], partners[side], pairing.excluded_nodes[side], sides[1 - side])
        - find_helper_nodes(sides[side], partners[side], pairing.excluded_nodes[side]).keys()
        - equal_constants[side].keys()
        for side in (0, 1)
    ]
    for _ in range(_MAX_ATTEMPTS):
        report_phase("folding", 0, 0)
        foldings = [fold_side(models[side], candidates[side], sides[1 - side]) for side in (0, 1)]
        if not any(foldings):
            break
        folded_before, folded_after = (
            model if folding is None else folding.model
            for model, folding in zip(models, foldings, strict=True)
        )
        folded_pairing = _pair_graphs(folded_before, folded_after, report_phase, cancel)
        folded_pairing = _add_folds(folded_pairing, foldings, models)
        rejected = [_find_unmatched_folds(folded_pairing, side) for side in (0, 1)]
        if not any(rejected):
            return folded_pairing
        candidates = [candidates[side] - rejected[side] for side in (0, 1)]
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
    describer.folded_magnitudes = collect_magnitudes((first, second))
    describer.original_ops = first.folding.ops if first else {}, second.folding.ops if second else {}
    return replace(pairing, folds=(first, second))


def _find_unmatched_folds(pairing: NodePairing, side: int) -> set[int]:
    """Returns the indices of nodes that this diff folded in one graph, although the other graph has them."""
    folds = pairing.folds[side]
    if folds is None:
        return set()
    partners = pairing.matching.after if side else pairing.matching.before
    return find_rejected_folds(folds, partners, pairing.describer, side == 1)


def _pair_graphs(before: Model, after: Model, report_phase: ReportPhase, cancel: Cancel) -> NodePairing:
    """Pairs two graphs as they are, without folding constants or batch normalizations."""
    report_phase("indexing both graphs", 0, 0)
    first, second = DefUse(before), DefUse(after)
    forms = Forms(cancel)
    sites = pair_sites(first, second, forms)
    inputs = _pair_values(first.inputs, second.inputs)
    outputs = _pair_values(first.outputs, second.outputs)
    input_pairs = [(a.name, b.name) for a, b in inputs if a is not None and b is not None]
    input_pairs += collect_known_pairs(sites)
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
        known_pairs=[*input_pairs, *output_pairs],
        on_phase=lambda phase: report_phase(phase, 0, 0),
    )
    if rounded is not None:  # restore the original operator of each node without a partner
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
    """Finds helper nodes of tiled sites, such as the Transpose or the rounding of a weight.

    A helper node is unpaired, and only tiled sites and other helper nodes read it. Returns a text about each
    helper node, by node index.

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
            is_rounding = node.op in _ROUNDING_OPS or node.domain in QUANTIZERS
            texts[i] = _ROUNDING_TEXT if is_rounding else _TILED_WEIGHT_TEXTS[is_second]
    return texts


def _pair_values(before: Sequence[Value], after: Sequence[Value]) -> list[ValuePair]:
    """Pairs inputs or outputs by name, then in order if type and shape agree.

    If a single value remains in each graph, both are paired even if they differ.
    """
    by_name = {value.name: value for value in after}
    partner: dict[str, Value] = {v.name: by_name[v.name] for v in before if v.name in by_name}
    paired_names = {v.name for v in partner.values()}
    unpaired_before = [v for v in before if v.name not in partner]
    unpaired_after = [v for v in after if v.name not in paired_names]
    for value in unpaired_before:
        counterpart = next(
            (
                candidate
                for candidate in unpaired_after
                if (candidate.dtype, candidate.shape) == (value.dtype, value.shape)
            ),
            None,
        )
        if counterpart is None and len(unpaired_before) == len(unpaired_after) == 1:
            counterpart = unpaired_after[0]
        if counterpart is not None:
            partner[value.name] = counterpart
            unpaired_after.remove(counterpart)
            unpaired_before = [v for v in unpaired_before if v.name not in partner]
    pairs: list[ValuePair] = [(v, partner.get(v.name)) for v in before]
    return pairs + [(None, v) for v in unpaired_after]
