"""Summarizes each tiled site of a diff in one row: the original product and the nodes that replace it.

Without this, a diff of AlexNet before and after tiling would list thousands of added nodes. The nodes of a
site have the site's name in their metadata. Operators are counted through local functions and Scan bodies.

An operator such as LSTM, which is decomposed before its products are tiled, is also one row. The tiling plan
in the file's metadata lists its name, and the names of its parts begin with this name.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from explorer.base.units import many_text
from explorer.engine.diff.def_use import DefUse
from explorer.engine.diff.forms import Forms
from explorer.engine.graph.model import Graph, Model, Node, Tensor
from explorer.engine.graph.tile_metadata import DOMAIN, MNK_KEY, SITE_KEY, read_plans
from explorer.facts import NodeDiff

_PRODUCT_PREFIX = "2DMM_"
"""Prefix of the names of tile operators, as in '2DMM_64x64x64'."""

_MAX_PLACE_DEPTH = 32
"""Largest nesting depth that is read from a plan, because the metadata of a file may be malformed."""


class SitePair(Struct, frozen=True):
    """A site that differs between the graphs.

    Attributes:
        before, after: Indices of the site's nodes in the first and in the second graph.
        output_pairs: Names of each output of the site in the first and in the second graph.
        row: Row of the diff.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    output_pairs: tuple[tuple[str, str], ...]
    row: NodeDiff


def pair_sites(before: DefUse, after: DefUse, forms: Forms) -> list[SitePair]:
    """Finds the sites that are tiled in only one graph, or differently in both."""
    pairs = [
        _build_pair("tiled", before.nodes[product_index].label, before, [product_index], after, parts)
        for product_index, parts in _find_decomposed(before, after)
    ]
    pairs += [
        _build_pair("merged", after.nodes[product_index].label, before, parts, after, [product_index])
        for product_index, parts in _find_decomposed(after, before)
    ]
    groups_before = _group_sites(before, {i for pair in pairs for i in pair.before})
    groups_after = _group_sites(after, {i for pair in pairs for i in pair.after})
    for site in dict.fromkeys((*groups_before, *groups_after)):
        if site in groups_before and site in groups_after:
            if _make_signature(before, groups_before[site], forms) != _make_signature(
                after, groups_after[site], forms
            ):
                pairs.append(
                    _build_pair("tiled", site, before, groups_before[site], after, groups_after[site])
                )
        elif site in groups_after:
            origin = _find_origin(before, site, _find_output(after, groups_after[site]), groups_before)
            if origin is not None:
                pairs.append(_build_pair("tiled", site, before, [origin], after, groups_after[site]))
        else:
            origin = _find_origin(after, site, _find_output(before, groups_before[site]), groups_after)
            if origin is not None:
                pairs.append(_build_pair("merged", site, before, groups_before[site], after, [origin]))
    return pairs


def collect_known_pairs(sites: Sequence[SitePair]) -> list[tuple[str, str]]:
    """Returns the output names of all sites as pairs, which are known before nodes are matched."""
    return [pair for site in sites for pair in site.output_pairs]


def collect_site_nodes(sites: Sequence[SitePair]) -> tuple[set[int], set[int]]:
    """Returns the node indices of all sites, for the first and the second graph."""
    return {i for site in sites for i in site.before}, {i for site in sites for i in site.after}


def _group_sites(side: DefUse, excluded_nodes: set[int]) -> dict[str, list[int]]:
    """Returns the node indices of each tiled site, by the site's name."""
    groups: dict[str, list[int]] = {}
    for i, node in enumerate(side.nodes):
        site = node.metadata.get(SITE_KEY) if node.metadata else None
        if site and i not in excluded_nodes:
            groups.setdefault(site, []).append(i)
    return groups


