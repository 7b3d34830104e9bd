"""Row links: pairs of rows of two layer trees, by the diff of the nodes behind the rows.

The rows of ONNX graphs stand for nodes, which the diff pairs. Other models have rows alone: their layers
and the edges between them go through the same diff as a graph.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, field

from explorer.engine.costs.value_flow import FlowingValue, ValueFlow
from explorer.engine.diff.compare import around
from explorer.engine.diff.pairing import NodePairing, Tell, folded, opened_as, pair_nodes
from explorer.engine.graph.model import Graph, Model, Node, Tensor, Value
from explorer.engine.progress import Cancel
from explorer.facts import Info, Layer, NodeDiff, TensorInfo


class RowLinks(Struct, eq=False):
    """Pairs of rows.

    Attributes:
        partner: By row of the first tree: the row of the second.
        states: By row of the first tree: the state of the pair, and what differs.
        covered: Rows of either tree that the diff covers: such a row without a partner has none.
        alone: By row without a partner, of either tree: a text about it.
        sites: Rows of the first tree that are a tiled site, or are paired with one.
        graph: Differences that are in no row.
    """

    partner: dict[int, int] = field(default_factory=dict)
    states: dict[int, tuple[str, str]] = field(default_factory=dict)
    covered: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))
    alone: tuple[dict[int, str], dict[int, str]] = field(default_factory=lambda: ({}, {}))
    sites: set[int | None] = field(default_factory=set)
    graph: Sequence[NodeDiff] = ()

    def join(self, a: int | None, b: int | None, status: str, text: str) -> bool:
        """Pairs two rows if both exist and are free; returns whether it did."""
        if a is not None and b is not None and a not in self.partner and b not in self.covered[1]:
            self.partner[a] = b
            self.states[a] = status, text
            self.covered[0].add(a)
            self.covered[1].add(b)
            return True
        return False


class TreePlaces(Struct, frozen=True, eq=False):
    """The positions of the rows of a tree.

    Attributes:
        rows: By path: the row and its kind.
        parent: The parent of each row; -1 at the top.
        end: For each row, the index behind the last row inside it.
    """

    rows: Mapping[str, tuple[int, str]]
    parent: Sequence[int]
    end: Sequence[int]

    def around(self, rows: Sequence[int], every: Sequence[int]) -> int | None:
        """The group that contains `rows` and no other row of `every`, which is sorted; None without one."""
        if not rows:
            return None
        at, last = self.parent[min(rows)], max(rows)
        while at >= 0 and self.end[at] <= last:
            at = self.parent[at]
        count = bisect_left(every, self.end[at]) - bisect_right(every, at)
        return at if at >= 0 and count == len(rows) else None


def graph_links(
    before: Model, after: Model, places: tuple[TreePlaces, TreePlaces], tell: Tell, cancel: Cancel
) -> RowLinks:
    """Links of the rows of two ONNX graphs.

    Args:
        before: One graph.
        after: The other.
        places: Rows of their trees.
        tell: Receives the phase.
        cancel: Called between steps.
    """
    # the rows of an opened call have the paths of the nodes in the function
    before, after = opened_as(before, after), opened_as(after, before)
    pairing = pair_nodes(before, after, tell, cancel)
    graphs = pairing.before.nodes, pairing.after.nodes
    rows = _rows_of(graphs[0], places[0].rows), _rows_of(graphs[1], places[1].rows)
    every = sorted(rows[0].values()), sorted(rows[1].values())
    links = RowLinks(graph=around(pairing))
    for pair in pairing.sites:
        ends: list[int | None] = []
        for side, nodes in enumerate((pair.before, pair.after)):
            site_rows = [row for i in nodes if (row := rows[side].get(i)) is not None]
            ends.append(
                site_rows[0]
                if len(nodes) == len(site_rows) == 1
                else places[side].around(site_rows, every[side])
            )
        if links.join(ends[0], ends[1], pair.row.status, pair.row.what):
            links.sites.add(ends[0])
    _link(links, pairing, (rows[0].get, rows[1].get))
    for side, folds in enumerate(pairing.folds):
        if folds is not None:
            places_of = _rows_of(folds.original.graph.nodes, places[side].rows)
            gone = {places_of[at]: text for at, text in folds.texts().items() if at in places_of}
            new = {row: text for row, text in gone.items() if row not in links.covered[side]}
            links.alone[side].update(new)
            links.covered[side].update(new)
    return links


_IN_RANGE = "done by the range of the integers behind"


def row_links(before: Model, after: Model, rows: tuple[list[int], list[int]], tell: Tell) -> RowLinks:
    """Links of the rows from which `row_graph` made the graphs `before` and `after`."""
    pairing = pair_nodes(before, after, tell, None)
    links = RowLinks(graph=around(pairing))
    _link(links, pairing, (rows[0].__getitem__, rows[1].__getitem__))
    return links


def _link(
    links: RowLinks,
    pairing: NodePairing,
    row_of: tuple[Callable[[int], int | None], Callable[[int], int | None]],
) -> None:
    """Adds the pairs of nodes, and the nodes without a partner."""
    into = [folds.targets() if folds is not None else {} for folds in pairing.folds]
    for a, b in enumerate(pairing.matching.before):
        if b is not None:
            row = pairing.describer.row(a, b)
            state = (row.status, row.what) if row else ("same", "")
            if state[0] in ("same", "renamed") and (text := into[0].get(a) or into[1].get(b)):
                state = "folded", text
            links.join(row_of[0](a), row_of[1](b), *state)
    partners, ranged = (pairing.matching.before, pairing.matching.after), pairing.ranged()
    for side, graph in enumerate((pairing.before, pairing.after)):
        idle = folded(graph, partners[side], pairing.closed[side], side == 1) if pairing.sites else {}
        for i, partner in enumerate(partners[side]):
            place = row_of[side](i)
            if partner is None and i not in pairing.closed[side] and place is not None:
                links.covered[side].add(place)
                links.alone[side][place] = _IN_RANGE if i in ranged[side] else idle.get(i, "")


def _rows_of(nodes: Sequence[Node], places: Mapping[str, tuple[int, str]]) -> dict[int, int]:
    """Nodes of a graph to their rows; a row's path is its node's label, with '#2' if the label is taken."""
    label_counts: Counter[str] = Counter()
    taken: set[int] = set()
    row_of: dict[int, int] = {}
    for i, node in enumerate(nodes):
        label = node.label
        label_counts[label] += 1
        for number in range(label_counts[label], label_counts[label] + 2):
            row, kind = places.get(label if number == 1 else f"{label}#{number}", (-1, ""))
            if row >= 0 and row not in taken and kind != "Module":
                row_of[i] = row
                taken.add(row)
                break
    return row_of


def row_graph(
    info: Info, layers: Sequence[Layer], ends: Sequence[int], flow: ValueFlow | None
) -> tuple[Model, list[int]]:
    """The layers of a tree and the edges between them as a graph, and the row of each of its nodes.

    Weights have types and shapes, but no values. `ends` are the indices behind the last row inside each row.
    """
    names: dict[int, str] = {}
    tensors: dict[str, Tensor] = {}
    nodes: list[Node] = []
    rows: list[int] = []

    def name(value: FlowingValue) -> str:
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

    for at, end in enumerate(ends):
        outputs = [name(value) for value in (flow.made.get(at, ()) if flow else ())]
        if end > at + 1 and not outputs:  # a group; loops and branches contain layers, too, but have outputs
            continue
        layer = layers[at]
        takes = [name(v) for v in (flow.read.get(at, ()) if flow else ()) if v.source != "unknown"]
        weights = [_store(tensors, w, f"{layer.path}.{w.name}") for w in layer.weights]
        attributes = dict(layer.attributes)
        nodes.append(Node(layer.kind, [*takes, *weights], outputs, layer.path, attributes=attributes))
        rows.append(at)
    inputs = tuple(Value(v.name, v.dtype, v.shape) for v in info.model.inputs)
    return Model(Graph("", nodes, inputs, (), tensors), {}, 0, path=info.model.source), rows


def _store(tensors: dict[str, Tensor], info: TensorInfo, name: str) -> str:
    shape = tuple(size if isinstance(size, int) else 0 for size in info.shape or ())
    tensors[name] = Tensor(name, info.dtype or "float32", shape, None)
    return name
