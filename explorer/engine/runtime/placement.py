"""Placement: the execution provider of each layer, partitions, and the tensors that cross between providers.

A partition is the work of one provider without interruption: it continues as long as one of its nodes is
ready, and then the provider of the first ready node follows. A node that is missing in the optimized graph is
part of the operator that makes the value it led to; otherwise it was folded, or nothing reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush

from explorer.engine.graph.model import Model, Node, subgraphs
from explorer.engine.graph.node_wires import NodeWires
from explorer.engine.runtime import provider_assignment
from explorer.engine.runtime.provider_assignment import HOST, Assignment, body_node_name, node_name
from explorer.facts import Analysis, Layer, TensorInfo
from explorer.facts.external.placement import Boundary, FusedLayers, Partition, Placement
from explorer.settings.columns import tensor_bytes

Work = tuple[Node, tuple[int, ...]]
"""A node of the optimized graph, and the indices of the original nodes whose work it does."""


def placement(model: Model, analysis: Analysis, providers: Sequence[str], *, scratch: str) -> Placement:
    """The onnxruntime provider that runs each row of a layer tree.

    Args:
        model: The graph.
        analysis: Its analysis.
        providers: Names of providers in order of preference; empty for all that are installed.
        scratch: A folder for temporary files.

    Raises:
        Misuse: There is no such provider.
        BadModel: onnxruntime cannot load the model.
        MissingExtra: The installed onnxruntime does not report it.
    """
    runtime, available = provider_assignment.runtime()
    provider_order = provider_assignment.chosen_providers(providers)
    assignment = provider_assignment.assignment(model, provider_order, scratch=scratch)
    wires = _Wires(model)
    works = [] if assignment.nodes is None else _works(wires, assignment.nodes)
    called = _call_providers(wires, assignment)
    inside = {at: several for at, several in called.items() if len(several) > 1}
    of_node = _providers(wires, assignment, works, called)
    rows = _Rows(analysis, wires.nodes)
    boundaries = _boundaries(wires, of_node, rows)
    counts: dict[str, int] = {}
    for provider in filter(None, of_node):
        counts[provider] = counts.get(provider, 0) + 1
    parts = _partitions(wires, of_node)
    return Placement(
        runtime,
        available,
        provider_order,
        rows.providers(of_node, assignment, inside),
        counts,
        tuple([Partition(provider, rows.paths(part)) for provider, part in parts]),
        tuple(boundaries),
        sum(boundary.bytes or 0 for boundary in boundaries),
        sum(boundary.bytes is None for boundary in boundaries),
        tuple(_fused(assignment, works, of_node, rows)),
        rows.paths([at for at, provider in enumerate(of_node) if not provider]) if assignment.nodes else (),
        tuple(_notes(assignment, inside)),
    )


class _Wires(NodeWires):
    """Wires of the main graph, whose inputs and outputs lie on the CPU."""

    def __init__(self, model: Model) -> None:
        self.graph, self.nodes = model.graph, model.graph.nodes
        self.fed = {value.name for value in model.graph.feeds} | model.defaults
        super().__init__(self.nodes, model.graph.initializers.keys() - self.fed)

    def makers(self, at: int) -> set[int]:
        """Indices of the nodes whose values a node reads."""
        return {self.maker[name] for name in self.reads[at] if name in self.maker}


def _works(wires: _Wires, optimised: Sequence[Node]) -> list[Work]:
    """The nodes of an optimized graph, each with the original nodes between its outputs and its inputs."""
    there = {name for node in optimised for name in (*node.outputs, *node.inputs)}
    works: list[Work] = []
    for node in optimised:
        works.append((node, tuple(sorted(wires.between(node.outputs, there)))))
    return works


def _providers(
    wires: _Wires, assignment: Assignment, works: Sequence[Work], called: Mapping[int, Sequence[str]]
) -> list[str]:
    """The provider of each node; '' if the node does not run, or its provider is unknown."""
    provider_by_node = [assignment.providers.get(node_name(at), "") for at in range(len(wires.nodes))]
    for at, inside in called.items():
        provider_by_node[at] = inside[0]
    for node, work in works:
        runs = assignment.providers.get(node.name, "") or next(
            (provider_by_node[at] for at in work if provider_by_node[at]), ""
        )
        for at in work:
            provider_by_node[at] = provider_by_node[at] or runs
    return provider_by_node


def _call_providers(wires: _Wires, assignment: Assignment) -> dict[int, tuple[str, ...]]:
    """Providers of the nodes that replaced each function call, by the index of the call."""
    makers = {name: node for node in assignment.nodes or () for name in node.outputs if name}
    providers_by_call: dict[int, tuple[str, ...]] = {}
    for at, call in enumerate(wires.nodes):
        if node_name(at) in assignment.providers:
            continue
        todo = [makers[name] for name in call.outputs if name in makers]
        nodes = {id(node): node for node in todo}
        while todo:
            for name in todo.pop().inputs:
                node = makers.get(name)
                if node is not None and name not in wires.maker and id(node) not in nodes:
                    nodes[id(node)] = node
                    todo.append(node)
        runs = [_provider_of(node.name, assignment) for node in nodes.values()]
        if several := tuple(dict.fromkeys(filter(None, runs))):
            providers_by_call[at] = several
    return providers_by_call


def _provider_of(name: str, assignment: Assignment) -> str:
    """The provider of a node by its name; a fused node is called NAME/FUSION/ after one of its parts."""
    while name not in assignment.providers and "/" in name:
        name = name.rpartition("/")[0]
    return assignment.providers.get(name, "")


def _partitions(wires: _Wires, of_node: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Partitions in execution order: provider, and the indices of its nodes."""
    waiting = [len(wires.makers(at)) for at in range(len(of_node))]
    readers: list[list[int]] = [[] for _ in waiting]
    for at in range(len(of_node)):
        for maker in wires.makers(at):
            readers[maker].append(at)
    ready: dict[str, list[int]] = {}
    for at, count in enumerate(waiting):
        if not count:
            heappush(ready.setdefault(of_node[at], []), at)
    partitions: list[tuple[str, list[int]]] = []
    while heaps := {provider: heap for provider, heap in ready.items() if heap}:
        # a node that does not run interrupts no partition
        now = "" if "" in heaps else partitions[-1][0] if partitions and partitions[-1][0] in heaps else None
        if now is None:
            now = min(heaps, key=lambda provider: heaps[provider][0])
        at = heappop(heaps[now])
        if now and (not partitions or partitions[-1][0] != now):
            partitions.append((now, []))
        if now:
            partitions[-1][1].append(at)
        for reader in readers[at]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heappush(ready.setdefault(of_node[reader], []), reader)
    return partitions


