"""Compares two graphs and returns rows of differences, a summary by operator, and a verdict.

The comparison has three steps. `match` pairs the nodes, `describe` compares each pair, and `sites`
condenses the nodes of a tiled site into one row. (A site is a matrix product that can be tiled.) This
module orders the rows and counts them. The graphs may come from this program or from any other tool.

Two graphs are equal if they differ only in internal names. A node is listed as 'renamed' if only its own
name or the names of its values or weights changed. Such a node counts as unchanged, because it computes
the same result. A new name of a graph input or output is a change, because callers use these names. The
diff ignores the producer, doc strings, metadata, and opset imports that no operator uses.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from explorer.base.units import many_text, shape_text
from explorer.engine.costs.onnx.scopes import NAMES, find_module_path
from explorer.engine.diff.def_use import DefUse
from explorer.engine.diff.describe import Describer, describe_tensor_change
from explorer.engine.diff.folding import locate_replacement
from explorer.engine.diff.forms import Forms
from explorer.engine.diff.match import Matching, match
from explorer.engine.diff.pairing import (
    NodePairing,
    ReportPhase,
    ValuePair,
    find_helper_nodes,
    inline_calls_if_named_in,
    pair_nodes,
)
from explorer.engine.diff.rounding import OPERATORS, QUANTIZERS
from explorer.engine.diff.sites import (
    SitePair,
    collect_known_pairs,
    collect_site_nodes,
    find_nested_sites,
    pair_sites,
)
from explorer.engine.fold.activations import DOMAIN as FUSED_DOMAIN
from explorer.engine.graph.model import Model, Node, Value
from explorer.engine.graph.repeated_nodes import list_stored_nodes
from explorer.engine.graph.tile_metadata import DOMAIN
from explorer.engine.progress import Cancel, OnProgress, report
from explorer.engine.shapes.subgraphs import find_view, join_path, name_function
from explorer.facts import Analysis, Diff, NodeDiff, OpDiff

_INPUT, _OUTPUT, _OPSET, _FUNCTION = "Input", "Output", "Opset", "Function"
"""Texts that replace the operator in rows about the graph itself."""

_IN_RANGE_TEXT = "replaced by the integer range of the quantizer that follows, with the same values"
_SHARED_CONSTANT_TEXT = "replaced by a Constant of equal value with another name"
"""Texts about nodes that one graph lacks because another node of that graph does their work."""

_REPORT_INTERVAL = 1024
"""Number of compared nodes between two reports of progress."""


def diff(
    before: Model,
    after: Model,
    *,
    before_analysis: Analysis,
    after_analysis: Analysis,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Diff:
    """Compares two graphs and lists their differences.

    Args:
        before: The first graph, from `validate`.
        after: The second graph, from `validate`.
        before_analysis: The analysis with the totals of the first graph.
        after_analysis: The analysis with the totals of the second graph.
        on_progress: Receives the phase and the number of compared nodes.
        cancel: Callback between steps; the comparison stops when it returns True.

    Returns:
        The differences. Their rows have this order: opsets, inputs, folded nodes, nodes, outputs, functions.
        Nodes have the order of `before`; an added node follows its predecessor in `after`. The status of a
        row is one of:

        - 'changed', 'added', 'removed' or 'renamed'.
        - 'folded': one row for all nodes that one kind of rewrite removed.
        - 'tiled': a site that is tiled in `after`.
        - 'merged': a site that is tiled in `before`.
        - 'quantized': a layer that `after` quantizes without other changes.

        The summary counts each node of `before` once, as changed, unchanged or removed. A node of `after`
        without a counterpart counts as added. The nodes of a site that `after` tiles count as one node: the
        matrix product that they replace. Nodes that only round an input of a layer count as part of it.
        Graph inputs and outputs are counted as 'Input' and 'Output'.

    Raises:
        Cancelled: `cancel` returned True.
    """
    tally = _Tally()
    rows = _list_rows(before, after, tally, partial(report, on_progress, cancel), cancel)
    for row in rows:
        if row.op_before in (_OPSET, _FUNCTION) or row.op_after in (_OPSET, _FUNCTION):
            tally.count_row(row, row.op_before or row.op_after or "")
    return Diff(
        before=before_analysis.info.model.source or before.path,
        after=after_analysis.info.model.source or after.path,
        equal=all(row.status == "renamed" for row in rows),
        summary=tally.summarize(),
        nodes=tuple(_add_layers(rows, before, after)),
        totals_before=before_analysis.info.totals,
        totals_after=after_analysis.info.totals,
        dims=after_analysis.info.assumptions.get("dims") or {},
    )


def _add_layers(rows: Sequence[NodeDiff], before: Model, after: Model) -> Iterator[NodeDiff]:
    """Adds the module path to each row whose node has it in its metadata (torch's dynamo exporter)."""
    paths_before, paths_after = (
        {
            node.label: find_module_path(node)
            for node in list_stored_nodes(model.graph.nodes)
            if NAMES in node.metadata
        }
        for model in (before, after)
    )
    for row in rows:
        layer = paths_before.get(row.before or "") or paths_after.get(row.after or "")
        yield replace(row, layer=layer) if layer else row


def _list_rows(
    before: Model, after: Model, tally: _Tally, report_phase: ReportPhase, cancel: Cancel
) -> list[NodeDiff]:
    """Lists the differences in display order, and counts nodes, inputs and outputs in `tally`."""
    inlined_before = inline_calls_if_named_in(before, after)
    inlined_after = inline_calls_if_named_in(after, before)
    pairing = pair_nodes(inlined_before, inlined_after, report_phase, cancel)
    has_nested_sites = bool(find_nested_sites(inlined_before) or find_nested_sites(inlined_after))
    folded_models = pairing.before.model, pairing.after.model
    rows = [*_list_opset_rows(*folded_models, _find_ignored_domains(pairing, has_nested_sites))]
    for row, op in _list_input_rows(pairing):
        tally.count_row(row, op)
        rows += [row] if row else []
    rows += _list_fold_rows(pairing, tally)
    replacements_by_text = {
        _IN_RANGE_TEXT: pairing.find_absorbed_activations(),
        _SHARED_CONSTANT_TEXT: pairing.find_equal_constants(),
    }
    for text, replacements in replacements_by_text.items():
        for side in (0, 1):
            if replacements[side]:
                rows.append(_build_replaced_row(pairing, side, replacements[side], text, tally))
    excluded_before, excluded_after = (
        pairing.excluded_nodes[side].union(*(nodes[side] for nodes in replacements_by_text.values()))
        for side in (0, 1)
    )
    node_rows = _list_node_rows(
        pairing.before,
        pairing.after,
        pairing.matching,
        pairing.describer,
        pairing.sites,
        (excluded_before, excluded_after),
        tally,
        report_phase,
    )
    rows += _expand_bodies(node_rows, folded_models, (), pairing.forms, report_phase)
    for row, op in _list_output_rows(pairing):
        tally.count_row(row, op)
        rows += [row] if row else []
    function_rows = list(
        _list_function_rows(
            *folded_models, pairing.describer, pairing.excluded_nodes, has_nested_sites=has_nested_sites
        )
    )
    expanded_function_rows = _expand_bodies(function_rows, folded_models, (), pairing.forms, report_phase)
    # the row of a call is redundant if tiling is the only change in the called function
    tiled_functions = {row.function for row in function_rows if row not in expanded_function_rows}
    return [*(row for row in rows if row.function not in tiled_functions), *expanded_function_rows]


def list_graph_changes(pairing: NodePairing) -> list[NodeDiff]:
    """Lists the differences of opsets, graph inputs and graph outputs, without differences of nodes."""
    before, after = pairing.before.model, pairing.after.model
    has_nested_sites = bool(find_nested_sites(before) or find_nested_sites(after))
    input_output_rows = (*_list_input_rows(pairing), *_list_output_rows(pairing))
    return [
        *_list_opset_rows(before, after, _find_ignored_domains(pairing, has_nested_sites)),
        *(row for row, _ in input_output_rows if row is not None),
    ]


def _list_input_rows(pairing: NodePairing) -> Iterator[tuple[NodeDiff | None, str]]:
    return _list_value_rows(pairing.inputs, pairing.after.inputs, _INPUT, lambda a, b: [])


def _list_output_rows(pairing: NodePairing) -> Iterator[tuple[NodeDiff | None, str]]:
    def describe_source(a: str, b: str) -> list[str]:
        return _describe_source_change(a, b, pairing.describer)

    return _list_value_rows(pairing.outputs, pairing.after.outputs, _OUTPUT, describe_source)


def _list_fold_rows(pairing: NodePairing, tally: _Tally) -> Iterator[NodeDiff]:
    """Yields one row for each kind of rewrite, such as folded constants, and counts the folded nodes."""
    for side, folds in enumerate(pairing.folds):
        if folds is not None:
            for node in folds.folding.folded:
                tally.add(node.op, "added" if side else "removed")
            yield from folds.list_rows(side == 1)


def _build_replaced_row(
    pairing: NodePairing, side_index: int, replacements: Mapping[int, int], text: str, tally: _Tally
) -> NodeDiff:
    """Summarizes in one row the nodes of one graph that the opposite graph replaces by other nodes.

    Args:
        pairing: Pairs of the two graphs.
        side_index: Graph with the replaced nodes: 0 for the first, 1 for the second.
        replacements: Index of the replacing node in the opposite graph, by index of the replaced node.
        text: Text about the replacement.
        tally: Receives the number of replaced nodes.
    """
    side, opposite = ((pairing.before, pairing.after), (pairing.after, pairing.before))[side_index]
    op_counts = Counter(side.nodes[i].op for i in replacements)
    for op, count in op_counts.items():
        tally.add(op, "added" if side_index else "removed", count)
    replaced_index, replacing_index = next(iter(replacements.items()))
    replaced, replacing = side.nodes[replaced_index], opposite.model.graph.nodes[replacing_index]
    first, second = (replacing, replaced) if side_index else (replaced, replacing)
    ops_text = ", ".join(f"{count:,} {op}" for op, count in op_counts.most_common())
    return NodeDiff(
        status="folded",
        before=first.label,
        after=second.label,
        what=locate_replacement(f"{ops_text} {text}", side_index == 1),
        op_before=first.op,
        op_after=second.op,
    )


class _Tally:
    """Counts the changed, added, removed and unchanged nodes of each operator."""

    def __init__(self) -> None:
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, op: str, status: str, count: int = 1) -> None:
        """Counts nodes of an operator with a status: 'changed', 'added', 'removed' or 'unchanged'."""
        self.counts[op][status] += count

    def count_row(self, row: NodeDiff | None, op: str) -> None:
        """Counts one row about `op`; a `row` of None is a pair without a difference."""
        status = "unchanged" if row is None or row.status == "renamed" else row.status
        status = "changed" if status == "quantized" else status
        self.add(op, status)

    def summarize(self) -> tuple[OpDiff, ...]:
        """Returns one row for each operator.

        Operators with differences come first, then those with more nodes. Rows about the graph come last.
        """
        diffs = []
        for op, counts in self.counts.items():
            changed, unchanged, removed = counts["changed"], counts["unchanged"], counts["removed"]
            total = changed + unchanged + removed
            diffs.append(OpDiff(op, total, changed, unchanged, counts["added"], removed))
        graph_ops = (_INPUT, _OUTPUT, _OPSET, _FUNCTION)

        def sort_key(row: OpDiff) -> tuple[int, bool, int, str]:
            is_unchanged = not (row.changed or row.added or row.removed)
            graph_position = graph_ops.index(row.op) if row.op in graph_ops else -1
            return graph_position, is_unchanged, -(row.total + row.added), row.op

        return tuple(sorted(diffs, key=sort_key))


