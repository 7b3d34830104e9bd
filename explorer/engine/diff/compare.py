"""Graph diff: the changes between two graphs, made by this program or not.

Nodes are paired up (`match`), each pair is compared (`describe`), a tiled site is one row
(`sites`). Here the pieces become one fact: rows in the order of the graphs, a summary by operator,
and the verdict.

What counts as equal: two graphs are equal if every difference is a name inside them. A node that was
renamed, or whose values or weights were, is listed as 'renamed', counts as unchanged and does not make
the graphs unequal, because both compute the same from the same inputs. Names of the graph's inputs and
outputs are another matter: they are what a caller types, so a new one is a change. Producer, doc
strings, metadata and imports that no operator uses are not compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from explorer.base.units import many_text, shape_text
from explorer.engine.diff.def_use import DefUse
from explorer.engine.diff.describe import Describer, tensor_change
from explorer.engine.diff.forms import Forms
from explorer.engine.diff.match import Matching, match
from explorer.engine.diff.pairing import FOLDED, NodePairing, Tell, ValuePair, folded, opened_as, pair_nodes
from explorer.engine.diff.rounding import OPERATORS, QUANTIZERS
from explorer.engine.diff.sites import SitePair, nested_sites, nodes_of, pair_sites, ties_of
from explorer.engine.fold.activations import DOMAIN as FUSED_DOMAIN
from explorer.engine.graph.model import Model, Value
from explorer.engine.graph.tile_metadata import DOMAIN
from explorer.engine.progress import Cancel, OnProgress, report
from explorer.engine.shapes.subgraphs import call_name, view
from explorer.facts import Analysis, Diff, NodeDiff, OpDiff

_INPUT, _OUTPUT, _OPSET, _FUNCTION = "Input", "Output", "Opset", "Function"
"""Names in place of an operator, for rows about the graph itself."""

_RANGED = "done by the range of the integers behind, to the same values"
_SHARED = "read from one of equal value, under another name"
"""Texts about nodes whose work other nodes do."""

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
    """The added, removed, changed, tiled and equal parts of two graphs.

    Args:
        before: One graph, from `validate`.
        after: The other graph.
        before_analysis: The analysis with the totals of the first graph.
        after_analysis: The analysis with the totals of the second graph.
        on_progress: Receives the phase and the number of compared nodes.
        cancel: Called between steps; True stops.

    Returns:
        Rows for what differs: changes of the operator sets and inputs first, then nodes in the order of
        `before` with the added ones where they stand in `after`, then outputs and functions. Besides
        'changed', 'added', 'removed' and 'renamed' a row may be 'folded', of all rewrites of one kind,
        'tiled', or 'merged' where `before` is the tiled side, or 'quantized' where nothing but number
        formats differs. The summary counts each node of `before` once as changed, unchanged or removed, and
        of `after` as added what has no counterpart; the nodes of a tiled site are part of the product that
        they replace, those that only round what a node reads are part of it. Inputs and outputs of the
        graph are counted too, as 'Input' and 'Output'.

    Raises:
        Cancelled: `cancel` said so.
    """
    tally = _Tally()
    rows = _rows(before, after, tally, partial(report, on_progress, cancel), cancel)
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


def _rows(before: Model, after: Model, tally: _Tally, tell: Tell, cancel: Cancel) -> list[NodeDiff]:
    """The differences, in the order of display; `tally` counts nodes, inputs and outputs."""
    before, after = opened_as(before, after), opened_as(after, before)
    pairing = pair_nodes(before, after, tell, cancel)
    site_paths = nested_sites(before) | nested_sites(after)
    before, after = pairing.before.model, pairing.after.model  # the rest, where something was folded
    rows = [*_opset_rows(before, after, _silent_domains(pairing, bool(site_paths)))]
    for row, op in _input_rows(pairing):
        tally.count(row, op)
        rows += [row] if row else []
    rows += _fold_rows(pairing, tally)
    gone = (_RANGED, pairing.ranged()), (_SHARED, pairing.shared())
    for phrase, sides in gone:
        rows += [_replaced_row(pairing, at, sides[at], phrase, tally) for at in (0, 1) if sides[at]]
    away = [{i for _, sides in gone for i in sides[at]} for at in (0, 1)]
    closed = pairing.closed[0] | away[0], pairing.closed[1] | away[1]
    nodes = _node_rows(
        *(pairing.before, pairing.after, pairing.matching, pairing.describer, pairing.sites, closed),
        tally,
        tell,
    )
    rows += _open_bodies(nodes, (before, after), (), site_paths, pairing.forms, tell)
    for row, op in _output_rows(pairing):
        tally.count(row, op)
        rows += [row] if row else []
    differing = list(_function_rows(before, after, pairing.describer, pairing.closed, bool(site_paths)))
    functions = _open_bodies(differing, (before, after), (), site_paths, pairing.forms, tell)
    covered = {f"function {row.before} differs" for row in differing if row not in functions}
    # a caller is unchanged where tiling is the function's only change
    return [*(row for row in rows if row.status != "changed" or row.what not in covered), *functions]


def around(pairing: NodePairing) -> list[NodeDiff]:
    """Differences of operator sets, inputs and outputs, but of no node."""
    before, after = pairing.before.model, pairing.after.model
    has_nested_sites = bool(nested_sites(before) or nested_sites(after))
    ends = (*_input_rows(pairing), *_output_rows(pairing))
    return [
        *_opset_rows(before, after, _silent_domains(pairing, has_nested_sites)),
        *(row for row, _ in ends if row is not None),
    ]


def _input_rows(pairing: NodePairing) -> Iterator[tuple[NodeDiff | None, str]]:
    return _value_rows(pairing.inputs, pairing.after.inputs, _INPUT, lambda a, b: [])


def _output_rows(pairing: NodePairing) -> Iterator[tuple[NodeDiff | None, str]]:
    def source(a: str, b: str) -> list[str]:
        return _source_changes(a, b, pairing.describer)

    return _value_rows(pairing.outputs, pairing.after.outputs, _OUTPUT, source)


def _fold_rows(pairing: NodePairing, tally: _Tally) -> Iterator[NodeDiff]:
    """A row for each kind of rewrite."""
    for at, folds in enumerate(pairing.folds):
        if folds is not None:
            for node in folds.away.folded:
                tally.add(node.op, "added" if at else "removed")
            yield from folds.rows(at == 1)


def _replaced_row(
    pairing: NodePairing, at: int, gone: Mapping[int, int], phrase: str, tally: _Tally
) -> NodeDiff:
    """A row for the nodes of one side whose work other nodes do on the other; `gone` has both positions."""
    side, opposite = ((pairing.before, pairing.after), (pairing.after, pairing.before))[at]
    ops = Counter(side.nodes[i].op for i in gone)
    for op, count in ops.items():
        tally.add(op, "added" if at else "removed", count)
    first = next(iter(gone))
    names = side.nodes[first].label, opposite.model.graph.nodes[gone[first]].label
    kinds = side.nodes[first].op, opposite.model.graph.nodes[gone[first]].op
    op_counts = ", ".join(f"{count:,} {op}" for op, count in ops.most_common())
    return NodeDiff(
        status="folded",
        before=names[at],
        after=names[1 - at],
        what=f"{'before: ' * at}{op_counts} {phrase}",
        op_before=kinds[at],
        op_after=kinds[1 - at],
    )


class _Tally:
    """Counts changed, added, removed and unchanged nodes, by operator."""

    def __init__(self) -> None:
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, op: str, fate: str, count: int = 1) -> None:
        self.counts[op][fate] += count

    def count(self, row: NodeDiff | None, op: str) -> None:
        """Counts one row about `op`; None is a pair without a difference."""
        status = "unchanged" if row is None or row.status == "renamed" else row.status
        status = "changed" if status == "quantized" else status
        self.add(op, status)

    def summary(self) -> tuple[OpDiff, ...]:
        """Operators with differences first, then those with the most nodes, then the graph's own rows."""
        diffs = []
        for op, fates in self.counts.items():
            changed, unchanged, removed = fates["changed"], fates["unchanged"], fates["removed"]
            total = changed + unchanged + removed
            diffs.append(OpDiff(op, total, changed, unchanged, fates["added"], removed))
        graph_rows = (_INPUT, _OUTPUT, _OPSET, _FUNCTION)

        def place(row: OpDiff) -> tuple[int, bool, int, str]:
            same = not (row.changed or row.added or row.removed)
            return (
                (graph_rows.index(row.op) if row.op in graph_rows else -1),
                same,
                -(row.total + row.added),
                row.op,
            )

        diffs.sort(key=place)
        return tuple(diffs)