def _boundaries(wires: _Wires, of_node: Sequence[str], rows: _Rows) -> list[Boundary]:
    """Values that one provider makes and another one reads; model inputs and outputs lie on the CPU."""
    source = {**dict.fromkeys(wires.fed, HOST)}
    crossing: dict[tuple[str, str], list[int]] = {}
    for at, node in enumerate(wires.nodes):
        for name in wires.reads[at]:
            if source.get(name) and of_node[at] and source[name] != of_node[at]:
                crossing.setdefault((name, of_node[at]), []).append(at)
        source.update(dict.fromkeys(node.outputs, of_node[at]))
    for value in wires.graph.outputs:
        if source.get(value.name) and source[value.name] != HOST:
            crossing.setdefault((value.name, HOST), [])
    boundaries = []
    for (name, target), readers in crossing.items():
        info = rows.tensors.get(name)
        maker = rows.paths([wires.maker[name]])[0] if name in wires.maker else ""
        shape, size = (None, None) if info is None else (info.shape, tensor_bytes((info,)))
        boundaries.append(Boundary(name, shape, maker, source[name], target, rows.paths(readers), size))
    return boundaries


def _fused(
    assignment: Assignment, works: Sequence[Work], of_node: Sequence[str], rows: _Rows
) -> Iterator[FusedLayers]:
    places = {node_name(at): at for at in range(len(of_node))}
    for names in assignment.compiled:
        work = [places[name] for name in names if name in places]
        if len(work) > 1:
            yield FusedLayers("compiled graph", of_node[work[0]], rows.paths(work))
    for node, some in works:
        if len(some) > 1:
            yield FusedLayers(node.op, of_node[some[0]], rows.paths(some))


def _notes(assignment: Assignment, inside: Mapping[int, tuple[str, ...]]) -> Iterator[str]:
    if inside:
        yield f"calls of functions on several providers, each in the partition of one: {len(inside):,}"
    for provider in assignment.unusable:
        yield f"{provider} is built into onnxruntime and cannot be used here"
    if assignment.nodes is None:
        yield "which layers are fused is not told"
    if not assignment.optimised:
        yield "so many nodes are not optimised: onnxruntime needs a time that grows with their square"