def _expand_bodies(
    rows: Sequence[NodeDiff],
    models: tuple[Model, Model],
    path: tuple[str, ...],
    forms: Forms,
    report_phase: ReportPhase,
) -> list[NodeDiff]:
    """Replaces each row about a body (subgraph or function) that differs only by tiling.

    The rows of the tiled sites in the body replace it. `path` is the path of the graph to which `rows`
    belong.
    """
    expanded_rows: list[NodeDiff] = []
    for row in rows:
        bodies = _list_changed_bodies(row, find_view(models[0], path))
        rows_of_bodies = [_list_tiled_rows(models, (*path, body), forms, report_phase) for body in bodies]
        if bodies and all(rows_of_bodies):
            expanded_rows += [body_row for body_rows in rows_of_bodies for body_row in body_rows]
        else:
            expanded_rows.append(row)
    return expanded_rows


def _list_changed_bodies(row: NodeDiff, graph_model: Model | None) -> list[str]:
    """Returns the names of the bodies that differ in a row, or [] if the row has other differences."""
    if row.status != "changed" or row.before is None or graph_model is None:
        return []
    if row.op_before == row.op_after == _FUNCTION:
        return [f"{row.before}()"]
    input_names = {
        name for node in graph_model.graph.nodes if node.label == row.before for name in node.inputs
    }
    # another difference: of the node itself, or of a weight that the node itself reads
    if row.has_other_changes or not input_names.isdisjoint(row.weights):
        return []
    return [f"{row.before}.{name}" for name in row.contents]