def _open_bodies(
    rows: Sequence[NodeDiff],
    models: tuple[Model, Model],
    path: tuple[str, ...],
    site_paths: set[tuple[str, ...]],
    forms: Forms,
    tell: Tell,
) -> list[NodeDiff]:
    """The rows of the graph at `path`; a body that only differs in tiled sites becomes their rows.

    `site_paths` are the paths of such sites, and of every place around one.
    """
    opened_rows: list[NodeDiff] = []
    for row in rows:
        bodies = _bodies_of(row, view(models[0], path))
        inside = [_tiled_rows(models, (*path, body), site_paths, forms, tell) for body in bodies]
        if bodies and all(inside):
            opened_rows += [inner for some in inside for inner in some or ()]
        else:
            opened_rows.append(row)
    return opened_rows


def _bodies_of(row: NodeDiff, graph_model: Model | None) -> list[str]:
    """The bodies whose content is the only difference in a row; none if the row has other differences."""
    if row.status != "changed" or row.before is None or graph_model is None:
        return []
    if row.op_before == row.op_after == _FUNCTION:
        return [f"{row.before}()"]
    input_names = {
        name for node in graph_model.graph.nodes if node.label == row.before for name in node.inputs
    }
    # a weight that a body reads from an outer graph is compared with the body
    if row.otherwise or not input_names.isdisjoint(row.weights):
        return []
    return [f"{row.before}.{name}" for name in row.contents]


