"""Flat graph: a model with its functions opened and every node named, so that each kernel has its row.

onnxruntime opens functions itself before it optimizes, and gives the nodes in them new names. Here they are
opened before, and each node keeps its row. Bodies of If, Loop and Scan stay bodies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.graph.model import Function, Graph, Model, Node, subgraphs
from explorer.engine.profile.rows import NodeRows
from explorer.engine.shapes.bodies import substituted
from explorer.facts import Layer

_MARK = "explorer_"
_NAME = re.compile(rf"{_MARK}\d+(?:\.\w+\.\d+)*")
"""The name of our node, also inside a name that the runtime derived from it."""


class FlatGraph(Struct, frozen=True):
    """A model whose nodes all have names of their own.

    Attributes:
        model: The model, without calls of functions.
        rows: The row of each node by its name; None for a node without a row.
    """

    model: Model
    rows: Mapping[str, int | None]


def named_in(name: str) -> str:
    """The name of our node in a name of the runtime; '' for none."""
    match_ = _NAME.search(name)
    return match_[0] if match_ else ""


def flattened(model: Model, layers: Sequence[Layer]) -> FlatGraph:
    """Opens the calls of a model and names its nodes.

    Args:
        model: The model.
        layers: Its rows.
    """
    opener = _Opener(model, NodeRows(layers, model.functions))
    nodes = tuple(opener.nodes(model.graph.nodes, {}, "", None, ""))
    flat = replace(model, graph=replace(model.graph, nodes=nodes), opsets=opener.opsets)
    if not opener.kept:
        flat = replace(flat, functions={})
    return FlatGraph(flat, opener.rows)


class _Opener:
    """Walks a model and makes the nodes of the flat graph.

    Attributes:
        rows: Rows of nodes, by their new names.
        kept: Whether a call stayed, because its function is written for another version of an operator set.
        opsets: Operator sets of the model and of the opened functions.
    """

    def __init__(self, model: Model, find: NodeRows) -> None:
        self._model, self._find = model, find
        self._count = self._calls = 0
        self.rows: dict[str, int | None] = {}
        self.kept = False
        self.opsets: dict[str, int] = dict(model.opsets)

    def nodes(
        self, nodes: Sequence[Node], renamed: Mapping[str, str], name: str, around: int | None, branch: str
    ) -> Iterator[Node]:
        """The nodes of a graph, with the names of values that the flat graph uses.

        Args:
            nodes: The nodes in the model.
            renamed: Names in the flat graph, by names in the model.
            name: Name of the node and branch whose body this is, the prefix of node names; '' outside.
            around: Row of the node that carries them.
            branch: The attribute that holds this body.
        """
        node_rows = self._find.of(nodes, around, branch)
        for node, row in zip(nodes, node_rows, strict=True):
            function = self._model.functions.get(node.key)
            if function is not None and self._opens(function):
                yield from self._called(node, function, renamed, name, row)
                continue
            self.kept = self.kept or function is not None
            mine = f"{name}.{self._count}" if name else f"{_MARK}{self._count}"
            self._count += 1
            self.rows[mine] = row
            yield self._renamed(node, renamed, mine, row)

    def _opens(self, function: Function) -> bool:
        return all(self.opsets.get(domain, version) == version for domain, version in function.opsets.items())

    def _called(
        self, call: Node, function: Function, renamed: Mapping[str, str], name: str, row: int | None
    ) -> Iterator[Node]:
        """The nodes of a function, with the inputs and outputs of a call in place of its own."""
        self._calls += 1
        self.opsets |= function.opsets
        prefix = f"{_MARK}call{self._calls}/"
        inside = {v: prefix + v for node in function.nodes for v in node.outputs if v}
        inside |= dict.fromkeys(function.inputs, "")
        inside |= {
            inner: renamed.get(outer, outer)
            for inner, outer in zip(function.inputs, call.inputs, strict=False)
        }
        passed: list[Node] = []
        for inner, outer in zip(function.outputs, call.outputs, strict=False):
            if not outer:
                continue
            if inner in function.inputs or renamed.get(outer, outer) in inside.values():
                # an input is an output, or a value is an output twice
                passed.append(
                    Node("Identity", [inside[inner]], [renamed.get(outer, outer)], f"{prefix}{inner}")
                )
            else:
                inside[inner] = renamed.get(outer, outer)
        body_nodes: Sequence[Node] = function.nodes
        if function.attributes or function.defaults:
            values = {**function.defaults, **call.attributes}
            body_nodes = [substituted(node, values) for node in body_nodes]
        yield from self.nodes(body_nodes, inside, name, row, "")
        yield from passed

    def _renamed(self, node: Node, renamed: Mapping[str, str], name: str, row: int | None) -> Node:
        """A node with other names of values, in its bodies too."""
        bodies: dict[str, Any] = {}
        several = subgraphs(node)
        for attribute, body in several:
            if "[" not in attribute:  # operators of other domains may have lists of graphs: unchanged
                bodies[attribute] = self._body(body, renamed, f"{name}.{attribute}", row, attribute)
        if bodies:
            node = node.with_attributes({**node.attributes, **bodies})
        return node.with_values(
            [renamed.get(v, v) for v in node.inputs], [renamed.get(v, v) for v in node.outputs], name
        )

    def _body(
        self, body: Graph, renamed: Mapping[str, str], name: str, row: int | None, attribute: str
    ) -> Graph:
        # a name in the body hides the same name of the graph around it
        local_names = {v.name for v in body.inputs} | set(body.initializers)
        local_names |= {v for node in body.nodes for v in node.outputs}
        visible = {mine: theirs for mine, theirs in renamed.items() if mine not in local_names}
        return replace(body, nodes=tuple(self.nodes(body.nodes, visible, name, row, attribute)))
