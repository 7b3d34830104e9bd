"""Compares two graphs and returns rows of differences, a summary by operator, and a verdict.

The comparison has three steps. `match` pairs the nodes, `describe` compares each pair, and `sites`
condenses a tiled site into one row. This module orders the rows and counts them. The graphs may come
from this program or from any other tool.

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
from explorer.engine.diff.def_use import DefUse
from explorer.engine.diff.describe import Describer, describe_tensor_change
from explorer.engine.diff.forms import Forms
from explorer.engine.diff.match import Matching, match
from explorer.engine.diff.pairing import (
    FOLDED,
    NodePairing,
    Tell,
    ValuePair,
    find_helper_nodes,
    open_calls_like,
    pair_nodes,
)
from explorer.engine.diff.rounding import OPERATORS, QUANTIZERS
from explorer.engine.diff.sites import (
    SitePair,
    collect_site_nodes,
    collect_ties,
    find_nested_sites,
    pair_sites,
)
from explorer.engine.fold.activations import DOMAIN as FUSED_DOMAIN
from explorer.engine.graph.model import Model, Value
from explorer.engine.graph.tile_metadata import DOMAIN
from explorer.engine.progress import Cancel, OnProgress, report
from explorer.engine.shapes.subgraphs import find_view, name_function
from explorer.facts import Analysis, Diff, NodeDiff, OpDiff

_INPUT, _OUTPUT, _OPSET, _FUNCTION = "Input", "Output", "Opset", "Function"
"""Texts that replace the operator in rows about the graph itself."""

_IN_RANGE_TEXT = "done by the range of the integers behind, to the same values"
_SHARED_CONSTANT_TEXT = "read from one of equal value, under another name"
"""Descriptions of nodes whose effect the other graph gets from another node."""

_STEP = 1024


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
        Rows of differences in this order: opsets, inputs, nodes, outputs, functions. Nodes have the order
        of `before`; an added node follows its predecessor in `after`. The status of a row is one of:

        - 'changed', 'added', 'removed' or 'renamed'.
        - 'folded': all rewrites of one kind.
        - 'tiled': a site that is tiled in `after`.
        - 'merged': a site that is tiled in `before`.
        - 'quantized': only number formats differ.

        The summary counts each node of `before` once, as changed, unchanged or removed. A node of `after`
        without a counterpart counts as added. Nodes of a tiled site count as the product that they
        replace. Nodes that only round an input of a layer count as part of the layer. Graph inputs and
        outputs are counted as 'Input' and 'Output'.

    Raises:
        Cancelled: `cancel` returned True.
    """
    tally = _Tally()
    rows = _list_rows(before, after, tally, partial(report, on_progress, cancel), cancel)
    for row in rows:
        if row.op_before in (_OPSET, _FUNCTION) or row.op_after in (_OPSET, _FUNCTION):
            tally.count(row, row.op_before or row.op_after or "")
    return Diff(
        before=before_analysis.info.model.source or before.path,
        after=after_analysis.info.model.source or after.path,
        equal=all(row.status == "renamed" for row in rows),
        summary=tally.summary(),
        nodes=tuple(rows),
        totals_before=before_analysis.info.totals,
        totals_after=after_analysis.info.totals,
    )