def _find_decomposed(original: DefUse, decomposed_graph: DefUse) -> list[tuple[int, list[int]]]:
    """Finds the nodes of `original` that were decomposed, each with its parts in `decomposed_graph`.

    The parts must compute every output of the operator, because matching names alone are not sufficient.
    """
    name_lists = [plan.get("decomposed") for plan in read_plans(decomposed_graph.model)]
    names = [
        name
        for name_list in name_lists
        if isinstance(name_list, list)
        for name in name_list
        if isinstance(name, str)
    ]
    if not names:
        return []
    nodes_by_label: dict[str, list[int]] = {}
    for i, node in enumerate(original.nodes):
        nodes_by_label.setdefault(node.label, []).append(i)
    decompositions: list[tuple[int, list[int]]] = []
    unassigned = [i for i, node in enumerate(decomposed_graph.nodes) if node.label not in nodes_by_label]
    for name in sorted(dict.fromkeys(names), key=len, reverse=True):
        members = [i for i in unassigned if decomposed_graph.nodes[i].label.startswith(f"{name}/")]
        outputs = {output_name for i in members for output_name in decomposed_graph.nodes[i].outputs}
        positions = nodes_by_label.get(name, [])
        if len(positions) == 1 and outputs.issuperset(filter(None, original.nodes[positions[0]].outputs)):
            decompositions.append((positions[0], members))
            unassigned = [i for i in unassigned if i not in set(members)]
    return sorted(decompositions)


def _find_origin(side: DefUse, site: str, output: str, groups: Mapping[str, Sequence[int]]) -> int | None:
    """Finds the node that a site replaced, by the site's name or else by its output.

    The result is None if there is no such node, or if the node belongs to another site in `groups`.
    """
    nodes_with_name = [i for i, node in enumerate(side.nodes) if node.label == site]
    producer = side.producer.get(output)
    origin = nodes_with_name[0] if len(nodes_with_name) == 1 else producer[0] if producer else None
    return None if origin is None or side.nodes[origin].metadata.get(SITE_KEY) in groups else origin


def _find_output(side: DefUse, members: Sequence[int]) -> str:
    """Returns the name of the value that a site passes to the remaining graph."""
    site_nodes = set(members)
    output_names = {value.name for value in side.outputs}
    for i in reversed(members):
        for name in side.nodes[i].outputs:
            if name in output_names or any(user not in site_nodes for user, _ in side.users.get(name, ())):
                return name
    return next(iter(side.nodes[members[-1]].outputs), "")


def _make_signature(side: DefUse, members: Sequence[int], forms: Forms) -> list[tuple[object, ...]]:
    """Returns a value that is equal for sites with the same nodes and shapes of weights."""
    return sorted(
        (
            side.nodes[i].name,
            side.nodes[i].op,
            forms.number_operator(side.model, side.nodes[i]),
            forms.number_attributes(side.model, side.nodes[i]),
            tuple(side.stored[n].shape for n in side.input_names[i] if n in side.stored),
        )
        for i in members
    )


def _build_pair(
    status: str,
    site: str,
    before: DefUse,
    nodes_before: Sequence[int],
    after: DefUse,
    nodes_after: Sequence[int],
) -> SitePair:
    """Returns the pair of a site in both graphs, and its row in the list of differences."""
    name_before = before.nodes[nodes_before[0]].label if len(nodes_before) == 1 else site
    name_after = after.nodes[nodes_after[0]].label if len(nodes_after) == 1 and status == "merged" else site
    form_before = _summarize_form(before, site, nodes_before)
    form_after = _summarize_form(after, site, nodes_after)
    text = f"{form_before.describe()} -> {form_after.describe()}"
    if form_before.has_same_text(form_after):
        status, text = "changed", f"{form_before.describe()} in both graphs, but their nodes differ"
    row = NodeDiff(
        status=status,
        before=name_before,
        after=name_after,
        what=text,
        op_before=form_before.op,
        op_after=form_after.op,
        match="name" if name_before == name_after else "outputs",
        confidence=1.0 if name_before == name_after else 0.95,
        children=tuple((form_before if status == "merged" else form_after).op_counts.most_common()),
        became=form_after.describe(),
    )
    return SitePair(
        tuple(nodes_before), tuple(nodes_after), _pair_outputs(before, nodes_before, after, nodes_after), row
    )


