"""Tiled sites in a diff, each as one row: the original product, and the many nodes that replace it.

Without this, a diff of AlexNet before and after tiling lists thousands of added nodes. The nodes of a
site have its name as metadata; the operators in them are counted through local functions and Scan bodies. An
operator that was decomposed so that its products could be tiled, such as an LSTM, is one row as well: the
plan in the file names it, and the names of its parts begin with its name.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from explorer.engine.diff.def_use import DefUse
from explorer.engine.diff.forms import Forms
from explorer.engine.graph.model import Graph, Model, Node, Tensor
from explorer.engine.graph.tile_metadata import DOMAIN, MNK_KEY, SITE_KEY, plans
from explorer.facts import NodeDiff

_PRODUCT = "2DMM_"


class SitePair(Struct, frozen=True):
    """A site that differs: its nodes on each side, its output values on both, and its row."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    ties: tuple[tuple[str, str], ...]
    row: NodeDiff


def pair_sites(before: DefUse, after: DefUse, forms: Forms) -> list[SitePair]:
    """The sites that are tiled on one side only, or on both but differently."""
    pairs = [
        _row("tiled", before.nodes[whole].label, before, [whole], after, parts)
        for whole, parts in _decomposed(before, after)
    ]
    pairs += [
        _row("merged", after.nodes[whole].label, before, parts, after, [whole])
        for whole, parts in _decomposed(after, before)
    ]
    groups_before = _groups(before, {i for pair in pairs for i in pair.before})
    groups_after = _groups(after, {i for pair in pairs for i in pair.after})
    for site in dict.fromkeys((*groups_before, *groups_after)):
        if site in groups_before and site in groups_after:
            if _signature(before, groups_before[site], forms) != _signature(after, groups_after[site], forms):
                pairs.append(_row("tiled", site, before, groups_before[site], after, groups_after[site]))
        elif site in groups_after:
            origin = _origin(before, site, _output(after, groups_after[site]), groups_before)
            if origin is not None:
                pairs.append(_row("tiled", site, before, [origin], after, groups_after[site]))
        else:
            origin = _origin(after, site, _output(before, groups_before[site]), groups_after)
            if origin is not None:
                pairs.append(_row("merged", site, before, groups_before[site], after, [origin]))
    return pairs


def ties_of(sites: Sequence[SitePair]) -> list[tuple[str, str]]:
    """Pairs of values that sites make on both sides."""
    return [tie for site in sites for tie in site.ties]


def nodes_of(sites: Sequence[SitePair]) -> tuple[set[int], set[int]]:
    """The nodes of sites on each side."""
    return {i for site in sites for i in site.before}, {i for site in sites for i in site.after}


