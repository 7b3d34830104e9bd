"""Placement: execution provider of each layer, partitions, and tensors copied between providers.

A partition is a sequence of nodes that one provider runs without interruption. It ends when none of the
provider's nodes is ready. The provider of the first ready node comes next.

A node that is missing in the optimized graph belongs to the optimized node that computes the value to which
it leads. If no such optimized node exists, onnxruntime folded the node or nothing reads its value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush

from explorer.engine.graph.model import Model, Node, list_bodies
from explorer.engine.graph.node_wires import NodeWires
from explorer.engine.runtime import provider_assignment
from explorer.engine.runtime.provider_assignment import (
    HOST,
    Assignment,
    build_body_node_name,
    build_node_name,
)
from explorer.facts import Analysis, Layer, TensorInfo
from explorer.facts.external.placement import Boundary, FusedLayers, Partition, Placement
from explorer.settings.columns import sum_tensor_bytes

Replacement = tuple[Node, tuple[int, ...]]
"""A node of the optimized graph, and the indices of the original nodes that it replaces."""


def placement(model: Model, analysis: Analysis, providers: Sequence[str], *, scratch: str) -> Placement:
    """Determines which onnxruntime provider runs each row of a layer tree.

    Args:
        model: The graph.
        analysis: Analysis of the graph.
        providers: Names of providers in order of preference; if empty, all installed providers.
        scratch: Folder for temporary files.

    Raises:
        Misuse: A provider is not installed.
        BadModel: onnxruntime cannot load the model.
        MissingExtra: The installed onnxruntime does not report its assignment.
    """
    runtime, available = provider_assignment.describe_runtime()
    provider_order = provider_assignment.resolve_providers(providers)
    assignment = provider_assignment.read_assignment(model, provider_order, scratch=scratch)
    edges = _GraphEdges(model)
    replacements = [] if assignment.nodes is None else _match_optimized_nodes(edges, assignment.nodes)
    providers_by_call = _find_call_providers(edges, assignment)
    mixed_calls = {
        index: call_providers
        for index, call_providers in providers_by_call.items()
        if len(call_providers) > 1
    }
    provider_by_node = _list_providers_by_node(edges, assignment, replacements, providers_by_call)
    rows = _LayerRows(analysis, edges.nodes)
    boundaries = _list_boundaries(edges, provider_by_node, rows)
    counts: dict[str, int] = {}
    for provider in filter(None, provider_by_node):
        counts[provider] = counts.get(provider, 0) + 1
    partitions = _list_partitions(edges, provider_by_node)
    return Placement(
        runtime=runtime,
        available=available,
        asked=provider_order,
        providers=rows.providers(provider_by_node, assignment, mixed_calls),
        layers=counts,
        partitions=tuple([Partition(provider, rows.paths(part)) for provider, part in partitions]),
        boundaries=tuple(boundaries),
        bytes=sum(boundary.bytes or 0 for boundary in boundaries),
        unknown=sum(boundary.bytes is None for boundary in boundaries),
        fused=tuple(_list_fused_layers(assignment, replacements, provider_by_node, rows)),
        removed=rows.paths([at for at, provider in enumerate(provider_by_node) if not provider])
        if assignment.nodes
        else (),
        notes=tuple(_list_notes(assignment, mixed_calls)),
    )


class _GraphEdges(NodeWires):
    """Edges of the main graph. Its inputs and outputs are in the CPU's memory."""

    def __init__(self, model: Model) -> None:
        self.graph, self.nodes = model.graph, model.graph.nodes
        self.input_names = {value.name for value in model.graph.required_inputs} | model.defaults
        super().__init__(self.nodes, model.graph.initializers.keys() - self.input_names)

    def list_predecessors(self, index: int) -> set[int]:
        """Returns the indices of the nodes that compute the inputs of a node."""
        return {self.producers[name] for name in self.reads[index] if name in self.producers}


