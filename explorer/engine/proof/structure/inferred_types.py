"""Infers types and ranks of a graph's values that are valid at every size of the open dimensions.

Declared types of inner values may be wrong and are ignored. Open dimensions stay symbolic, because an
operator may remove an axis of length 1 that it keeps at other lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from msgspec.structs import replace

from explorer.engine.graph.model import Graph, Model, Node, Value, list_bodies, replace_bodies
from explorer.engine.graph.repeated_nodes import combine_nodes, list_stored_nodes
from explorer.engine.shapes import Inference
from explorer.engine.shapes.subgraphs import is_call, list_subgraphs
from explorer.facts import TensorInfo

Path = tuple[str, ...]
"""Names of the nodes that lead to a graph, from the outermost in; () is the main graph."""


class TypeLookup:
    """Inferred types of a model's values, computed on first use.

    Args:
        model: Model to infer.
    """

    def __init__(self, model: Model) -> None:
        self._model = replace(model, graph=_strip_types(model.graph, keep_inputs=True))

    def __call__(self, path: Path, name: str) -> TensorInfo | None:
        """Returns the type of a value in the graph at `path`, or None if unknown."""
        types = self._main_types if not path else self._types_by_path.get(path)
        return None if types is None else types.get(name)

    def list_first_input_types(self, op: str) -> dict[str, list[TensorInfo | None]]:
        """Returns the types of the first inputs of all nodes of a standard operator, by input name.

        Types in functions are unknown, because calls may have different sizes.
        """
        types: dict[str, list[TensorInfo | None]] = {}
        for subgraph in list_subgraphs(self._model, self._inference):
            is_in_function = any(is_call(name) for name in subgraph.path[:-1])
            for node in subgraph.nodes:
                if node.op == op and not node.domain and node.inputs:
                    name = node.inputs[0]
                    value_type = None if is_in_function else subgraph.shapes.get(name)
                    types.setdefault(name, []).append(value_type)
        return types

    @cached_property
    def _inference(self) -> Inference:
        return Inference(self._model, {}, {})

    @cached_property
    def _main_types(self) -> Mapping[str, TensorInfo]:
        return self._inference.main.values

    @cached_property
    def _types_by_path(self) -> Mapping[Path, Mapping[str, TensorInfo]]:
        subgraphs = list_subgraphs(self._model, self._inference)
        return {subgraph.path: subgraph.shapes for subgraph in subgraphs}


def _strip_types(graph: Graph, *, keep_inputs: bool) -> Graph:
    """Removes the declared types from a graph and its bodies, except those of its inputs if `keep_inputs`."""
    nodes = list_stored_nodes(graph.nodes)
    stripped_nodes = [_strip_bodies(node) for node in nodes]
    is_unchanged = all(a is b for a, b in zip(nodes, stripped_nodes, strict=True))
    return replace(
        graph,
        nodes=graph.nodes if is_unchanged else combine_nodes(stripped_nodes),
        inputs=graph.inputs if keep_inputs else tuple(map(_drop_type, graph.inputs)),
        outputs=tuple(map(_drop_type, graph.outputs)),
        values=(),
    )


def _strip_bodies(node: Node) -> Node:
    bodies = {name: _strip_types(body, keep_inputs=False) for name, body in list_bodies(node)}
    return replace_bodies(node, bodies) if bodies else node


def _drop_type(value: Value) -> Value:
    return Value(value.name, None, None)