def _list_tiled_rows(
    models: tuple[Model, Model], path: tuple[str, ...], forms: Forms, report_phase: ReportPhase
) -> list[NodeDiff]:
    """Returns the rows of the body at `path` if tiling is its only change, or [] otherwise."""
    body_before, body_after = (find_view(model, path) for model in models)
    if body_before is None or body_after is None:
        return []
    inputs_before, outputs_before = _list_input_output_names(models[0], body_before, path[-1])
    inputs_after, outputs_after = _list_input_output_names(models[1], body_after, path[-1])
    if len(inputs_before) != len(inputs_after) or len(outputs_before) != len(outputs_after):
        return []
    inputs = list(zip(inputs_before, inputs_after, strict=True))
    outputs = list(zip(outputs_before, outputs_after, strict=True))
    first, second = DefUse(body_before), DefUse(body_after)
    sites = pair_sites(first, second, forms)
    shared_outer_values = [
        (name, name) for name in sorted(_find_outer_values(first) & _find_outer_values(second))
    ]
    input_pairs = [*inputs, *shared_outer_values, *collect_known_pairs(sites)]
    site_nodes = collect_site_nodes(sites)
    # in a body, weights may be Constant nodes; Constant nodes of a tiled site are not matched
    site_and_helper_nodes = (
        site_nodes[0] | find_helper_nodes(first, [None] * len(first.nodes), site_nodes[0]).keys(),
        site_nodes[1] | find_helper_nodes(second, [None] * len(second.nodes), site_nodes[1]).keys(),
    )
    matching = match(
        first, second, forms, excluded_nodes=site_and_helper_nodes, known_pairs=[*input_pairs, *outputs]
    )
    describer = Describer(first, second, forms, matching, set(input_pairs))
    rows = _list_node_rows(first, second, matching, describer, sites, site_nodes, _Tally(), report_phase)
    rows = [row for row in _expand_bodies(rows, models, path, forms, report_phase) if not row.is_helper]
    if any(row.status not in ("tiled", "merged") for row in rows):
        return []
    if any(_describe_source_change(a, b, describer) for a, b in outputs):
        return []
    # the view of a body includes outer nodes that it depends on; they have rows of their own, and their names
    # lack the path of the body, which earlier versions of the program wrote in another form
    prefixes = join_path(path[:-1], path[-1]), "/".join(path)
    names = ((row.before or "") + (row.after or "") for row in rows)
    body_rows = [
        row for row, name in zip(rows, names, strict=True) if any(prefix in name for prefix in prefixes)
    ]
    return [
        replace(row, before=_add_path(path, row.before), after=_add_path(path, row.after))
        for row in body_rows
    ]


