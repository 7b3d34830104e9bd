"""Pairs the values of two graphs and cuts each graph into regions between these values.

A region can run alone, on any inputs. This distinguishes the layer that causes an error from layers that only
propagate it.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.diff.def_use import DefUse, is_numbered
from explorer.engine.diff.forms import Forms
from explorer.engine.diff.match import match
from explorer.engine.diff.sites import collect_known_pairs, collect_site_nodes, pair_sites
from explorer.engine.graph.interpreter import list_reads
from explorer.engine.graph.model import Model, Node, Value
from explorer.engine.graph.tile_metadata import SITE_KEY


class Pair(Struct, frozen=True):
    """Names of corresponding values in the first and in the second graph."""

    before: str
    after: str


class Region(Struct, frozen=True):
    """Nodes that compute one value from other paired values and graph inputs.

    Attributes:
        value: Name of the computed value.
        nodes: Indices of the nodes, ascending.
        inputs: Names of the paired values and graph inputs that the region reads.
        initializers: Names of the initializers that it reads.
    """

    value: str
    nodes: tuple[int, ...]
    inputs: frozenset[str]
    initializers: frozenset[str]


class GraphProducers:
    """A graph with the producers of its values.

    Attributes:
        model: Model whose main graph is indexed.
        nodes: Nodes of the main graph.
        producer: Index of the node that computes each value, by value name.
        reads: Names of the values that each node reads, by node index.
        input_dependent: Names of the values that depend on the graph's inputs.
        normalized: Output names of BatchNormalization nodes by input name.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.nodes = model.graph.nodes
        self.producer: dict[str, int] = {}
        self.reads: list[tuple[str, ...]] = []
        self.input_dependent = {v.name for v in model.graph.required_inputs}
        norms = (node for node in self.nodes if node.op == "BatchNormalization" and not node.domain)
        self.normalized = {node.inputs[0]: node.outputs[0] for node in norms}
        for index, node in enumerate(self.nodes):
            input_names = tuple(list_reads(node))
            self.reads.append(input_names)
            outputs = [name for name in node.outputs if name]
            self.producer.update((name, index) for name in outputs)
            if not self.input_dependent.isdisjoint(input_names):
                self.input_dependent.update(outputs)

    def find_region(self, value: str, stops: Container[str]) -> Region:
        """Returns the nodes that compute `value` from the values in `stops`, inputs and initializers."""
        positions, queue = {self.producer[value]}, [self.producer[value]]
        boundary: set[str] = set()
        while queue:
            for name in self.reads[queue.pop()]:
                index = self.producer.get(name)
                if index is None or name in stops:
                    boundary.add(name)
                elif index not in positions:
                    positions.add(index)
                    queue.append(index)
        constants = boundary & self.model.graph.initializers.keys()
        return Region(value, tuple(sorted(positions)), frozenset(boundary - constants), frozenset(constants))


def build_region_model(
    graph_producers: GraphProducers, regions: Iterable[Region], dtypes: Mapping[str, str]
) -> tuple[Model, dict[str, str]]:
    """Builds a model of several independent regions. Each region reads model inputs, not other regions.

    Args:
        graph_producers: Graph of the regions.
        regions: Regions to include.
        dtypes: Element types of all inputs of the regions, by name.

    Returns:
        The model, and the name of its output for the value of each region.
    """
    region_list = list(regions)
    inputs = sorted({name for region in region_list for name in region.inputs})
    constants = {name for region in region_list for name in region.initializers}
    cut_values = set(inputs) | {region.value for region in region_list}
    names = {
        name: _make_unused(f"{name}/alone", graph_producers.producer)
        for name in cut_values
        if name in graph_producers.producer
    }
    positions = sorted({index for region in region_list for index in region.nodes})
    nodes = [_rename_outputs(graph_producers.nodes[index], names) for index in positions]
    graph = replace(
        graph_producers.model.graph,
        nodes=tuple(nodes),
        inputs=tuple(Value(name, dtypes[name], None) for name in inputs),
        outputs=tuple(Value(names[region.value], None, None) for region in region_list),
        initializers={name: graph_producers.model.graph.initializers[name] for name in sorted(constants)},
        values=(),
        extra=(),
    )
    return replace(graph_producers.model, graph=graph), {
        region.value: names[region.value] for region in region_list
    }


def build_region_model_of_one(
    graph_producers: GraphProducers, region: Region, types: Mapping[str, str] = {}
) -> Model:
    """Builds a model of one region; inputs without an entry in `types` are float32."""
    return build_region_model(
        graph_producers, [region], {name: types.get(name, "float32") for name in region.inputs}
    )[0]


