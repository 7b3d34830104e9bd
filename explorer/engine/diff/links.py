"""Pairs the rows of two layer trees by the diff of their graphs.

A row of an ONNX model is a node, and the diff pairs nodes. For other models, `build_row_graph` builds a graph
from the layers and the edges between them, and the same diff pairs its nodes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from explorer.engine.costs.value_flow import FlowingValue, ValueFlow
from explorer.engine.diff.compare import list_graph_changes
from explorer.engine.diff.pairing import (
    NodePairing,
    ReportPhase,
    find_helper_nodes,
    inline_calls_if_named_in,
    pair_nodes,
)
from explorer.engine.graph.model import Graph, Model, Node, Tensor, Value
from explorer.engine.progress import Cancel
from explorer.facts import Info, Layer, NodeDiff, TensorInfo


class RowLinks(Struct, eq=False):
    """Pairs of rows of two layer trees. Rows are identified by their index in the tree.

    Attributes:
        partner: Row of the second tree, by row of the first tree.
        states: Status of the pair and text about the difference, by row of the first tree.
        covered: Rows of the first and of the second tree that the diff covers. A covered row without a
            partner has no counterpart.
        unpaired_texts: Text about each covered row without a partner, for the first and the second tree.
        sites: Rows of the first tree that are tiled sites or are paired with one.
        graph: Differences of the graph as a whole, which belong to no row.
    """

    partner: dict[int, int] = field(default_factory=dict)
    states: dict[int, tuple[str, str]] = field(default_factory=dict)
    covered: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))
    unpaired_texts: tuple[dict[int, str], dict[int, str]] = field(default_factory=lambda: ({}, {}))
    sites: set[int | None] = field(default_factory=set)
    graph: Sequence[NodeDiff] = ()

    def add_pair(self, a: int | None, b: int | None, status: str, text: str) -> bool:
        """Pairs two rows if both exist and are unpaired; returns whether it paired them."""
        if a is not None and b is not None and a not in self.partner and b not in self.covered[1]:
            self.partner[a] = b
            self.states[a] = status, text
            self.covered[0].add(a)
            self.covered[1].add(b)
            return True
        return False


class TreePlaces(Struct, frozen=True, eq=False):
    """Where the rows of a tree are: paths, parents and subtrees.

    Attributes:
        rows: Row index and kind, by path.
        parent: Parent of each row, or -1 at the top level.
        end: Index after the last descendant of each row.
    """

    rows: Mapping[str, tuple[int, str]]
    parent: Sequence[int]
    end: Sequence[int]

    def find_enclosing_group(self, rows: Sequence[int], all_rows: Sequence[int]) -> int | None:
        """Finds the group that contains all of `rows` and no other row of `all_rows`.

        Args:
            rows: Rows that the group must contain.
            all_rows: Rows of all nodes, sorted.

        Returns:
            The row of the group, or None if no group matches.
        """
        if not rows:
            return None
        group, last = self.parent[min(rows)], max(rows)
        while group >= 0 and self.end[group] <= last:
            group = self.parent[group]
        count = bisect_left(all_rows, self.end[group]) - bisect_right(all_rows, group)
        return group if group >= 0 and count == len(rows) else None


def link_graphs(
    before: Model,
    after: Model,
    places: tuple[TreePlaces, TreePlaces],
    report_phase: ReportPhase,
    cancel: Cancel,
) -> RowLinks:
    """Pairs the rows of two ONNX graphs.

    Args:
        before: The first graph.
        after: The second graph.
        places: Positions of the rows of both trees.
        report_phase: Receives the phase and the progress.
        cancel: Callback between steps; the comparison stops when it returns True.
    """
    # the rows of an inlined function call have the paths of the function's nodes
    before, after = inline_calls_if_named_in(before, after), inline_calls_if_named_in(after, before)
    pairing = pair_nodes(before, after, report_phase, cancel)
    graphs = pairing.before.nodes, pairing.after.nodes
    rows = _map_nodes_to_rows(graphs[0], places[0].rows), _map_nodes_to_rows(graphs[1], places[1].rows)
    all_rows = sorted(rows[0].values()), sorted(rows[1].values())
    links = RowLinks(graph=list_graph_changes(pairing))
    for pair in pairing.sites:
        paired_rows: list[int | None] = []
        for side, nodes in enumerate((pair.before, pair.after)):
            site_rows = [row for i in nodes if (row := rows[side].get(i)) is not None]
            paired_rows.append(
                site_rows[0]
                if len(nodes) == len(site_rows) == 1
                else places[side].find_enclosing_group(site_rows, all_rows[side])
            )
        if links.add_pair(paired_rows[0], paired_rows[1], pair.row.status, pair.row.what):
            links.sites.add(paired_rows[0])
    _add_links(links, pairing, (rows[0].get, rows[1].get))
    for side, folds in enumerate(pairing.folds):
        if folds is not None:
            row_by_node = _map_nodes_to_rows(folds.original.graph.nodes, places[side].rows)
            text_by_row = {
                row_by_node[index]: text
                for index, text in folds.describe_folded_nodes().items()
                if index in row_by_node
            }
            unpaired_texts = {
                row: text for row, text in text_by_row.items() if row not in links.covered[side]
            }
            links.unpaired_texts[side].update(unpaired_texts)
            links.covered[side].update(unpaired_texts)
    return links


_IN_RANGE_TEXT = "replaced by the integer range of the quantizer that follows"


def link_rows(
    before: Model, after: Model, rows: tuple[list[int], list[int]], report_phase: ReportPhase
) -> RowLinks:
    """Pairs the rows of two trees whose graphs `build_row_graph` built.

    `rows` has the row of each node, for both graphs.
    """
    pairing = pair_nodes(before, after, report_phase, None)
    links = RowLinks(graph=list_graph_changes(pairing))
    _add_links(links, pairing, (rows[0].__getitem__, rows[1].__getitem__))
    return links


def _add_links(
    links: RowLinks,
    pairing: NodePairing,
    find_row: tuple[Callable[[int], int | None], Callable[[int], int | None]],
) -> None:
    """Adds the rows of paired and of unpaired nodes to `links`.

    `find_row` has a function from a node index to its row, or to None, for each graph.
    """
    fold_texts_before, fold_texts_after = (
        folds.describe_absorbing_nodes() if folds is not None else {} for folds in pairing.folds
    )
    for a, b in enumerate(pairing.matching.before):
        if b is not None:
            row = pairing.describer.describe_pair(a, b)
            status, text = (row.status, row.what) if row else ("same", "")
            fold_text = fold_texts_before.get(a) or fold_texts_after.get(b)
            if status in ("same", "renamed") and fold_text:
                status, text = "folded", fold_text
            links.add_pair(find_row[0](a), find_row[1](b), status, text)
    partners = pairing.matching.before, pairing.matching.after
    absorbed_activations = pairing.find_absorbed_activations()
    for side, graph in enumerate((pairing.before, pairing.after)):
        helper_texts = (
            find_helper_nodes(graph, partners[side], pairing.excluded_nodes[side], side == 1)
            if pairing.sites
            else {}
        )
        for i, partner in enumerate(partners[side]):
            row_index = find_row[side](i)
            if partner is None and i not in pairing.excluded_nodes[side] and row_index is not None:
                links.covered[side].add(row_index)
                links.unpaired_texts[side][row_index] = (
                    _IN_RANGE_TEXT if i in absorbed_activations[side] else helper_texts.get(i, "")
                )


def _map_nodes_to_rows(nodes: Sequence[Node], places: Mapping[str, tuple[int, str]]) -> dict[int, int]:
    """Maps node indices to rows by path: the node's label, with a suffix '#2' for a repeated label."""
    label_counts: Counter[str] = Counter()
    used_rows: set[int] = set()
    row_by_node: dict[int, int] = {}
    for i, node in enumerate(nodes):
        label = node.label
        label_counts[label] += 1
        for number in range(label_counts[label], label_counts[label] + 2):
            row, kind = places.get(label if number == 1 else f"{label}#{number}", (-1, ""))
            if row >= 0 and row not in used_rows and kind != "Module":
                row_by_node[i] = row
                used_rows.add(row)
                break
    return row_by_node