def _tiled_rows(
    models: tuple[Model, Model],
    path: tuple[str, ...],
    site_paths: set[tuple[str, ...]],
    forms: Forms,
    tell: Tell,
) -> list[NodeDiff] | None:
    """The rows of the graph at `path` if tiling is its only change; else None."""
    views = [view(model, path) for model in models]
    ends = [_ends(model, graph, path[-1]) for model, graph in zip(models, views, strict=True)]
    if views[0] is None or views[1] is None or any(len(a) != len(b) for a, b in zip(*ends, strict=True)):
        return None
    inputs, outputs = (list(zip(a, b, strict=True)) for a, b in zip(*ends, strict=True))
    first, second = DefUse(views[0]), DefUse(views[1])
    sites = pair_sites(first, second, forms)
    around = [(name, name) for name in sorted(_outer_values(first) & _outer_values(second))]
    joined = [*inputs, *around, *ties_of(sites)]
    closed = nodes_of(sites)
    # weights may be nodes here: those of a site are not matched
    apart = tuple(
        site_nodes | folded(side, [None] * len(side.nodes), site_nodes).keys()
        for side, site_nodes in zip((first, second), closed, strict=True)
    )
    matching = match(first, second, forms, closed=(apart[0], apart[1]), ties=[*joined, *outputs])
    describer = Describer(first, second, forms, matching, set(joined))
    rows = _node_rows(first, second, matching, describer, sites, closed, _Tally(), tell)
    rows = _open_bodies(rows, models, path, site_paths, forms, tell)
    rows = [row for row in rows if row.what not in FOLDED]
    if any(row.status not in ("tiled", "merged") for row in rows):
        return None
    if any(_source_changes(a, b, describer) for a, b in outputs):
        return None
    # outer nodes that ran before the body are included, and have rows of their own
    place = "/".join(path)
    inside = [row for row in rows if place in (row.before or "") + (row.after or "")]
    return [
        replace(row, before=_at(place, row.before), after=_at(place, row.after)) for row in inside
    ] or None


def _outer_values(side: DefUse) -> set[str]:
    """Values from outer graphs."""
    inputs = {value.name for value in side.inputs}
    return {n for n in side.users if n not in side.producer and n not in side.stored and n not in inputs}