def _find_outer_values(side: DefUse) -> set[str]:
    """Returns the names of the values that a body reads from outer graphs."""
    inputs = {value.name for value in side.inputs}
    return {n for n in side.users if n not in side.producer and n not in side.stored and n not in inputs}


def _add_path(path: tuple[str, ...], name: str | None) -> str | None:
    """Returns a name in a body with the body's path before it, unless it starts as the path does."""
    return name if name is None or name.startswith(path[0]) else join_path(path, name)


def _list_input_output_names(model: Model, body: Model, name: str) -> tuple[list[str], list[str]]:
    """Returns the input names and the output names of a body.

    Args:
        model: Model that contains the body.
        body: View of the body as a model.
        name: Last part of the body's path: the name of a function, or of a node and its attribute.
    """
    function = next((f for f in model.functions.values() if name_function(model, f) == name), None)
    if function is not None:
        return list(function.inputs), list(function.outputs)
    return [value.name for value in body.graph.inputs], [value.name for value in body.graph.outputs]


def _list_node_rows(
    before: DefUse,
    after: DefUse,
    matching: Matching,
    describer: Describer,
    sites: Sequence[SitePair],
    excluded_nodes: tuple[set[int], set[int]],
    tally: _Tally,
    report_phase: ReportPhase,
) -> list[NodeDiff]:
    """Returns the rows of nodes in the order of `before`; an added node follows the last pair before it."""
    rows_with_positions: list[tuple[tuple[int, int, int], NodeDiff]] = []
    for site in sites:
        rows_with_positions.append(((min(site.before), 0, 0), site.row))
        for i in site.before:
            tally.add(before.nodes[i].op, "changed")
    helper_texts_before = find_helper_nodes(before, matching.before, excluded_nodes[0]) if sites else {}
    total = len(before.nodes)
    for a, b in enumerate(matching.before):
        if a % _REPORT_INTERVAL == 0:
            report_phase("comparing nodes", a, total)
        node = before.nodes[a]
        if b is not None:
            row = describer.describe_pair(a, b)
            original_op = describer.original_ops[0].get(a, node.op)
            if (row is None or row.status == "renamed") and describer.has_folded_nodes(a, b):
                # a node that absorbed folded nodes has changed, even without a row of its own
                tally.add(original_op, "changed")
            else:
                tally.count_row(row, original_op)
            if row is not None:
                row = replace(row, op_before=original_op)
                rows_with_positions.append(((a, 0, 0), row))
        elif a not in excluded_nodes[0]:
            row = _build_node_row(node, helper_texts_before.get(a), is_removed=True)
            tally.count_row(row, node.op)
            rows_with_positions.append(((a, 0, 0), row))
    helper_texts_after = (
        find_helper_nodes(after, matching.after, excluded_nodes[1], is_second=True) if sites else {}
    )
    # use the highest partner so far, so that one moved node does not move the added nodes with it
    partner_of_site = {i: min(site.before) for site in sites for i in site.after}
    last_partner = -1
    for b, partner in enumerate(matching.after):
        node = after.nodes[b]
        if partner is not None:
            last_partner = max(last_partner, partner)
        elif b in excluded_nodes[1]:
            last_partner = max(last_partner, partner_of_site.get(b, last_partner))
        else:
            row = _build_node_row(node, helper_texts_after.get(b), is_removed=False)
            tally.count_row(row, node.op)
            rows_with_positions.append(((last_partner, 1, b), row))
    rows_with_positions.sort(key=lambda row_with_position: row_with_position[0])
    return [row for _, row in rows_with_positions]


