"""Maps each kernel of onnxruntime's optimized graph to the original nodes that it computes.

Nodes that the runtime did not change keep their names and values. A fused node produces a value of the
original graph; it computes all original nodes between that value and the other values of the optimized graph.

The runtime's highest optimization level uses blocked layouts (NCHWc), whose values have new names. The name
of such a node contains the original value that it replaces. It may also compute the sum and the activation
after that value, which its name does not show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from explorer.engine.compat.onnxruntime import (
    BLOCKED_DOMAIN,
    LAYOUT_CHANGES,
    REORDER_OUTPUT,
    is_inserted_cast,
    is_piece,
    list_blocked_values,
    strip_precision,
)
from explorer.engine.graph.model import Graph, Node, list_bodies
from explorer.engine.graph.node_wires import NodeWires
from explorer.engine.profile.flat_graph import find_node_name

_SUMS = ("Add", "Sum")
"""Operators that the runtime fuses into a convolution as an additional input."""


def map_kernels(
    original: Graph, optimized: Graph, defaults: frozenset[str] = frozenset()
) -> dict[str, list[Node]]:
    """Maps each kernel to the original nodes that it computes, by the name of the optimized node.

    Bodies of control-flow nodes are included.

    Args:
        original: The graph that was given to the runtime. Every node has a name.
        optimized: The graph that the runtime made of it.
        defaults: Names of the original's stored tensors that a caller may replace; they do not count as
            constants.

    Returns:
        The original nodes of each kernel, in their order. A kernel without original nodes, such as a copy or
        a change of layout, is missing. Optimized nodes without names get the names of `build_unnamed_key`.
    """
    nodes_by_kernel: dict[str, list[Node]] = {}
    pairs = [(original, optimized, defaults)]
    while pairs:
        original_graph, optimized_graph, replaceable = pairs.pop()
        scope = _Scope(original_graph, optimized_graph, replaceable)
        kernel_nodes = scope.map_kernels()
        nodes_by_kernel |= kernel_nodes
        for node in optimized_graph.nodes:
            bodies = dict(list_bodies(node))
            origin = next(
                (candidate for candidate in kernel_nodes.get(node.name, ()) if candidate.op == node.op), None
            )
            if bodies and origin is not None:
                original_bodies = dict(list_bodies(origin))
                pairs += [
                    (original_bodies[name], body, replaceable)
                    for name, body in bodies.items()
                    if name in original_bodies
                ]
    return nodes_by_kernel


def build_unnamed_key(op: str, index: int) -> str:
    """Returns the key of the unnamed node `index` of an operator."""
    return f"{op}#{index}"


class _Scope:
    """A graph before and after optimization. Values that a body reads count as inputs of the body's node.

    Attributes:
        nodes: The nodes of the original graph.
        after: The optimized graph.
        original_names: Original value that a layout change produces, by the input of the layout change.
        index_by_name: Index of each original node, by name.
        edges: The value names that connect the original nodes.
        producers: Index of the original node that produces each value.
        readers: Indices of the original nodes that read each value.
    """

    def __init__(self, original: Graph, optimized: Graph, defaults: frozenset[str]) -> None:
        self.nodes, self.after = original.nodes, optimized
        # the last value in a blocked layout is an original value after its layout is changed back
        self.original_names = {
            node.inputs[0]: node.outputs[0]
            for node in optimized.nodes
            if node.op == REORDER_OUTPUT and _is_layout_change(node)
        }
        self.index_by_name = {node.name: index for index, node in enumerate(self.nodes)}
        self.edges = NodeWires(self.nodes, set(original.initializers) - defaults)
        self.producers = self.edges.producers
        self.readers: dict[str, list[int]] = {}
        for index, names in enumerate(self.edges.reads):
            for name in names:
                self.readers.setdefault(name, []).append(index)

    def map_kernels(self) -> dict[str, list[Node]]:
        """Returns the original nodes of each optimized node, by name."""
        outputs_by_node = {id(node): self._find_original_outputs(node) for node in self.after.nodes}
        known_values = {value for values in outputs_by_node.values() for value in values}
        known_values |= {strip_precision(value) for node in self.after.nodes for value in node.inputs}
        kernel_by_node: dict[int, Node] = {}
        for node in self.after.nodes:
            for index in self.edges.find_nodes_between(outputs_by_node[id(node)], known_values):
                kernel_by_node.setdefault(index, node)
        nodes_by_name: dict[str, set[int]] = {}
        for index, node in kernel_by_node.items():
            if node.name:
                nodes_by_name.setdefault(node.name, set()).add(index)
        for name, index in self._split_nodes(kernel_by_node):
            nodes_by_name.setdefault(name, set()).add(index)
        return {
            name: [self.nodes[index] for index in sorted(indices)] for name, indices in nodes_by_name.items()
        }

    def _find_original_outputs(self, node: Node) -> list[str]:
        """Returns the original values that an optimized node produces, even under other names."""
        if _is_layout_change(node):
            return []
        outputs = [strip_precision(self.original_names.get(value, value)) for value in node.outputs]
        original_outputs = [value for value in outputs if value in self.producers]
        if original_outputs:
            return original_outputs
        if node.name in self.index_by_name:
            return [value for value in self.nodes[self.index_by_name[node.name]].outputs if value]
        for blocked in map(strip_precision, list_blocked_values(node.name)):
            if blocked in self.producers:
                return [self._find_fused_output(node, blocked)]
        return []

    def _find_fused_output(self, node: Node, value: str) -> str:
        """Returns the original value that a blocked node produces after its fused sum and activation.

        Args:
            node: The blocked node.
            value: The original value that its name contains.
        """
        if node.domain == BLOCKED_DOMAIN and node.op == "Conv":
            if len(node.inputs) > 3 and node.inputs[3]:
                value = self._follow_only_reader(value, _SUMS)
            activation = node.attributes.get("activation")
            if isinstance(activation, str) and self.nodes[self.producers[value]].op != activation:
                value = self._follow_only_reader(value, (activation,))
        return value

    def _follow_only_reader(self, value: str, ops: Sequence[str]) -> str:
        """Returns the output of a value's only reader if its operator is in `ops`, else the value."""
        readers = self.readers.get(value, [])
        if len(readers) == 1 and self.nodes[readers[0]].op in ops and self.nodes[readers[0]].outputs[0]:
            return self.nodes[readers[0]].outputs[0]
        return value

    def _split_nodes(self, kernel_by_node: Mapping[int, Node]) -> Iterator[tuple[str, int]]:
        """Finds the original nodes of optimized nodes without original names.

        The runtime splits an operator for which it has no kernel into several nodes. They feed the node that
        produces the operator's output.

        Yields:
            The key of an optimized node, and the index of its original node.
        """
        producers = {value: node for node in self.after.nodes for value in node.outputs if value}
        original_index: dict[int, int] = {}
        for index, node in kernel_by_node.items():
            original_index[id(node)] = max(index, original_index.get(id(node), index))
        origins = dict(original_index)  # includes layout changes, which have no entry in the other table
        for node in reversed(self.after.nodes):
            if id(node) in origins:
                for producer in filter(None, map(producers.get, node.inputs)):
                    if id(producer) in origins or not (
                        _is_layout_change(producer) or not producer.name or is_piece(producer.name)
                    ):
                        continue
                    origins[id(producer)] = origins[id(node)]
                    if not _is_layout_change(producer):
                        original_index[id(producer)] = origins[id(node)]
                        if producer.name:
                            yield producer.name, original_index[id(producer)]
            elif (
                named_index := self.index_by_name.get(find_node_name(node.name))
            ) is not None and not _is_layout_change(node):
                yield node.name, named_index
        counts: dict[str, int] = {}
        unnamed_nodes = [node for node in self.after.nodes if not node.name and id(node) in original_index]
        for node in sorted(unnamed_nodes, key=lambda node: original_index[id(node)]):
            counts[node.op] = counts.get(node.op, -1) + 1
            yield build_unnamed_key(node.op, counts[node.op]), original_index[id(node)]


def _is_layout_change(node: Node) -> bool:
    return node.op in LAYOUT_CHANGES or (node.op == "Cast" and is_inserted_cast(node.name))