def _at(place: str, name: str | None) -> str | None:
    return name if name is None or name.startswith(place) else f"{place}/{name}"


def _ends(model: Model, graph_model: Model | None, name: str) -> tuple[list[str], list[str]]:
    """Names of the inputs and outputs of the graph at a place."""
    function = next((f for f in model.functions.values() if call_name(model, f) == name), None)
    if function is not None:
        return list(function.inputs), list(function.outputs)
    if graph_model is None:
        return [], []
    return [v.name for v in graph_model.graph.inputs], [v.name for v in graph_model.graph.outputs]


def _node_rows(
    before: DefUse,
    after: DefUse,
    matching: Matching,
    describer: Describer,
    sites: Sequence[SitePair],
    closed: tuple[set[int], set[int]],
    tally: _Tally,
    tell: Tell,
) -> list[NodeDiff]:
    """Rows of nodes, in order: an added node comes after the pair that it follows."""
    placed: list[tuple[tuple[int, int, int], NodeDiff]] = []
    for site in sites:
        placed.append(((min(site.before), 0, 0), site.row))
        for i in site.before:
            tally.add(before.nodes[i].op, "changed")
    idle = folded(before, matching.before, closed[0]) if sites else {}
    total = len(before.nodes)
    for a, b in enumerate(matching.before):
        if a % _STEP == 0:
            tell("comparing nodes", a, total)
        node = before.nodes[a]
        if b is not None:
            row = describer.row(a, b)
            was = describer.targets[0].get(a, node.op)
            if (row is None or row.status == "renamed") and describer.is_target(a, b):
                tally.add(was, "changed")
            else:
                tally.count(row, was)
            if row is not None:
                row = replace(row, op_before=was)
                placed.append(((a, 0, 0), row))
        elif a not in closed[0]:
            row = _one_sided(node.op, node.label, idle.get(a, ""), removed=True)
            tally.count(row, node.op)
            placed.append(((a, 0, 0), row))
    unfolded = folded(after, matching.after, closed[1], True) if sites else {}
    # the furthest partner so far: one moved node must not move the added nodes with it
    partner_of_site = {i: min(site.before) for site in sites for i in site.after}
    behind = -1
    for b, partner in enumerate(matching.after):
        node = after.nodes[b]
        if partner is not None:
            behind = max(behind, partner)
        elif b in closed[1]:
            behind = max(behind, partner_of_site.get(b, behind))
        else:
            row = _one_sided(node.op, node.label, unfolded.get(b, ""), removed=False)
            tally.count(row, node.op)
            placed.append(((behind, 1, b), row))
    placed.sort(key=lambda entry: entry[0])
    return [row for _, row in placed]


def _value_rows(
    pairs: Sequence[ValuePair], after: Sequence[Value], op: str, further: Callable[[str, str], list[str]]
) -> Iterator[tuple[NodeDiff | None, str]]:
    """A row for each input or output, None where nothing differs."""
    moved = _moves(pairs, after)
    for a, b in pairs:
        if a is None or b is None:
            value = a or b
            assert value is not None
            text = f"{value.dtype or '?'} {shape_text(value.shape)}"
            yield _one_sided(op, value.name, text, removed=b is None), op
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
        changes += further(a.name, b.name)
        if not changes:
            yield None, op
            continue
        same = (a.dtype, a.shape) == (b.dtype, b.shape)
        match, confidence = ("name", 1.0) if a.name == b.name else ("structure", 0.8 if same else 0.5)
        yield NodeDiff("changed", a.name, b.name, "; ".join(changes), op, op, match, confidence), op


def _one_sided(op: str, name: str, text: str, *, removed: bool) -> NodeDiff:
    """The row of a part that only one of the graphs has."""
    if removed:
        return NodeDiff("removed", name, None, text, op, None)
    return NodeDiff("added", None, name, text, None, op)