def _list_rows(before: Model, after: Model, tally: _Tally, tell: Tell, cancel: Cancel) -> list[NodeDiff]:
    """Lists the differences in display order, and counts nodes, inputs and outputs in `tally`."""
    before, after = open_calls_like(before, after), open_calls_like(after, before)
    pairing = pair_nodes(before, after, tell, cancel)
    site_paths = find_nested_sites(before) | find_nested_sites(after)
    before, after = pairing.before.model, pairing.after.model  # without the folded nodes
    rows = [*_list_opset_rows(before, after, _find_silent_domains(pairing, bool(site_paths)))]
    for row, op in _list_input_rows(pairing):
        tally.count(row, op)
        rows += [row] if row else []
    rows += _fold_rows(pairing, tally)
    replaced_nodes = (
        (_IN_RANGE_TEXT, pairing.absorbed_activations()),
        (_SHARED_CONSTANT_TEXT, pairing.shared()),
    )
    for phrase, sides in replaced_nodes:
        rows += [
            _build_replaced_row(pairing, side, sides[side], phrase, tally) for side in (0, 1) if sides[side]
        ]
    replaced_indices = [{i for _, sides in replaced_nodes for i in sides[side]} for side in (0, 1)]
    excluded_nodes = (
        pairing.excluded_nodes[0] | replaced_indices[0],
        pairing.excluded_nodes[1] | replaced_indices[1],
    )
    nodes = _list_node_rows(
        *(pairing.before, pairing.after, pairing.matching, pairing.describer, pairing.sites, excluded_nodes),
        tally,
        tell,
    )
    rows += _expand_bodies(nodes, (before, after), (), site_paths, pairing.forms, tell)
    for row, op in _list_output_rows(pairing):
        tally.count(row, op)
        rows += [row] if row else []
    differing = list(
        _list_function_rows(before, after, pairing.describer, pairing.excluded_nodes, bool(site_paths))
    )
    functions = _expand_bodies(differing, (before, after), (), site_paths, pairing.forms, tell)
    covered = {f"function {row.before} differs" for row in differing if row not in functions}
    # the row of a call is redundant if tiling is the only change in the called function
    return [*(row for row in rows if row.status != "changed" or row.what not in covered), *functions]


def list_graph_changes(pairing: NodePairing) -> list[NodeDiff]:
    """Lists the differences of opsets, graph inputs and graph outputs, without differences of nodes."""
    before, after = pairing.before.model, pairing.after.model
    has_nested_sites = bool(find_nested_sites(before) or find_nested_sites(after))
    ends = (*_list_input_rows(pairing), *_list_output_rows(pairing))
    return [
        *_list_opset_rows(before, after, _find_silent_domains(pairing, has_nested_sites)),
        *(row for row, _ in ends if row is not None),
    ]


def _list_input_rows(pairing: NodePairing) -> Iterator[tuple[NodeDiff | None, str]]:
    return _list_value_rows(pairing.inputs, pairing.after.inputs, _INPUT, lambda a, b: [])


def _list_output_rows(pairing: NodePairing) -> Iterator[tuple[NodeDiff | None, str]]:
    def source(a: str, b: str) -> list[str]:
        return _describe_source_change(a, b, pairing.describer)

    return _list_value_rows(pairing.outputs, pairing.after.outputs, _OUTPUT, source)


def _fold_rows(pairing: NodePairing, tally: _Tally) -> Iterator[NodeDiff]:
    """Yields one row for each kind of rewrite, such as folded constants, and counts the folded nodes."""
    for side, folds in enumerate(pairing.folds):
        if folds is not None:
            for node in folds.folding.folded:
                tally.add(node.op, "added" if side else "removed")
            yield from folds.rows(side == 1)


def _build_replaced_row(
    pairing: NodePairing, side_index: int, opposite_by_node: Mapping[int, int], phrase: str, tally: _Tally
) -> NodeDiff:
    """Summarizes in one row the nodes that the opposite graph replaces by other nodes.

    `opposite_by_node` has the index of the replacing node in the opposite graph, by node index.
    """
    side, opposite = ((pairing.before, pairing.after), (pairing.after, pairing.before))[side_index]
    ops = Counter(side.nodes[i].op for i in opposite_by_node)
    for op, count in ops.items():
        tally.add(op, "added" if side_index else "removed", count)
    first = next(iter(opposite_by_node))
    names = side.nodes[first].label, opposite.model.graph.nodes[opposite_by_node[first]].label
    kinds = side.nodes[first].op, opposite.model.graph.nodes[opposite_by_node[first]].op
    op_counts = ", ".join(f"{count:,} {op}" for op, count in ops.most_common())
    return NodeDiff(
        status="folded",
        before=names[side_index],
        after=names[1 - side_index],
        what=f"{'before: ' * side_index}{op_counts} {phrase}",
        op_before=kinds[side_index],
        op_after=kinds[1 - side_index],
    )