def _make_unused(name: str, names: Collection[str]) -> str:
    while name in names:
        name += "'"
    return name


def _rename_outputs(node: Node, names: Mapping[str, str]) -> Node:
    """Renames the outputs of a node, so that readers of the old names read a model input."""
    if names.keys().isdisjoint(node.outputs):
        return node
    return node.replace_values(node.inputs, [names.get(name, name) for name in node.outputs])


def pair_values(
    before: GraphProducers,
    after: GraphProducers,
    inputs: Mapping[str, str],
    outputs: Sequence[Pair],
    extra: Mapping[str, str] | None = None,
) -> list[Pair]:
    """Pairs corresponding values of two graphs, in the first graph's execution order.

    Equal names are trusted if the operators are equal, one is in a tiled site, or the name is not numbered.
    If one name fails this test, the exporter probably renumbered the values, and a diff pairs them.

    Args:
        before: The first graph.
        after: The second graph.
        inputs: Input names of the second graph by input name of the first.
        outputs: Pairs of graph outputs.
        extra: Additional pairs.
    """
    output_pairs = {pair.before: pair.after for pair in outputs}
    shared = [name for name in before.producer if name in after.producer and name in before.input_dependent]
    unreliable = [name for name in shared if not _is_reliable(before, after, name)]
    pairs: dict[str, str] = {}
    if not unreliable:
        pairs = {name: name for name in shared}
    unpaired_before = before.input_dependent - pairs.keys()
    paired = set(pairs.values())
    are_unpaired_after = (
        name in after.input_dependent and name not in paired and SITE_KEY not in after.nodes[index].metadata
        for name, index in after.producer.items()
    )
    if unreliable or (not unpaired_before.isdisjoint(before.producer) and any(are_unpaired_after)):
        for first, second in _pair_by_diff(before.model, after.model, inputs, output_pairs):
            if first in before.input_dependent and second in after.input_dependent:
                pairs.setdefault(first, second)
    pairs = _skip_folded_normalizations(pairs, before, after)
    pairs.update(extra or {})
    pairs.update((a, b) for a, b in output_pairs.items() if a in before.producer and b in after.producer)
    used_partners: set[str] = set()
    output_partners = set(output_pairs.values())
    ordered = []
    for name in before.producer:
        partner = pairs.get(name)
        # only an output may be paired with an output, because users compare outputs
        if (
            partner is None
            or partner in used_partners
            or (partner in output_partners and name not in output_pairs)
        ):
            continue
        used_partners.add(partner)
        ordered.append(Pair(name, partner))
    return ordered


def _skip_folded_normalizations(
    pairs: Mapping[str, str], before: GraphProducers, after: GraphProducers
) -> dict[str, str]:
    """Moves pairs to the output of a normalization that one graph folded into the previous layer."""
    paired = pairs.keys(), set(pairs.values())
    moved = {}
    for first, second in pairs.items():
        normalized = before.normalized.get(first, ""), after.normalized.get(second, "")
        unpaired = [
            name if name not in used_names else ""
            for name, used_names in zip(normalized, paired, strict=True)
        ]
        if bool(normalized[0]) != bool(normalized[1]) and any(unpaired):
            moved[unpaired[0] or first] = unpaired[1] or second
        else:
            moved[first] = second
    return moved


def _is_reliable(before: GraphProducers, after: GraphProducers, name: str) -> bool:
    """Whether values of both graphs with the same name probably correspond; see `pair_values`."""
    first, second = before.nodes[before.producer[name]], after.nodes[after.producer[name]]
    if first.key == second.key or SITE_KEY in first.metadata or SITE_KEY in second.metadata:
        return True
    return not is_numbered(name, first.op)


def _pair_by_diff(
    before: Model, after: Model, inputs: Mapping[str, str], output_pairs: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Pairs values by a diff of the graphs."""
    first, second = DefUse(before), DefUse(after)
    forms = Forms()
    sites = pair_sites(first, second, forms)
    pairs = collect_known_pairs(sites)
    known_pairs = [*inputs.items(), *pairs, *output_pairs.items()]
    alignment = match(first, second, forms, excluded_nodes=collect_site_nodes(sites), known_pairs=known_pairs)
    for a, b in enumerate(alignment.before):
        if b is not None and first.nodes[a].key == second.nodes[b].key:
            pairs += [
                (x, y)
                for x, y in zip(first.nodes[a].outputs, second.nodes[b].outputs, strict=False)
                if x and y
            ]
    return pairs