def _moves(pairs: Sequence[ValuePair], after: Sequence[Value]) -> dict[str, tuple[int, int]]:
    """Old and new positions of moved inputs or outputs; a caller may depend on the order."""
    if any(a is None or b is None for a, b in pairs):
        # an added value shifts all values behind it, which does not count as a move
        return {}
    place = {value.name: i for i, value in enumerate(after)}
    both = [(i, a.name, place[b.name]) for i, (a, b) in enumerate(pairs) if a and b]
    return {name: (i, at) for i, name, at in both if i != at}


def _source_changes(a: str, b: str, describer: Describer) -> list[str]:
    """The change if another node computes a graph output."""
    if describer.same_value(a, b):
        return []
    before, after = describer.before, describer.after
    if a in before.stored and b in after.stored:
        change = tensor_change(a, before.stored[a], after.stored[b], describer.forms)
        return [change] if change else []

    def giver(side: DefUse, name: str) -> str:
        place = side.producer.get(name)
        return side.nodes[place[0]].label if place else name

    was, now = giver(before, a), giver(after, b)
    return [f"given by {was} -> {now}" if was != now else f"given by another {now}"]


def _silent_domains(pairing: NodePairing, has_nested_sites: bool) -> frozenset[str]:
    """Domains that other rows cover: of tiled sites (`has_nested_sites`: some in bodies), of quantizers."""
    fused = any(
        side_folds is not None and "activation" in side_folds.away.kinds for side_folds in pairing.folds
    )
    tiled = (DOMAIN,) if pairing.sites or has_nested_sites else ()
    rounded = QUANTIZERS if pairing.describer.rounded is not None else ()
    return frozenset((*tiled, *rounded, *((FUSED_DOMAIN,) if fused else ())))


def _opset_rows(before: Model, after: Model, silent: Collection[str]) -> Iterator[NodeDiff]:
    used = _domains(before) | _domains(after)
    for domain in dict.fromkeys((*before.opsets, *after.opsets)):
        was, now = before.opsets.get(domain), after.opsets.get(domain)
        if was == now or domain not in used or domain in silent:
            continue
        name = domain or "ai.onnx"
        text = f"opset {was or 'none'} -> {now or 'none'}"
        if was is None or now is None:
            yield _one_sided(_OPSET, name, text, removed=now is None)
        else:
            yield NodeDiff("changed", name, name, text, _OPSET, _OPSET, "name")


def _domains(model: Model) -> set[str]:
    bodies = (model.graph.nodes, *(f.nodes for f in model.functions.values()))
    return {node.domain for nodes in bodies for node in nodes}


def _function_rows(
    before: Model,
    after: Model,
    describer: Describer,
    closed: tuple[set[int], set[int]],
    has_nested_sites: bool,
) -> Iterator[NodeDiff]:
    """Added, removed and changed local functions; the functions of tiled sites are part of the site's row."""
    silent = _only_in_sites(before, closed[0], has_nested_sites) | _only_in_sites(
        after, closed[1], has_nested_sites
    )
    for key in dict.fromkeys((*before.functions, *after.functions)):
        _, name, _ = key
        if key not in after.functions or key not in before.functions:
            removed = key in before.functions
            if key not in silent:
                text = _nodes_text(before if removed else after, key)
                yield _one_sided(_FUNCTION, name, text, removed=removed)
        elif describer.function_differs(key):
            text = f"body: {_nodes_text(before, key)} -> {_nodes_text(after, key)}"
            yield NodeDiff("changed", name, name, text, _FUNCTION, _FUNCTION, "name")


def _nodes_text(model: Model, key: tuple[str, str, str]) -> str:
    return many_text(len(model.functions[key].nodes), "node")


def _only_in_sites(model: Model, closed: set[int], has_nested_sites: bool) -> set[tuple[str, str, str]]:
    """The tile operators and quantizers that only folded nodes call.

    `has_nested_sites`: some tiled sites are within bodies.
    """
    if not closed and not has_nested_sites:
        return set()
    called: set[tuple[str, str, str]] = set()
    pending = [node.key for i, node in enumerate(model.graph.nodes) if i not in closed]
    while pending:
        key = pending.pop()
        if key in model.functions and key not in called:
            called.add(key)
            pending += [node.key for node in model.functions[key].nodes]
    return {key for key in model.functions if key not in called and key[0] in OPERATORS}