class _Rows:
    """The rows of a layer tree that stand for nodes of the main graph.

    Attributes:
        tensors: Facts about inputs and the values between nodes.
    """

    def __init__(self, analysis: Analysis, nodes: Sequence[Node]) -> None:
        self._layers, self._nodes = analysis.layers, nodes
        by_value: dict[str, list[Layer]] = {}
        for row in self._layers:
            for tensor in row.outputs:
                by_value.setdefault(tensor.name, []).append(row)
        self._rows: list[Layer | None] = []
        for node in nodes:
            # groups have the tensors that leave them, and a tiled product has its original operator
            rows = (row for name in node.outputs for row in by_value.get(name, ()))
            self._rows.append(
                next((row for row in rows if node.op == row.kind or node.label == row.path), None)
            )
        self.tensors: dict[str, TensorInfo] = {info.name: info for info in analysis.info.model.inputs}
        for row in filter(None, self._rows):
            self.tensors |= {tensor.name: tensor for tensor in row.outputs}

    def paths(self, places: Sequence[int]) -> tuple[str, ...]:
        """Paths of nodes, by their indices in the graph."""
        rows = [(self._rows[at], self._nodes[at]) for at in places]
        return tuple([node.label if row is None else row.path for row, node in rows])

    def providers(
        self, of_node: Sequence[str], assignment: Assignment, inside: Mapping[int, tuple[str, ...]]
    ) -> dict[int, str]:
        """Short provider names of each row: those of its node, or of its body if known; of a group, all."""
        provider_by_row: dict[int, str] = {}
        for at, row in enumerate(self._rows):
            if row is not None:
                provider_by_row[row.id] = of_node[at]
        mixed = {row.id: inside[at] for at, row in enumerate(self._rows) if row is not None and at in inside}
        bodies = dict(self._bodies(assignment))
        names_by_row: dict[int, dict[str, None]] = {}
        above: dict[int, str] = {}  # the provider of the node that a row lies in
        for row in self._layers:
            around = above.get(-1 if row.parent is None else row.parent, "")
            above[row.id] = bodies.get(row.id) or provider_by_row.get(row.id) or around
        for row in reversed(list(self._layers)):
            mine = names_by_row.setdefault(row.id, {})
            if above[row.id] and (not row.group or row.id in provider_by_row):
                mine.update(dict.fromkeys(mixed.get(row.id, (above[row.id],))))
            if row.parent is not None:
                names_by_row.setdefault(row.parent, {}).update(mine)
        order = {name: at for at, name in enumerate(dict.fromkeys(filter(None, of_node)))}
        return {
            at: ", ".join(
                _short(name) for name in sorted(names, key=lambda name: order.get(name, len(order)))
            )
            for at, names in names_by_row.items()
        }

    def _bodies(self, assignment: Assignment) -> Iterator[tuple[int, str]]:
        """Providers of rows that stand for nodes of bodies, if exactly one row fits."""
        inside: dict[int, dict[tuple[str, str], list[int]]] = {}
        carriers = {
            row.id for row, node in zip(self._rows, self._nodes, strict=True) if row and subgraphs(node)
        }
        around: dict[int, int] = {}
        for row in self._layers:
            carrier = around.get(-1 if row.parent is None else row.parent)
            if carrier is not None:
                for tensor in row.outputs:
                    inside[carrier].setdefault((tensor.name, row.kind), []).append(row.id)
            elif row.id in carriers:
                carrier = row.id
                inside[carrier] = {}
            if carrier is not None:
                around[row.id] = carrier
        for at, (carried, node) in enumerate(zip(self._rows, self._nodes, strict=True)):
            rows = {} if carried is None else inside.get(carried.id, {})
            for name, inner in _nodes_inside(node, node_name(at)) if rows else ():
                fits = rows.get((inner.outputs[0], inner.op), []) if inner.outputs else []
                if len(fits) == 1 and name in assignment.providers:
                    yield fits[0], assignment.providers[name]


def _nodes_inside(node: Node, name: str) -> Iterator[tuple[str, Node]]:
    """The nodes of bodies, with their names in `provider_assignment`."""
    for place, (_, body) in enumerate(subgraphs(node)):
        for at, body_node in enumerate(body.nodes):
            inner = body_node_name(name, place, at)
            yield inner, body_node
            yield from _nodes_inside(body_node, inner)


def _short(provider: str) -> str:
    """The short name of a provider for input and display: 'CPU'."""
    return provider.removesuffix("ExecutionProvider")
