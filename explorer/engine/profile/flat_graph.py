"""Inlines the functions of a model and names its nodes, so that each kernel can be traced to its row.

onnxruntime inlines functions before it optimizes a graph, and renames their nodes. This module inlines them
first and gives each node a name that leads to its row in the layer tree. The bodies of If, Loop and Scan stay
bodies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.graph.model import Function, Graph, Model, Node, list_bodies
from explorer.engine.profile.rows import NodeRows
from explorer.engine.shapes.bodies import substitute_attributes
from explorer.facts import Layer

_PREFIX = "explorer_"
_NAME = re.compile(rf"{_PREFIX}\d+(?:\.\w+\.\d+)*")
"""Pattern of the node names of this module. It also finds them inside names that the runtime derived."""


class FlatGraph(Struct, frozen=True):
    """A model whose nodes have unique names.

    Attributes:
        model: The model without function calls.
        rows: Row id of each node by node name, or None for a node without a row.
    """

    model: Model
    rows: Mapping[str, int | None]


def find_node_name(name: str) -> str:
    """Returns the node name of this module that a name of the runtime contains, or ''."""
    node_name = _NAME.search(name)
    return node_name[0] if node_name else ""


def flatten(model: Model, layers: Sequence[Layer]) -> FlatGraph:
    """Inlines the function calls of a model and names its nodes.

    Args:
        model: The model.
        layers: The rows of its layer tree.
    """
    inliner = _Inliner(model, NodeRows(layers, model.functions))
    nodes = tuple(inliner.list_nodes(model.graph.nodes, {}, "", None, ""))
    flat = replace(model, graph=replace(model.graph, nodes=nodes), opsets=inliner.opsets)
    if not inliner.has_calls:
        flat = replace(flat, functions={})
    return FlatGraph(flat, inliner.rows)


class _Inliner:
    """Builds the nodes of the flat graph.

    Attributes:
        rows: Row id of each node, by its new name.
        has_calls: Whether a call was not inlined, because its function needs another operator set version.
        opsets: Operator set versions of the model and of the inlined functions.
    """

    def __init__(self, model: Model, node_rows: NodeRows) -> None:
        self._model, self._node_rows = model, node_rows
        self._count = self._calls = 0
        self.rows: dict[str, int | None] = {}
        self.has_calls = False
        self.opsets: dict[str, int] = dict(model.opsets)

    def list_nodes(
        self,
        nodes: Sequence[Node],
        new_name_by_old: Mapping[str, str],
        name: str,
        caller_row: int | None,
        branch: str,
    ) -> Iterator[Node]:
        """Yields the nodes of a graph for the flat graph, with new node and value names.

        Args:
            nodes: The nodes in the model.
            new_name_by_old: Value names in the flat graph, by value names in the model.
            name: Prefix of node names: the name of the node and attribute that contain this body; '' for the
                main graph.
            caller_row: Row id of the node that contains this body, or None for the main graph.
            branch: Name of the attribute that contains this body, or ''.
        """
        node_rows = self._node_rows.find_rows(nodes, caller_row, branch)
        for node, row in zip(nodes, node_rows, strict=True):
            function = self._model.functions.get(node.key)
            if function is not None and self._can_inline(function):
                yield from self._inline_nodes(node, function, new_name_by_old, name, row)
                continue
            self.has_calls = self.has_calls or function is not None
            node_name = f"{name}.{self._count}" if name else f"{_PREFIX}{self._count}"
            self._count += 1
            self.rows[node_name] = row
            yield self._rename_values(node, new_name_by_old, node_name, row)

    def _can_inline(self, function: Function) -> bool:
        return all(self.opsets.get(domain, version) == version for domain, version in function.opsets.items())

    def _inline_nodes(
        self, call: Node, function: Function, new_name_by_old: Mapping[str, str], name: str, row: int | None
    ) -> Iterator[Node]:
        """Yields the nodes of a function, with its inputs and outputs renamed to the call's names."""
        self._calls += 1
        self.opsets |= function.opsets
        prefix = f"{_PREFIX}call{self._calls}/"
        new_names = {v: prefix + v for node in function.nodes for v in node.outputs if v}
        new_names |= dict.fromkeys(function.inputs, "")
        new_names |= {
            inner: new_name_by_old.get(outer, outer)
            for inner, outer in zip(function.inputs, call.inputs, strict=False)
        }
        identities: list[Node] = []
        for inner, outer in zip(function.outputs, call.outputs, strict=False):
            if not outer:
                continue
            if inner in function.inputs or new_name_by_old.get(outer, outer) in new_names.values():
                # the function returns an input, or the same value twice
                identities.append(
                    Node(
                        "Identity",
                        [new_names[inner]],
                        [new_name_by_old.get(outer, outer)],
                        f"{prefix}{inner}",
                    )
                )
            else:
                new_names[inner] = new_name_by_old.get(outer, outer)
        body_nodes: Sequence[Node] = function.nodes
        if function.attributes or function.defaults:
            values = {**function.defaults, **call.attributes}
            body_nodes = [substitute_attributes(node, values) for node in body_nodes]
        yield from self.list_nodes(body_nodes, new_names, name, row, "")
        yield from identities

    def _rename_values(
        self, node: Node, new_name_by_old: Mapping[str, str], name: str, row: int | None
    ) -> Node:
        """Returns a node with new value names, also in its bodies."""
        bodies: dict[str, Any] = {}
        bodies_by_attribute = list_bodies(node)
        for attribute, body in bodies_by_attribute:
            if "[" not in attribute:  # lists of graphs, in other domains, stay as they are
                bodies[attribute] = self._rename_body(
                    body, new_name_by_old, f"{name}.{attribute}", row, attribute
                )
        if bodies:
            node = node.replace_attributes({**node.attributes, **bodies})
        return node.replace_values(
            [new_name_by_old.get(v, v) for v in node.inputs],
            [new_name_by_old.get(v, v) for v in node.outputs],
            name,
        )

    def _rename_body(
        self, body: Graph, new_name_by_old: Mapping[str, str], name: str, row: int | None, attribute: str
    ) -> Graph:
        # a name defined in the body hides the same name of the outer graph
        local_names = {v.name for v in body.inputs} | set(body.initializers)
        local_names |= {v for node in body.nodes for v in node.outputs}
        visible = {old: new for old, new in new_name_by_old.items() if old not in local_names}
        return replace(body, nodes=tuple(self.list_nodes(body.nodes, visible, name, row, attribute)))
