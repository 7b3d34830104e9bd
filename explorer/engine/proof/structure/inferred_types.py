"""Inferred types of a graph's values, at every size: what axes count from, and what casts come back to.

Nothing is taken from what a file declares of values inside, which may be wrong, and nothing depends on sizes
that are left open: at a length of 1 an operator may drop an axis that is there at others.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from msgspec.structs import replace

from explorer.engine.graph.model import Graph, Model, Node, Value, subgraphs, with_bodies
from explorer.engine.graph.repeated_nodes import gathered, node_sequence
from explorer.engine.shapes import Inference
from explorer.engine.shapes.subgraphs import is_call, places
from explorer.facts import TensorInfo

Path = tuple[str, ...]


class TypeLookup:
    """What is inferred of the values of a model; made when first asked for.

    Args:
        model: The model.
    """

    def __init__(self, model: Model) -> None:
        self._model = replace(model, graph=_undeclared(model.graph, inputs=True))

    def __call__(self, path: Path, name: str) -> TensorInfo | None:
        """The type of a value in the graph at a path; None where nothing is known of it."""
        shapes = self._main if not path else self._places.get(path)
        return None if shapes is None else shapes.get(name)

    def read_by(self, op: str) -> dict[str, list[TensorInfo | None]]:
        """Types of what the nodes of a standard operator read first, by name, of all that share it.

        Those in a body in a function are not known: the function may be called with other sizes.
        """
        types: dict[str, list[TensorInfo | None]] = {}
        for place in places(self._model, self._inference):
            *outer, _ = place.path or ("",)
            outside_functions = not any(is_call(name) for name in outer)
            for node in place.nodes:
                if node.op == op and not node.domain and node.inputs:
                    name = node.inputs[0]
                    types.setdefault(name, []).append(place.shapes.get(name) if outside_functions else None)
        return types

    @cached_property
    def _inference(self) -> Inference:
        return Inference(self._model, {}, {})

    @cached_property
    def _main(self) -> Mapping[str, TensorInfo]:
        return self._inference.main.values

    @cached_property
    def _places(self) -> Mapping[Path, Mapping[str, TensorInfo]]:
        return {place.path: place.shapes for place in places(self._model, self._inference)}


def _undeclared(graph: Graph, *, inputs: bool) -> Graph:
    """The graph, and those inside, with nothing declared but, of the main one, the inputs."""
    nodes = node_sequence(graph.nodes)
    plain = [_without(node) for node in nodes]
    same = all(a is b for a, b in zip(nodes, plain, strict=True))
    return replace(
        graph,
        nodes=graph.nodes if same else gathered(plain),
        inputs=graph.inputs if inputs else tuple(map(_untyped, graph.inputs)),
        outputs=tuple(map(_untyped, graph.outputs)),
        values=(),
    )


def _without(node: Node) -> Node:
    bodies = {name: _undeclared(body, inputs=False) for name, body in subgraphs(node)}
    return with_bodies(node, bodies) if bodies else node


def _untyped(value: Value) -> Value:
    return Value(value.name, None, None)