def _list_value_rows(
    pairs: Sequence[ValuePair], after: Sequence[Value], op: str, list_changes: Callable[[str, str], list[str]]
) -> Iterator[tuple[NodeDiff | None, str]]:
    """Yields a row, or None if nothing differs, and `op` for each pair of inputs or outputs.

    Args:
        pairs: Pairs of inputs, or pairs of outputs.
        after: Inputs or outputs of the second graph, in order.
        op: Text that the row shows as operator: 'Input' or 'Output'.
        list_changes: Returns texts about further changes, from the names of a pair.
    """
    moved = _find_moves(pairs, after)
    for a, b in pairs:
        if a is None or b is None:
            value = a or b
            assert value is not None
            text = f"{value.dtype or '?'} {shape_text(value.shape)}"
            yield _build_one_sided_row(op, value.name, text, is_removed=b is None), op
            continue
        changes = []
        if a.name != b.name:
            changes.append(f"name {a.name} -> {b.name}")
        if a.dtype != b.dtype:
            changes.append(f"type {a.dtype or '?'} -> {b.dtype or '?'}")
        if a.shape != b.shape:
            changes.append(f"shape {shape_text(a.shape)} -> {shape_text(b.shape)}")
        if a.name in moved:
            changes.append("position {} -> {}".format(*moved[a.name]))
        changes += list_changes(a.name, b.name)
        if not changes:
            yield None, op
            continue
        is_same_type = (a.dtype, a.shape) == (b.dtype, b.shape)
        match, confidence = ("name", 1.0) if a.name == b.name else ("structure", 0.8 if is_same_type else 0.5)
        yield NodeDiff("changed", a.name, b.name, "; ".join(changes), op, op, match, confidence), op