def build_row_graph(
    info: Info, layers: Sequence[Layer], ends: Sequence[int], flow: ValueFlow | None
) -> tuple[Model, list[int]]:
    """Builds a graph from the layers of a tree and the edges between them.

    Weights have types and shapes, but no values. `ends` has the index after the last descendant of each row.

    Returns:
        The graph, and the row of each node.
    """
    names: dict[int, str] = {}
    tensors: dict[str, Tensor] = {}
    nodes: list[Node] = []
    rows: list[int] = []

    def get_name(value: FlowingValue) -> str:
        if id(value) not in names:
            value_info = value.info()
            if flow is not None and value.maker >= 0:
                slot = flow.made[value.maker].index(value)
                names[id(value)] = f"{layers[value.maker].path}{f':{slot}' * bool(slot)}"
            else:
                names[id(value)] = value_info.name or f"?{len(names)}"
            if value.source == "stored":
                _store(tensors, value_info, value_info.name)
        return names[id(value)]

    for index, end in enumerate(ends):
        outputs = [get_name(value) for value in (flow.made.get(index, ()) if flow else ())]
        # skip groups; loops and branches also contain layers, but have outputs
        if end > index + 1 and not outputs:
            continue
        layer = layers[index]
        input_names = [
            get_name(v) for v in (flow.read.get(index, ()) if flow else ()) if v.source != "unknown"
        ]
        weights = [_store(tensors, w, f"{layer.path}.{w.name}") for w in layer.weights]
        attributes = dict(layer.attributes)
        nodes.append(Node(layer.kind, [*input_names, *weights], outputs, layer.path, attributes=attributes))
        rows.append(index)
    inputs = tuple(Value(v.name, v.dtype, v.shape) for v in info.model.inputs)
    return Model(Graph("", nodes, inputs, (), tensors), {}, 0, path=info.model.source), rows


def _store(tensors: dict[str, Tensor], info: TensorInfo, name: str) -> str:
    """Adds a tensor without data to `tensors` and returns its name; an unknown size becomes 0."""
    shape = tuple(size if isinstance(size, int) else 0 for size in info.shape or ())
    tensors[name] = Tensor(name, info.dtype or "float32", shape, None)
    return name