class _Tally:
    """Counts the changed, added, removed and unchanged nodes of each operator."""

    def __init__(self) -> None:
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, op: str, fate: str, count: int = 1) -> None:
        self.counts[op][fate] += count

    def count(self, row: NodeDiff | None, op: str) -> None:
        """Counts one row about `op`; a `row` of None is a pair without a difference."""
        status = "unchanged" if row is None or row.status == "renamed" else row.status
        status = "changed" if status == "quantized" else status
        self.add(op, status)

    def summary(self) -> tuple[OpDiff, ...]:
        """Sorts operators with differences first, then by number of nodes; rows about the graph come last."""
        diffs = []
        for op, fates in self.counts.items():
            changed, unchanged, removed = fates["changed"], fates["unchanged"], fates["removed"]
            total = changed + unchanged + removed
            diffs.append(OpDiff(op, total, changed, unchanged, fates["added"], removed))
        graph_rows = (_INPUT, _OUTPUT, _OPSET, _FUNCTION)

        def place(row: OpDiff) -> tuple[int, bool, int, str]:
            is_unchanged = not (row.changed or row.added or row.removed)
            return (
                (graph_rows.index(row.op) if row.op in graph_rows else -1),
                is_unchanged,
                -(row.total + row.added),
                row.op,
            )

        diffs.sort(key=place)
        return tuple(diffs)


def _expand_bodies(
    rows: Sequence[NodeDiff],
    models: tuple[Model, Model],
    path: tuple[str, ...],
    site_paths: set[tuple[str, ...]],
    forms: Forms,
    tell: Tell,
) -> list[NodeDiff]:
    """Replaces each row about a body (subgraph or function) that differs only by tiling.

    The rows of the tiled sites in the body replace it. `path` is the path of the graph to which `rows`
    belong. `site_paths` are the paths of all nested sites and of the bodies that contain them.
    """
    opened_rows: list[NodeDiff] = []
    for row in rows:
        bodies = _list_changed_bodies(row, find_view(models[0], path))
        rows_by_body = [_build_tiled_rows(models, (*path, body), site_paths, forms, tell) for body in bodies]
        if bodies and all(rows_by_body):
            opened_rows += [inner for some in rows_by_body for inner in some or ()]
        else:
            opened_rows.append(row)
    return opened_rows


def _list_changed_bodies(row: NodeDiff, graph_model: Model | None) -> list[str]:
    """Returns the names of the bodies that differ in a row, or [] if the row has other differences."""
    if row.status != "changed" or row.before is None or graph_model is None:
        return []
    if row.op_before == row.op_after == _FUNCTION:
        return [f"{row.before}()"]
    input_names = {
        name for node in graph_model.graph.nodes if node.label == row.before for name in node.inputs
    }
    # a weight that only a body reads is compared with the body
    if row.otherwise or not input_names.isdisjoint(row.weights):
        return []
    return [f"{row.before}.{name}" for name in row.contents]


def _build_tiled_rows(
    models: tuple[Model, Model],
    path: tuple[str, ...],
    site_paths: set[tuple[str, ...]],
    forms: Forms,
    tell: Tell,
) -> list[NodeDiff] | None:
    """Returns the rows of the graph at `path` if tiling is its only change, or None otherwise."""
    views = [find_view(model, path) for model in models]
    value_names = [_ends(model, graph, path[-1]) for model, graph in zip(models, views, strict=True)]
    if (
        views[0] is None
        or views[1] is None
        or any(len(a) != len(b) for a, b in zip(*value_names, strict=True))
    ):
        return None
    inputs, outputs = (list(zip(a, b, strict=True)) for a, b in zip(*value_names, strict=True))
    first, second = DefUse(views[0]), DefUse(views[1])
    sites = pair_sites(first, second, forms)
    shared_outer_values = [
        (name, name) for name in sorted(_find_outer_values(first) & _find_outer_values(second))
    ]
    input_pairs = [*inputs, *shared_outer_values, *collect_ties(sites)]
    excluded_nodes = collect_site_nodes(sites)
    # in a body, weights may be Constant nodes; Constant nodes of a tiled site are not matched
    unmatched_nodes = tuple(
        site_nodes | find_helper_nodes(side, [None] * len(side.nodes), site_nodes).keys()
        for side, site_nodes in zip((first, second), excluded_nodes, strict=True)
    )
    matching = match(
        first,
        second,
        forms,
        excluded_nodes=(unmatched_nodes[0], unmatched_nodes[1]),
        ties=[*input_pairs, *outputs],
    )
    describer = Describer(first, second, forms, matching, set(input_pairs))
    rows = _list_node_rows(first, second, matching, describer, sites, excluded_nodes, _Tally(), tell)
    rows = _expand_bodies(rows, models, path, site_paths, forms, tell)
    rows = [row for row in rows if row.what not in FOLDED]
    if any(row.status not in ("tiled", "merged") for row in rows):
        return None
    if any(_describe_source_change(a, b, describer) for a, b in outputs):
        return None
    # the view of a body includes outer nodes that it depends on; they have rows of their own
    prefix = "/".join(path)
    body_rows = [row for row in rows if prefix in (row.before or "") + (row.after or "")]
    return [
        replace(row, before=_add_prefix(prefix, row.before), after=_add_prefix(prefix, row.after))
        for row in body_rows
    ] or None