def _groups(side: DefUse, closed: set[int]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for i, node in enumerate(side.nodes):
        site = node.metadata.get(SITE_KEY) if node.metadata else None
        if site and i not in closed:
            groups.setdefault(site, []).append(i)
    return groups


def _decomposed(whole: DefUse, parts: DefUse) -> list[tuple[int, list[int]]]:
    """Nodes of `whole` that were decomposed in `parts`, and the nodes of the decomposition.

    Only where the parts make every output of the operator: names alone could mislead.
    """
    decomposed = [plan.get("decomposed") for plan in plans(parts.model)]
    names = [
        name for listed in decomposed if isinstance(listed, list) for name in listed if isinstance(name, str)
    ]
    if not names:
        return []
    by_label: dict[str, list[int]] = {}
    for i, node in enumerate(whole.nodes):
        by_label.setdefault(node.label, []).append(i)
    apart: list[tuple[int, list[int]]] = []
    free = [i for i, node in enumerate(parts.nodes) if node.label not in by_label]
    for name in sorted(dict.fromkeys(names), key=len, reverse=True):
        members = [i for i in free if parts.nodes[i].label.startswith(f"{name}/")]
        outputs = {out for i in members for out in parts.nodes[i].outputs}
        places = by_label.get(name, [])
        if len(places) == 1 and outputs.issuperset(filter(None, whole.nodes[places[0]].outputs)):
            apart.append((places[0], members))
            free = [i for i in free if i not in set(members)]
    return sorted(apart)


def _origin(side: DefUse, site: str, output: str, groups: Mapping[str, Sequence[int]]) -> int | None:
    """The node that a site replaced: by its name, else by its output."""
    named = [i for i, node in enumerate(side.nodes) if node.label == site]
    place = side.producer.get(output)
    at = named[0] if len(named) == 1 else place[0] if place else None
    return None if at is None or side.nodes[at].metadata.get(SITE_KEY) in groups else at


def _output(side: DefUse, members: Sequence[int]) -> str:
    """The value of a site's nodes that the rest of the graph reads."""
    inside = set(members)
    ends = {value.name for value in side.outputs}
    for i in reversed(members):
        for name in side.nodes[i].outputs:
            if name in ends or any(user not in inside for user, _ in side.users.get(name, ())):
                return name
    return next(iter(side.nodes[members[-1]].outputs), "")


def _signature(side: DefUse, members: Sequence[int], forms: Forms) -> list[tuple[object, ...]]:
    return sorted(
        (
            side.nodes[i].name,
            side.nodes[i].op,
            forms.operator(side.model, side.nodes[i]),
            forms.attributes(side.model, side.nodes[i]),
            tuple(side.stored[n].shape for n in side.takes[i] if n in side.stored),
        )
        for i in members
    )


def _row(
    status: str,
    site: str,
    before: DefUse,
    nodes_before: Sequence[int],
    after: DefUse,
    nodes_after: Sequence[int],
) -> SitePair:
    named = before.nodes[nodes_before[0]].label if len(nodes_before) == 1 else site
    named_after = after.nodes[nodes_after[0]].label if len(nodes_after) == 1 and status == "merged" else site
    text_before, one_op, one_inside = _side_text(before, site, nodes_before)
    text_after, other_op, other_inside = _side_text(after, site, nodes_after)
    text = f"{text_before} -> {text_after}"
    if text_before == text_after:
        status, text = "changed", f"{text_before} before and after, but what is inside differs"
    row = NodeDiff(
        status=status,
        before=named,
        after=named_after,
        what=text,
        op_before=one_op,
        op_after=other_op,
        match="name" if named == named_after else "outputs",
        confidence=1.0 if named == named_after else 0.95,
        children=tuple((one_inside if status == "merged" else other_inside).most_common()),
        became=text_after,
    )
    return SitePair(
        tuple(nodes_before), tuple(nodes_after), _ties(before, nodes_before, after, nodes_after), row
    )


def _ties(
    before: DefUse, nodes_before: Sequence[int], after: DefUse, nodes_after: Sequence[int]
) -> tuple[tuple[str, str], ...]:
    """Pairs of a site's outputs: those of a single operator have the same names on the other side."""
    single = (
        before.nodes[nodes_before[0]]
        if len(nodes_before) == 1
        else after.nodes[nodes_after[0]]
        if len(nodes_after) == 1
        else None
    )
    if single is not None and sum(map(bool, single.outputs)) > 1:
        return tuple((name, name) for name in single.outputs if name)
    return ((_output(before, nodes_before), _output(after, nodes_after)),)


def _side_text(side: DefUse, site: str, members: Sequence[int]) -> tuple[str, str, Counter[str]]:
    """A site on one side: a text, its operator, and the operators inside."""
    first = side.nodes[members[0]]
    if SITE_KEY not in first.metadata:
        return first.op, first.op, Counter({first.op: 1})
    inside, exact = count_inside(side.model, [side.nodes[i] for i in members])
    operators = [op for op in inside if op.startswith(_PRODUCT)]
    products = sum(inside[op] for op in operators) if exact and operators else _planned(side.model, site)
    marked = (side.nodes[i].op for i in members if MNK_KEY in side.nodes[i].metadata)
    op = operators[0] if operators else next(marked, first.op)
    if products is None:
        return f"products by {op}", op, inside
    # the body of such a loop is counted once
    loops = "" if exact else ", in loops of open length"
    return f"{products:,} product{'' if products == 1 else 's'}{loops}", op, inside


def _planned(model: Model, site: str) -> int | None:
    """Number of products of a site, or of an operator's parts, by the plans in the model's metadata.

    None if the plans have no usable number.
    """
    try:
        counts = [
            int(entry["products"]) * int(entry.get("calls") or 1)
            for entry in _sites(model)
            if entry["name"] == site or entry["name"].startswith(f"{site}/")
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return sum(counts) if counts else None


def nested_sites(model: Model) -> set[tuple[str, ...]]:
    """Paths of sites outside the main graph, by the plans in the file, and of all places around them."""
    return {
        tuple(map(str, place[:depth]))
        for place in (site.get("place") for site in _sites(model))
        if isinstance(place, list)
        for depth in range(1, min(len(place), 32) + 1)
    }


def _sites(model: Model) -> list[dict[str, Any]]:
    """The sites of all plans in a tiled model's metadata."""
    listed = [plan.get("sites") for plan in plans(model)]
    return [site for sites in listed if isinstance(sites, list) for site in sites if isinstance(site, dict)]


def count_inside(model: Model, nodes: Sequence[Node]) -> tuple[Counter[str], bool]:
    """Operators in `nodes`, bodies included, and whether every trip count is known.

    A tile operator (a function that calls no other of its domain) counts as itself; a function of
    tile operators is opened. A Scan's body counts once per trip.
    """
    memo: dict[tuple[str, str, str], tuple[Counter[str], bool]] = {}
    weights = model.graph.initializers

    def body(nodes: Sequence[Node], shapes: dict[str, tuple[int, ...]]) -> tuple[Counter[str], bool]:
        counts: Counter[str] = Counter()
        exact = True
        for node in nodes:
            function = model.functions.get(node.key)
            graph = node.attributes.get("body") if node.op in ("Scan", "Loop") else None
            if function is not None and any(inner.domain == DOMAIN for inner in function.nodes):
                if node.key not in memo:
                    memo[node.key] = body(function.nodes, {})
                inside, sure = memo[node.key]
                counts.update(inside)
                exact &= sure
                continue
            counts[node.op] += 1
            _note_shape(node, shapes)
            if isinstance(graph, Graph):
                inside, sure = body(graph.nodes, shapes)
                trips = _trips(node, shapes, weights)
                exact &= sure and trips is not None
                for op, count in inside.items():
                    counts[op] += count * (1 if trips is None else trips)
        return counts, exact

    return body(nodes, {})


def _note_shape(node: Node, shapes: dict[str, tuple[int, ...]]) -> None:
    """Notes the shape that a Reshape to constant sizes gives: Scans may iterate over it."""
    if node.op == "Constant":
        value = node.attributes.get("value")
        if isinstance(value, Tensor) and value.dtype == "int64" and value.payload and value.elements <= 8:
            encoded = bytes(value.payload.view())
            shapes["=" + node.outputs[0]] = struct.unpack(f"<{len(encoded) // 8}q", encoded)
    elif node.op == "Reshape" and len(node.inputs) > 1 and "=" + node.inputs[1] in shapes:
        shapes[node.outputs[0]] = shapes["=" + node.inputs[1]]


def _trips(node: Node, shapes: Mapping[str, tuple[int, ...]], weights: Mapping[str, Tensor]) -> int | None:
    """Trip count of a Scan: the length of its scanned input, which may be a weight of an outer graph."""
    count = node.attributes.get("num_scan_inputs")
    if node.op != "Scan" or not isinstance(count, int) or not 0 < count <= len(node.inputs):
        return None
    name = node.inputs[-count]
    shape = weights[name].shape if name in weights else shapes.get(name)
    axes = node.attributes.get("scan_input_axes") or (0,)
    return shape[axes[0]] if shape and axes[0] < len(shape) and shape[axes[0]] >= 0 else None
