"""Fused kernels: which nodes of the original graph the nodes of an optimised one do the work of.

onnxruntime writes the graph that it made. What it left alone has its name and its values; what it fused ends
in a value that was there before, and everything between that and the values that the new graph has is in it.
The blocked layouts of its last level (NCHWc) make values of their own: such a node is called after the value
that it stands for, and takes in the sum and the activation behind it without being called otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from explorer.engine.graph.interpreter import reads
from explorer.engine.graph.model import Graph, Node, subgraphs
from explorer.engine.profile.flat import named_in

_BLOCKED = re.compile(r"(.*)_nchwc(?:_token_\d+)?", re.DOTALL)
_BLOCKED_DOMAIN = "com.microsoft.nchwc"
_MOVES = frozenset(("ReorderInput", "ReorderOutput"))
_INLINED = "_inlfunc_"
_SUMS = ("Add", "Sum")


def works(original: Graph, optimised: Graph, defaults: frozenset[str] = frozenset()) -> dict[str, list[Node]]:
    """The original nodes that each kernel does, by the name of the optimised node, bodies included.

    Args:
        original: The graph that was given to the runtime; every node has a name.
        optimised: What the runtime made of it.
        defaults: Stored tensors of the original that a caller may replace: they are no constants.

    Returns:
        In their original order. A kernel that is nobody's (a copy, a change of layout) is not in it.
    """
    found: dict[str, list[Node]] = {}
    pairs = [(original, optimised, defaults)]
    while pairs:
        before, after, open_ = pairs.pop()
        scope = _Scope(before, after, open_)
        mine = scope.works()
        found |= mine
        for node in after.nodes:
            bodies = dict(subgraphs(node))
            origin = next((one for one in mine.get(node.name, ()) if one.op == node.op), None)
            if bodies and origin is not None:
                theirs = dict(subgraphs(origin))
                pairs += [(theirs[name], body, open_) for name, body in bodies.items() if name in theirs]
    return found


class _Scope:
    """One graph before and after; what a body reads its node does.

    Attributes:
        maker: Place of the original node that makes a value.
        constant: Whether nothing that an original node reads comes from outside the file.
    """

    def __init__(self, before: Graph, after: Graph, defaults: frozenset[str]) -> None:
        self.nodes, self.after = before.nodes, after
        self.names = {node.name: at for at, node in enumerate(self.nodes)}
        self.maker = {value: at for at, node in enumerate(self.nodes) for value in node.outputs if value}
        self.reads = [tuple(dict.fromkeys(reads(node))) for node in self.nodes]
        self.readers: dict[str, list[int]] = {}
        for at, names in enumerate(self.reads):
            for name in names:
                self.readers.setdefault(name, []).append(at)
        stored = set(before.initializers) - defaults
        self.constant: list[bool] = []
        for names in self.reads:
            known = (self.constant[self.maker[n]] if n in self.maker else n in stored for n in names)
            self.constant.append(all(known))

    def works(self) -> dict[str, list[Node]]:
        """The original nodes of each optimised one."""
        ends = {id(node): self._ends(node) for node in self.after.nodes}
        there = {value for values in ends.values() for value in values}
        there |= {value for node in self.after.nodes for value in node.inputs}
        taken: dict[int, Node] = {}
        for node in self.after.nodes:
            for at in self._between(ends[id(node)], there):
                taken.setdefault(at, node)
        of_node: dict[str, set[int]] = {}
        for at, node in taken.items():
            of_node.setdefault(node.name, set()).add(at)
        for node, at in self._unnamed(of_node):
            of_node.setdefault(node.name, set()).add(at)
        return {name: [self.nodes[at] for at in sorted(places)] for name, places in of_node.items()}

    def _ends(self, node: Node) -> list[str]:
        """The original values that an optimised node makes, whatever they are called there."""
        if node.op in _MOVES:
            return []
        same = [value for value in node.outputs if value in self.maker]
        if same:
            return same
        if node.name in self.names:
            return [value for value in self.nodes[self.names[node.name]].outputs if value]
        blocked = _BLOCKED.fullmatch(node.name)
        if blocked and blocked[1] in self.maker:
            return [self._behind(node, blocked[1])]
        return []

    def _behind(self, node: Node, value: str) -> str:
        """The value that a blocked node makes in truth: behind the sum and the activation that it took in."""
        if node.domain == _BLOCKED_DOMAIN and node.op == "Conv":
            if len(node.inputs) > 3 and node.inputs[3]:
                value = self._next(value, _SUMS)
            activation = node.attributes.get("activation")
            if isinstance(activation, str) and self.nodes[self.maker[value]].op != activation:
                value = self._next(value, (activation,))
        return value

    def _next(self, value: str, ops: Sequence[str]) -> str:
        """What the one reader of a value makes, if it is such an operator; else the value."""
        readers = self.readers.get(value, [])
        if len(readers) == 1 and self.nodes[readers[0]].op in ops and self.nodes[readers[0]].outputs[0]:
            return self.nodes[readers[0]].outputs[0]
        return value

    def _between(self, ends: Sequence[str], there: set[str]) -> set[int]:
        """The nodes between values that an optimised node makes and those that there are without it."""
        mine = {self.maker[value] for value in ends}
        todo = [*mine]
        while todo:
            for name in self.reads[todo.pop()]:
                at = self.maker.get(name)
                # what is there is made by another, and a constant was computed
                if at is not None and name not in there and at not in mine and not self.constant[at]:
                    mine.add(at)
                    todo.append(at)
        return mine

    def _unnamed(self, of_node: Mapping[str, set[int]]) -> Iterator[tuple[Node, int]]:
        """Optimised nodes that make no value of the original: pieces of an operator, or made of a node."""
        makers = {value: node for node in self.after.nodes for value in node.outputs if value}
        owner = {name: max(places) for name, places in of_node.items()}
        for node in reversed(self.after.nodes):
            # an operator without a kernel of its own is opened: its pieces lead to what it makes
            if node.name in owner:
                for value in node.inputs:
                    piece = makers.get(value)
                    if piece is not None and piece.name not in owner and piece.name.startswith(_INLINED):
                        owner[piece.name] = owner[node.name]
                        yield piece, owner[piece.name]
            elif (at := self.names.get(named_in(node.name))) is not None and node.op not in _MOVES:
                yield node, at