def _pair_outputs(
    before: DefUse, nodes_before: Sequence[int], after: DefUse, nodes_after: Sequence[int]
) -> tuple[tuple[str, str], ...]:
    """Pairs the outputs of a site. Several outputs of one operator keep their names in the other graph."""
    single = (
        before.nodes[nodes_before[0]]
        if len(nodes_before) == 1
        else after.nodes[nodes_after[0]]
        if len(nodes_after) == 1
        else None
    )
    if single is not None and sum(map(bool, single.outputs)) > 1:
        return tuple((name, name) for name in single.outputs if name)
    return ((_find_output(before, nodes_before), _find_output(after, nodes_after)),)


class _SiteForm(NamedTuple):
    """A site in one graph: one operator, or the tile products that replace it.

    Attributes:
        op: Operator of the site, or of its tile products.
        op_counts: Number of nodes of each operator.
        is_tiled: Whether the site consists of tile products.
        product_count: Number of tile products, or None if it is unknown.
        is_exact: Whether the trip counts of all loops are known.
    """

    op: str
    op_counts: Counter[str]
    is_tiled: bool = False
    product_count: int | None = None
    is_exact: bool = True

    def has_same_text(self, opposite: _SiteForm) -> bool:
        """Whether two forms have the same text, although their nodes may differ."""
        if self.is_tiled and opposite.is_tiled and self.product_count is not None:
            return (self.product_count, self.is_exact) == (opposite.product_count, opposite.is_exact)
        return (self.op, self.is_tiled, self.product_count) == (
            opposite.op,
            opposite.is_tiled,
            opposite.product_count,
        )

    def describe(self) -> str:
        """Returns the form in words: 'Gemm', '9,216 products', or 'products by 2DMM_64x64x64'."""
        if not self.is_tiled:
            return self.op
        if self.product_count is None:
            return f"products by {self.op}"
        # the body of a loop with an unknown trip count is counted once
        loops_text = "" if self.is_exact else ", those in a loop of unknown length counted once"
        return many_text(self.product_count, "product") + loops_text


def _summarize_form(side: DefUse, site: str, members: Sequence[int]) -> _SiteForm:
    """Summarizes the nodes of a site in one graph."""
    first = side.nodes[members[0]]
    if SITE_KEY not in first.metadata:
        return _SiteForm(first.op, Counter({first.op: 1}))
    op_counts, is_exact = count_inside(side.model, [side.nodes[i] for i in members])
    operators = [op for op in op_counts if op.startswith(_PRODUCT_PREFIX)]
    product_count = (
        sum(op_counts[op] for op in operators)
        if is_exact and operators
        else _count_planned_products(side.model, site)
    )
    product_ops = (side.nodes[i].op for i in members if MNK_KEY in side.nodes[i].metadata)
    op = operators[0] if operators else next(product_ops, first.op)
    return _SiteForm(op, op_counts, True, product_count, is_exact)


