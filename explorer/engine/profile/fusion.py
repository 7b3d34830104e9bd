"""Fused kernels: the nodes of the original graph that each node of an optimized graph computes.

onnxruntime writes its optimized graph. Nodes that it left alone keep their names and values. A fused node
ends in a value of the original, and computes everything between that value and the other values of the new
graph. The blocked layouts of its last level (NCHWc) make values of their own: such a node is named after the
value that it replaces, and computes the sum and the activation behind it without another name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from explorer.engine.compat.onnxruntime import (
    BLOCKED_DOMAIN,
    LAID_OUT,
    LAYOUT_CHANGES,
    blocked_values,
    is_inserted_cast,
    is_piece,
    without_precision,
)
from explorer.engine.graph.model import Graph, Node, subgraphs
from explorer.engine.graph.node_wires import NodeWires
from explorer.engine.profile.flat_graph import named_in

_SUMS = ("Add", "Sum")


def works(original: Graph, optimised: Graph, defaults: frozenset[str] = frozenset()) -> dict[str, list[Node]]:
    """The original nodes that each kernel computes, by the name of the optimised node, bodies included.

    Args:
        original: The graph that was given to the runtime; every node has a name.
        optimised: The graph to which the runtime optimized it.
        defaults: Stored tensors of the original that a caller may replace: they are no constants.

    Returns:
        The nodes in their original order. A kernel without an original node (a copy, a change of layout) is
        missing. `unnamed` names the nodes without a name, such as the pieces of an operator, in order.
    """
    nodes_by_kernel: dict[str, list[Node]] = {}
    pairs = [(original, optimised, defaults)]
    while pairs:
        before, after, open_ = pairs.pop()
        scope = _Scope(before, after, open_)
        mine = scope.works()
        nodes_by_kernel |= mine
        for node in after.nodes:
            bodies = dict(subgraphs(node))
            origin = next(
                (candidate for candidate in mine.get(node.name, ()) if candidate.op == node.op), None
            )
            if bodies and origin is not None:
                theirs = dict(subgraphs(origin))
                pairs += [(theirs[name], body, open_) for name, body in bodies.items() if name in theirs]
    return nodes_by_kernel


def unnamed(op: str, at: int) -> str:
    """The name of the `at`-th unnamed node of an operator."""
    return f"{op}#{at}"


class _Scope:
    """One graph before and after; reads of a body count as reads of its node."""

    def __init__(self, before: Graph, after: Graph, defaults: frozenset[str]) -> None:
        self.nodes, self.after = before.nodes, after
        # the last value of a blocked stretch is an original value, once its layout is changed back
        self.moved = {n.inputs[0]: n.outputs[0] for n in after.nodes if n.op == LAID_OUT and _moves(n)}
        self.names = {node.name: at for at, node in enumerate(self.nodes)}
        self.wires = NodeWires(self.nodes, set(before.initializers) - defaults)
        self.maker = self.wires.maker
        self.readers: dict[str, list[int]] = {}
        for at, names in enumerate(self.wires.reads):
            for name in names:
                self.readers.setdefault(name, []).append(at)

    def works(self) -> dict[str, list[Node]]:
        """The original nodes of each optimised one."""
        ends = {id(node): self._ends(node) for node in self.after.nodes}
        there = {value for values in ends.values() for value in values}
        there |= {without_precision(value) for node in self.after.nodes for value in node.inputs}
        taken: dict[int, Node] = {}
        for node in self.after.nodes:
            for at in self.wires.between(ends[id(node)], there):
                taken.setdefault(at, node)
        of_node: dict[str, set[int]] = {}
        for at, node in taken.items():
            if node.name:
                of_node.setdefault(node.name, set()).add(at)
        for name, at in self._pieces(taken):
            of_node.setdefault(name, set()).add(at)
        return {name: [self.nodes[at] for at in sorted(places)] for name, places in of_node.items()}

    def _ends(self, node: Node) -> list[str]:
        """The original values that an optimised node makes, even if they have other names there."""
        if _moves(node):
            return []
        outputs = [without_precision(self.moved.get(value, value)) for value in node.outputs]
        same = [value for value in outputs if value in self.maker]
        if same:
            return same
        if node.name in self.names:
            return [value for value in self.nodes[self.names[node.name]].outputs if value]
        for blocked in map(without_precision, blocked_values(node.name)):
            if blocked in self.maker:
                return [self._behind(node, blocked)]
        return []

    def _behind(self, node: Node, value: str) -> str:
        """The value that a blocked node makes in truth: behind the sum and the activation that it took in."""
        if node.domain == BLOCKED_DOMAIN and node.op == "Conv":
            if len(node.inputs) > 3 and node.inputs[3]:
                value = self._next(value, _SUMS)
            activation = node.attributes.get("activation")
            if isinstance(activation, str) and self.nodes[self.maker[value]].op != activation:
                value = self._next(value, (activation,))
        return value

    def _next(self, value: str, ops: Sequence[str]) -> str:
        """The output of the only reader of a value, if it is such an operator; else the value."""
        readers = self.readers.get(value, [])
        if len(readers) == 1 and self.nodes[readers[0]].op in ops and self.nodes[readers[0]].outputs[0]:
            return self.nodes[readers[0]].outputs[0]
        return value

    def _pieces(self, taken: Mapping[int, Node]) -> Iterator[tuple[str, int]]:
        """Optimized nodes without a name or a value of the original, each with its original node."""
        makers = {value: node for node in self.after.nodes for value in node.outputs if value}
        owner: dict[int, int] = {}
        for at, node in taken.items():
            owner[id(node)] = max(at, owner.get(id(node), at))
        led = dict(owner)  # with moves between pieces, which have no owner
        for node in reversed(self.after.nodes):
            if id(node) in led:
                # an operator without a kernel of its own is split; its pieces feed the node with its output
                for piece in filter(None, map(makers.get, node.inputs)):
                    if id(piece) in led or not (_moves(piece) or not piece.name or is_piece(piece.name)):
                        continue
                    led[id(piece)] = led[id(node)]
                    if not _moves(piece):
                        owner[id(piece)] = led[id(node)]
                        if piece.name:
                            yield piece.name, owner[id(piece)]
            elif (at_ := self.names.get(named_in(node.name))) is not None and not _moves(node):
                yield node.name, at_
        counts: dict[str, int] = {}
        nameless = [node for node in self.after.nodes if not node.name and id(node) in owner]
        for node in sorted(nameless, key=lambda node: owner[id(node)]):
            counts[node.op] = counts.get(node.op, -1) + 1
            yield unnamed(node.op, counts[node.op]), owner[id(node)]


def _moves(node: Node) -> bool:
    return node.op in LAYOUT_CHANGES or (node.op == "Cast" and is_inserted_cast(node.name))