def _match_optimized_nodes(edges: _GraphEdges, optimized_nodes: Sequence[Node]) -> list[Replacement]:
    """Returns the nodes of an optimized graph, each with the original nodes that it replaces."""
    optimized_names = {name for node in optimized_nodes for name in (*node.outputs, *node.inputs)}
    replacements: list[Replacement] = []
    for node in optimized_nodes:
        replacements.append((node, tuple(sorted(edges.find_nodes_between(node.outputs, optimized_names)))))
    return replacements


def _list_providers_by_node(
    edges: _GraphEdges,
    assignment: Assignment,
    replacements: Sequence[Replacement],
    providers_by_call: Mapping[int, Sequence[str]],
) -> list[str]:
    """Returns the provider of each node, or '' if the node does not run or its provider is unknown."""
    provider_by_node = [
        assignment.providers.get(build_node_name(index), "") for index in range(len(edges.nodes))
    ]
    for index, call_providers in providers_by_call.items():
        provider_by_node[index] = call_providers[0]
    for node, replaced in replacements:
        provider = assignment.providers.get(node.name, "") or next(
            (provider_by_node[index] for index in replaced if provider_by_node[index]), ""
        )
        for index in replaced:
            provider_by_node[index] = provider_by_node[index] or provider
    return provider_by_node


def _find_call_providers(edges: _GraphEdges, assignment: Assignment) -> dict[int, tuple[str, ...]]:
    """Returns the providers of the nodes that replaced each function call, by the index of the call."""
    node_by_value = {name: node for node in assignment.nodes or () for name in node.outputs if name}
    providers_by_call: dict[int, tuple[str, ...]] = {}
    for index, call in enumerate(edges.nodes):
        if build_node_name(index) in assignment.providers:
            continue
        pending = [node_by_value[name] for name in call.outputs if name in node_by_value]
        nodes = {id(node): node for node in pending}
        while pending:
            for name in pending.pop().inputs:
                node = node_by_value.get(name)
                if node is not None and name not in edges.producers and id(node) not in nodes:
                    nodes[id(node)] = node
                    pending.append(node)
        node_providers = [_find_provider(node.name, assignment) for node in nodes.values()]
        if distinct_providers := tuple(dict.fromkeys(filter(None, node_providers))):
            providers_by_call[index] = distinct_providers
    return providers_by_call


def _find_provider(name: str, assignment: Assignment) -> str:
    """Returns the provider of a node by its name, or '' if unknown.

    onnxruntime names a fused node NAME/FUSION/ after one of its parts.
    """
    while name not in assignment.providers and "/" in name:
        name = name.rpartition("/")[0]
    return assignment.providers.get(name, "")