def _build_one_sided_row(op: str, name: str, text: str, *, is_removed: bool) -> NodeDiff:
    """Returns the row of a node, value, opset or function that only one graph has."""
    if is_removed:
        return NodeDiff("removed", name, None, text, op, None)
    return NodeDiff("added", None, name, text, None, op)


def _build_node_row(node: Node, helper_text: str | None, *, is_removed: bool) -> NodeDiff:
    """Returns the row of a node that only one graph has.

    `helper_text` is about a helper node (see `find_helper_nodes`), and None for any other node.
    """
    row = _build_one_sided_row(node.op, node.label, helper_text or "", is_removed=is_removed)
    return replace(row, is_helper=helper_text is not None)


def _find_moves(pairs: Sequence[ValuePair], after: Sequence[Value]) -> dict[str, tuple[int, int]]:
    """Returns the old and new positions of moved inputs or outputs. Callers may depend on their order."""
    if any(a is None or b is None for a, b in pairs):
        # an added value shifts all later values, which does not count as a move
        return {}
    new_positions = {value.name: i for i, value in enumerate(after)}
    positions = [(i, a.name, new_positions[b.name]) for i, (a, b) in enumerate(pairs) if a and b]
    return {name: (i, new_position) for i, name, new_position in positions if i != new_position}


def _describe_source_change(a: str, b: str, describer: Describer) -> list[str]:
    """Describes in a list of at most one text how the source of a graph output changed."""
    if describer.is_same_value(a, b):
        return []
    before, after = describer.before, describer.after
    if a in before.stored and b in after.stored:
        change = describe_tensor_change(a, before.stored[a], after.stored[b], describer.forms)
        return [change] if change else []

    def get_source_label(side: DefUse, name: str) -> str:
        producer = side.producer.get(name)
        return side.nodes[producer[0]].label if producer else name

    label_before, label_after = get_source_label(before, a), get_source_label(after, b)
    if label_before == label_after:
        return [f"comes from another node with the name {label_after}"]
    return [f"comes from {label_before} -> {label_after}"]