def _count_planned_products(model: Model, site: str) -> int | None:
    """Returns the number of products of a site or of an operator's parts, or None if it is unknown.

    The number comes from the tiling plans in the model's metadata.
    """
    try:
        counts = [
            int(entry["products"]) * int(entry.get("calls") or 1)
            for entry in _list_sites(model)
            if entry["name"] == site or entry["name"].startswith(f"{site}/")
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return sum(counts) if counts else None


def find_nested_sites(model: Model) -> set[tuple[str, ...]]:
    """Returns the paths of tiled sites in subgraphs and functions, and of all bodies that contain them.

    The paths come from the tiling plans in the model's metadata.
    """
    return {
        tuple(map(str, place[:depth]))
        for place in (site.get("place") for site in _list_sites(model))
        if isinstance(place, list)
        for depth in range(1, min(len(place), _MAX_PLACE_DEPTH) + 1)
    }


def _list_sites(model: Model) -> list[dict[str, Any]]:
    """Returns the sites of all tiling plans in a model's metadata."""
    site_lists = [plan.get("sites") for plan in read_plans(model)]
    return [
        site for sites in site_lists if isinstance(sites, list) for site in sites if isinstance(site, dict)
    ]


def _list_planned_trips(model: Model) -> dict[str, int]:
    """Returns the trip count of each loop with tiled sites in the main graph, by the place of its body.

    The tiling plans in the model's metadata state it. A loop that may end earlier has no trip count.
    """
    trips = {}
    for site in _list_sites(model):
        place, calls = site.get("place"), site.get("calls")
        if not isinstance(place, list) or len(place) != 1 or site.get("at_most"):
            continue
        if isinstance(calls, int) and calls > 0:
            trips[str(place[0])] = calls
    return trips


def count_inside(model: Model, nodes: Sequence[Node]) -> tuple[Counter[str], bool]:
    """Counts the operators in `nodes` and their bodies.

    A tile operator, which is a function without calls of other tile operators, counts as one operator. A
    function that calls tile operators counts as the operators in its body. The body of a loop counts once
    per trip.

    Returns:
        The counts by operator, and whether every trip count is known.
    """
    counts_by_function: dict[tuple[str, str, str], tuple[Counter[str], bool]] = {}
    weights = model.graph.initializers
    planned_trips = _list_planned_trips(model)

    def count_body(nodes: Sequence[Node], shapes: dict[str, tuple[int, ...]]) -> tuple[Counter[str], bool]:
        """Counts the operators that a run of the nodes calls, and says whether the counts are exact."""
        counts: Counter[str] = Counter()
        is_exact = True
        for node in nodes:
            function = model.functions.get(node.key)
            graph = node.attributes.get("body") if node.op in ("Scan", "Loop") else None
            if function is not None and any(inner.domain == DOMAIN for inner in function.nodes):
                if node.key not in counts_by_function:
                    counts_by_function[node.key] = count_body(function.nodes, {})
                inner_counts, is_body_exact = counts_by_function[node.key]
                counts.update(inner_counts)
                is_exact &= is_body_exact
                continue
            counts[node.op] += 1
            _record_shape(node, shapes)
            if isinstance(graph, Graph):
                inner_counts, is_body_exact = count_body(graph.nodes, shapes)
                trips = _get_trip_count(node, shapes, weights)
                trips = planned_trips.get(f"{node.name}.body") if trips is None else trips
                is_exact &= is_body_exact and trips is not None
                for op, count in inner_counts.items():
                    counts[op] += count * (1 if trips is None else trips)
        return counts, is_exact

    return count_body(nodes, {})


def _record_shape(node: Node, shapes: dict[str, tuple[int, ...]]) -> None:
    """Records in `shapes` the output shape of a Reshape to constant sizes, to find the trip counts of Scans.

    The value of a small integer Constant is recorded under the key '=' + name.
    """
    if node.op == "Constant":
        value = node.attributes.get("value")
        if isinstance(value, Tensor) and value.dtype == "int64" and value.payload and value.elements <= 8:
            encoded = bytes(value.payload.view())
            shapes["=" + node.outputs[0]] = struct.unpack(f"<{len(encoded) // 8}q", encoded)
    elif node.op == "Reshape" and len(node.inputs) > 1 and "=" + node.inputs[1] in shapes:
        shapes[node.outputs[0]] = shapes["=" + node.inputs[1]]


def _get_trip_count(
    node: Node, shapes: Mapping[str, tuple[int, ...]], weights: Mapping[str, Tensor]
) -> int | None:
    """Returns the trip count of a Scan, which is the length of its first scanned input, or None if unknown.

    The scanned input may be one of `weights`, the initializers of the main graph.
    """
    count = node.attributes.get("num_scan_inputs")
    if node.op != "Scan" or not isinstance(count, int) or not 0 < count <= len(node.inputs):
        return None
    name = node.inputs[-count]
    shape = weights[name].shape if name in weights else shapes.get(name)
    axes = node.attributes.get("scan_input_axes") or (0,)
    has_axis = shape is not None and -len(shape) <= axes[0] < len(shape)
    return shape[axes[0]] if shape and has_axis and shape[axes[0]] >= 0 else None