def _find_outer_values(side: DefUse) -> set[str]:
    """Returns the names of the values that a body reads from outer graphs."""
    inputs = {value.name for value in side.inputs}
    return {n for n in side.users if n not in side.producer and n not in side.stored and n not in inputs}


def _add_prefix(prefix: str, name: str | None) -> str | None:
    return name if name is None or name.startswith(prefix) else f"{prefix}/{name}"


def _ends(model: Model, graph_model: Model | None, name: str) -> tuple[list[str], list[str]]:
    """Returns the input and output names of the function called `name`, or of `graph_model`."""
    function = next((f for f in model.functions.values() if name_function(model, f) == name), None)
    if function is not None:
        return list(function.inputs), list(function.outputs)
    if graph_model is None:
        return [], []
    return [v.name for v in graph_model.graph.inputs], [v.name for v in graph_model.graph.outputs]


def _list_node_rows(
    before: DefUse,
    after: DefUse,
    matching: Matching,
    describer: Describer,
    sites: Sequence[SitePair],
    excluded_nodes: tuple[set[int], set[int]],
    tally: _Tally,
    tell: Tell,
) -> list[NodeDiff]:
    """Returns the rows of nodes in order; an added node follows the last pair before it."""
    placed: list[tuple[tuple[int, int, int], NodeDiff]] = []
    for site in sites:
        placed.append(((min(site.before), 0, 0), site.row))
        for i in site.before:
            tally.add(before.nodes[i].op, "changed")
    fold_texts = find_helper_nodes(before, matching.before, excluded_nodes[0]) if sites else {}
    total = len(before.nodes)
    for a, b in enumerate(matching.before):
        if a % _STEP == 0:
            tell("comparing nodes", a, total)
        node = before.nodes[a]
        if b is not None:
            row = describer.row(a, b)
            original_op = describer.targets[0].get(a, node.op)
            if (row is None or row.status == "renamed") and describer.is_target(a, b):
                tally.add(original_op, "changed")
            else:
                tally.count(row, original_op)
            if row is not None:
                row = replace(row, op_before=original_op)
                placed.append(((a, 0, 0), row))
        elif a not in excluded_nodes[0]:
            row = _build_one_sided_row(node.op, node.label, fold_texts.get(a, ""), removed=True)
            tally.count(row, node.op)
            placed.append(((a, 0, 0), row))
    unfolded = find_helper_nodes(after, matching.after, excluded_nodes[1], True) if sites else {}
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
            row = _build_one_sided_row(node.op, node.label, unfolded.get(b, ""), removed=False)
            tally.count(row, node.op)
            placed.append(((last_partner, 1, b), row))
    placed.sort(key=lambda entry: entry[0])
    return [row for _, row in placed]