def _list_partitions(edges: _GraphEdges, provider_by_node: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Returns the partitions in execution order: the provider and the indices of its nodes."""
    missing_inputs = [len(edges.list_predecessors(index)) for index in range(len(provider_by_node))]
    readers: list[list[int]] = [[] for _ in missing_inputs]
    for index in range(len(provider_by_node)):
        for predecessor in edges.list_predecessors(index):
            readers[predecessor].append(index)
    ready: dict[str, list[int]] = {}
    for index, count in enumerate(missing_inputs):
        if not count:
            heappush(ready.setdefault(provider_by_node[index], []), index)
    partitions: list[tuple[str, list[int]]] = []
    while heaps := {provider: heap for provider, heap in ready.items() if heap}:
        # a node that does not run interrupts no partition
        last_provider, last_indices = partitions[-1] if partitions else ("", [])
        current_provider = "" if "" in heaps else last_provider
        if current_provider not in heaps:
            current_provider = min(heaps, key=lambda provider: heaps[provider][0])
        index = heappop(heaps[current_provider])
        if current_provider and current_provider == last_provider:
            last_indices.append(index)
        elif current_provider:
            partitions.append((current_provider, [index]))
        for reader in readers[index]:
            missing_inputs[reader] -= 1
            if not missing_inputs[reader]:
                heappush(ready.setdefault(provider_by_node[reader], []), reader)
    return partitions


def _list_boundaries(edges: _GraphEdges, provider_by_node: Sequence[str], rows: _LayerRows) -> list[Boundary]:
    """Returns the values that one provider computes and another provider reads.

    Model inputs and outputs count as values of the CPU.
    """
    provider_by_value = {**dict.fromkeys(edges.input_names, HOST)}
    readers_by_value: dict[tuple[str, str], list[int]] = {}
    for index, node in enumerate(edges.nodes):
        for name in edges.reads[index]:
            if (
                provider_by_value.get(name)
                and provider_by_node[index]
                and provider_by_value[name] != provider_by_node[index]
            ):
                readers_by_value.setdefault((name, provider_by_node[index]), []).append(index)
        provider_by_value.update(dict.fromkeys(node.outputs, provider_by_node[index]))
    for value in edges.graph.outputs:
        if provider_by_value.get(value.name) and provider_by_value[value.name] != HOST:
            readers_by_value.setdefault((value.name, HOST), [])
    boundaries = []
    for (name, target), readers in readers_by_value.items():
        info = rows.tensors.get(name)
        producer = rows.paths([edges.producers[name]])[0] if name in edges.producers else ""
        shape, size = (None, None) if info is None else (info.shape, sum_tensor_bytes((info,)))
        boundaries.append(
            Boundary(
                tensor=name,
                shape=shape,
                maker=producer,
                source=provider_by_value[name],
                target=target,
                readers=rows.paths(readers),
                bytes=size,
            )
        )
    return boundaries


def _list_fused_layers(
    assignment: Assignment,
    replacements: Sequence[Replacement],
    provider_by_node: Sequence[str],
    rows: _LayerRows,
) -> Iterator[FusedLayers]:
    """Yields the layers of each compiled graph, then the layers of each fused node."""
    index_by_name = {build_node_name(index): index for index in range(len(provider_by_node))}
    for names in assignment.compiled:
        indices = [index_by_name[name] for name in names if name in index_by_name]
        if len(indices) > 1:
            yield FusedLayers("compiled graph", provider_by_node[indices[0]], rows.paths(indices))
    for node, replaced in replacements:
        if len(replaced) > 1:
            yield FusedLayers(node.op, provider_by_node[replaced[0]], rows.paths(replaced))


def _list_notes(assignment: Assignment, mixed_calls: Mapping[int, tuple[str, ...]]) -> Iterator[str]:
    if mixed_calls:
        yield (
            "calls of functions on several providers, each counted in the partition of one:"
            f" {len(mixed_calls):,}"
        )
    for provider in assignment.unusable:
        yield f"{provider} is built into onnxruntime and cannot be used here"
    if assignment.nodes is None:
        yield "which layers are fused is unknown"
    if not assignment.is_optimized:
        yield "so many nodes are not optimized: the time for it grows with the square of their number"


class _LayerRows:
    """The rows of a layer tree, matched with the nodes of the main graph.

    Attributes:
        tensors: Facts about model inputs and the values between nodes, by name.
    """

    def __init__(self, analysis: Analysis, nodes: Sequence[Node]) -> None:
        self._layers, self._nodes = analysis.layers, nodes
        by_value: dict[str, list[Layer]] = {}
        for row in self._layers:
            for tensor in row.outputs:
                by_value.setdefault(tensor.name, []).append(row)
        self._rows: list[Layer | None] = []
        for node in nodes:
            # groups list the outputs of their rows, too, and a tiled product keeps its original operator
            rows = (row for name in node.outputs for row in by_value.get(name, ()))
            self._rows.append(
                next((row for row in rows if node.op == row.kind or node.label == row.path), None)
            )
        self.tensors: dict[str, TensorInfo] = {info.name: info for info in analysis.info.model.inputs}
        for row in filter(None, self._rows):
            self.tensors |= {tensor.name: tensor for tensor in row.outputs}

    def paths(self, indices: Sequence[int]) -> tuple[str, ...]:
        """Returns the paths of nodes, given their indices in the graph."""
        rows = [(self._rows[index], self._nodes[index]) for index in indices]
        return tuple([node.label if row is None else row.path for row, node in rows])

    def providers(
        self,
        provider_by_node: Sequence[str],
        assignment: Assignment,
        mixed_calls: Mapping[int, tuple[str, ...]],
    ) -> dict[int, str]:
        """Returns the short provider names of each row, separated by commas, by the row's id.

        A row has the provider of its node, or of its node in a body if known. A group lists the providers of
        all its rows.
        """
        provider_by_row: dict[int, str] = {}
        for index, row in enumerate(self._rows):
            if row is not None:
                provider_by_row[row.id] = provider_by_node[index]
        mixed_calls_by_row = {
            row.id: mixed_calls[index]
            for index, row in enumerate(self._rows)
            if row is not None and index in mixed_calls
        }
        bodies = dict(self._iterate_body_providers(assignment))
        names_by_row: dict[int, dict[str, None]] = {}
        containing_provider: dict[int, str] = {}  # provider of the node that contains a row
        for row in self._layers:
            inherited = containing_provider.get(-1 if row.parent is None else row.parent, "")
            containing_provider[row.id] = bodies.get(row.id) or provider_by_row.get(row.id) or inherited
        for row in reversed(list(self._layers)):
            names = names_by_row.setdefault(row.id, {})
            if containing_provider[row.id] and (not row.group or row.id in provider_by_row):
                names.update(dict.fromkeys(mixed_calls_by_row.get(row.id, (containing_provider[row.id],))))
            if row.parent is not None:
                names_by_row.setdefault(row.parent, {}).update(names)
        order = {name: index for index, name in enumerate(dict.fromkeys(filter(None, provider_by_node)))}
        return {
            row_id: ", ".join(
                _shorten_provider(name)
                for name in sorted(names, key=lambda name: order.get(name, len(order)))
            )
            for row_id, names in names_by_row.items()
        }

    def _iterate_body_providers(self, assignment: Assignment) -> Iterator[tuple[int, str]]:
        """Yields the id and the provider of rows inside bodies, for body nodes that match exactly one row.

        The carrier of a row is the row whose node contains the body.
        """
        rows_by_carrier: dict[int, dict[tuple[str, str], list[int]]] = {}
        carriers = {
            row.id for row, node in zip(self._rows, self._nodes, strict=True) if row and list_bodies(node)
        }
        carrier_by_row: dict[int, int] = {}
        for row in self._layers:
            carrier = carrier_by_row.get(-1 if row.parent is None else row.parent)
            if carrier is not None:
                for tensor in row.outputs:
                    rows_by_carrier[carrier].setdefault((tensor.name, row.kind), []).append(row.id)
            elif row.id in carriers:
                carrier = row.id
                rows_by_carrier[carrier] = {}
            if carrier is not None:
                carrier_by_row[row.id] = carrier
        for index, (carrier_row, node) in enumerate(zip(self._rows, self._nodes, strict=True)):
            rows = {} if carrier_row is None else rows_by_carrier.get(carrier_row.id, {})
            for name, inner in _iterate_body_nodes(node, build_node_name(index)) if rows else ():
                row_ids = rows.get((inner.outputs[0], inner.op), []) if inner.outputs else []
                if len(row_ids) == 1 and name in assignment.providers:
                    yield row_ids[0], assignment.providers[name]


def _iterate_body_nodes(node: Node, name: str) -> Iterator[tuple[str, Node]]:
    """Yields the nodes of all bodies, with their names in `provider_assignment`."""
    for body_index, (_, body) in enumerate(list_bodies(node)):
        for node_index, body_node in enumerate(body.nodes):
            inner_name = build_body_node_name(name, body_index, node_index)
            yield inner_name, body_node
            yield from _iterate_body_nodes(body_node, inner_name)


def _shorten_provider(provider: str) -> str:
    """Returns the short name of a provider for input and display: 'CPU'."""
    return provider.removesuffix("ExecutionProvider")