def _find_ignored_domains(pairing: NodePairing, has_nested_sites: bool) -> frozenset[str]:
    """Returns the domains to ignore because other rows cover them: tiling, quantizers, fused activations.

    `has_nested_sites` tells whether bodies contain tiled sites.
    """
    has_fused_activations = any(
        side_folds is not None and "activation" in side_folds.folding.kinds for side_folds in pairing.folds
    )
    domains: set[str] = set()
    if pairing.sites or has_nested_sites:
        domains.add(DOMAIN)
    if pairing.describer.rounded is not None:
        domains |= QUANTIZERS
    if has_fused_activations:
        domains.add(FUSED_DOMAIN)
    return frozenset(domains)


def _list_opset_rows(before: Model, after: Model, ignored_domains: Collection[str]) -> Iterator[NodeDiff]:
    """Yields a row for each changed opset of a domain that nodes use, without `ignored_domains`."""
    used_domains = _list_domains(before) | _list_domains(after)
    for domain in dict.fromkeys((*before.opsets, *after.opsets)):
        version_before, version_after = before.opsets.get(domain), after.opsets.get(domain)
        if version_before == version_after or domain not in used_domains or domain in ignored_domains:
            continue
        name = domain or "ai.onnx"
        text = f"opset {version_before or 'none'} -> {version_after or 'none'}"
        if version_before is None or version_after is None:
            yield _build_one_sided_row(_OPSET, name, text, is_removed=version_after is None)
        else:
            yield NodeDiff("changed", name, name, text, _OPSET, _OPSET, "name")


def _list_domains(model: Model) -> set[str]:
    """Returns the domains of the nodes in the main graph and in functions, but not in bodies of nodes."""
    bodies = (model.graph.nodes, *(f.nodes for f in model.functions.values()))
    return {node.domain for nodes in bodies for node in nodes}


def _list_function_rows(
    before: Model,
    after: Model,
    describer: Describer,
    excluded_nodes: tuple[set[int], set[int]],
    *,
    has_nested_sites: bool,
) -> Iterator[NodeDiff]:
    """Yields rows of added, removed and changed functions, except functions that only tiled sites use."""
    site_only_functions = _find_site_only_functions(before, excluded_nodes[0], has_nested_sites)
    site_only_functions |= _find_site_only_functions(after, excluded_nodes[1], has_nested_sites)
    for key in dict.fromkeys((*before.functions, *after.functions)):
        _, name, _ = key
        if key not in after.functions or key not in before.functions:
            is_removed = key in before.functions
            if key not in site_only_functions:
                text = _count_nodes_text(before if is_removed else after, key)
                yield _build_one_sided_row(_FUNCTION, name, text, is_removed=is_removed)
        elif describer.function_differs(key):
            text = f"body: {_count_nodes_text(before, key)} -> {_count_nodes_text(after, key)}"
            yield NodeDiff("changed", name, name, text, _FUNCTION, _FUNCTION, "name", function=key)


def _count_nodes_text(model: Model, key: tuple[str, str, str]) -> str:
    """Returns the number of nodes of a function as text: '3 nodes'."""
    return many_text(len(model.functions[key].nodes), "node")


def _find_site_only_functions(
    model: Model, excluded_nodes: set[int], has_nested_sites: bool
) -> set[tuple[str, str, str]]:
    """Returns the keys of tile functions and quantizers that only the excluded nodes call.

    `has_nested_sites` tells whether bodies contain tiled sites.
    """
    if not excluded_nodes and not has_nested_sites:
        return set()
    called_keys: set[tuple[str, str, str]] = set()
    pending = [node.key for i, node in enumerate(model.graph.nodes) if i not in excluded_nodes]
    while pending:
        key = pending.pop()
        if key in model.functions and key not in called_keys:
            called_keys.add(key)
            pending += [node.key for node in model.functions[key].nodes]
    return {key for key in model.functions if key not in called_keys and key[0] in OPERATORS}