def _list_value_rows(
    pairs: Sequence[ValuePair], after: Sequence[Value], op: str, find_changes: Callable[[str, str], list[str]]
) -> Iterator[tuple[NodeDiff | None, str]]:
    """Yields the operator text with a row for each input or output, or with None if nothing differs."""
    moved = _find_moves(pairs, after)
    for a, b in pairs:
        if a is None or b is None:
            value = a or b
            assert value is not None
            text = f"{value.dtype or '?'} {shape_text(value.shape)}"
            yield _build_one_sided_row(op, value.name, text, removed=b is None), op
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
        changes += find_changes(a.name, b.name)
        if not changes:
            yield None, op
            continue
        is_same_type = (a.dtype, a.shape) == (b.dtype, b.shape)
        match, confidence = ("name", 1.0) if a.name == b.name else ("structure", 0.8 if is_same_type else 0.5)
        yield NodeDiff("changed", a.name, b.name, "; ".join(changes), op, op, match, confidence), op


def _build_one_sided_row(op: str, name: str, text: str, *, removed: bool) -> NodeDiff:
    """Returns the row of a part that only one graph has."""
    if removed:
        return NodeDiff("removed", name, None, text, op, None)
    return NodeDiff("added", None, name, text, None, op)


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

    def producer_label(side: DefUse, name: str) -> str:
        producer = side.producer.get(name)
        return side.nodes[producer[0]].label if producer else name

    label_before, label_after = producer_label(before, a), producer_label(after, b)
    return [
        f"given by {label_before} -> {label_after}"
        if label_before != label_after
        else f"given by another {label_after}"
    ]


def _find_silent_domains(pairing: NodePairing, has_nested_sites: bool) -> frozenset[str]:
    """Returns the domains to ignore because other rows cover them: tiling, quantizers, fused activations.

    `has_nested_sites` tells whether bodies contain tiled sites.
    """
    fused = any(
        side_folds is not None and "activation" in side_folds.folding.kinds for side_folds in pairing.folds
    )
    tiled = (DOMAIN,) if pairing.sites or has_nested_sites else ()
    rounded = QUANTIZERS if pairing.describer.rounded is not None else ()
    return frozenset((*tiled, *rounded, *((FUSED_DOMAIN,) if fused else ())))


def _list_opset_rows(before: Model, after: Model, silent: Collection[str]) -> Iterator[NodeDiff]:
    used_domains = _list_domains(before) | _list_domains(after)
    for domain in dict.fromkeys((*before.opsets, *after.opsets)):
        version_before, version_after = before.opsets.get(domain), after.opsets.get(domain)
        if version_before == version_after or domain not in used_domains or domain in silent:
            continue
        name = domain or "ai.onnx"
        text = f"opset {version_before or 'none'} -> {version_after or 'none'}"
        if version_before is None or version_after is None:
            yield _build_one_sided_row(_OPSET, name, text, removed=version_after is None)
        else:
            yield NodeDiff("changed", name, name, text, _OPSET, _OPSET, "name")


def _list_domains(model: Model) -> set[str]:
    bodies = (model.graph.nodes, *(f.nodes for f in model.functions.values()))
    return {node.domain for nodes in bodies for node in nodes}


def _list_function_rows(
    before: Model,
    after: Model,
    describer: Describer,
    excluded_nodes: tuple[set[int], set[int]],
    has_nested_sites: bool,
) -> Iterator[NodeDiff]:
    """Yields rows of added, removed and changed functions, except functions that only tiled sites use."""
    silent = _find_site_only_functions(
        before, excluded_nodes[0], has_nested_sites
    ) | _find_site_only_functions(after, excluded_nodes[1], has_nested_sites)
    for key in dict.fromkeys((*before.functions, *after.functions)):
        _, name, _ = key
        if key not in after.functions or key not in before.functions:
            removed = key in before.functions
            if key not in silent:
                text = _describe_nodes(before if removed else after, key)
                yield _build_one_sided_row(_FUNCTION, name, text, removed=removed)
        elif describer.function_differs(key):
            text = f"body: {_describe_nodes(before, key)} -> {_describe_nodes(after, key)}"
            yield NodeDiff("changed", name, name, text, _FUNCTION, _FUNCTION, "name")


def _describe_nodes(model: Model, key: tuple[str, str, str]) -> str:
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
