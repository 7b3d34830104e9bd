"""Scopes of a model: the main graph, bodies of branches and loops, and functions; and how to replace one.

A name is defined in one scope; several scopes may each define it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.formats.onnx.tensors import sparse_initializers
from explorer.engine.graph.model import Function, Graph, Model, Node, subgraphs, with_bodies
from explorer.engine.graph.tile_metadata import DOMAIN
from explorer.engine.shapes.subgraphs import body_name, call_name

Body = Graph | Function


class GraphScope(Struct, frozen=True):
    """One scope of a model.

    Attributes:
        path: Functions and bodies around it, outermost first (as `SubgraphView.path`).
        root: The function that contains it; None for the main graph.
        way: The way to it from there: the place of each node on the way, and the name of its body.
        body: The graph or function.
        opsets: Its operator sets.
    """

    path: tuple[str, ...]
    root: tuple[str, str, str] | None
    way: tuple[tuple[int, str], ...]
    body: Body
    opsets: Mapping[str, int]

    @property
    def name(self) -> str:
        """Its name before '::'; '' for the main graph."""
        return "/".join(self.path)

    @property
    def text(self) -> str:
        """How messages refer to it, after the name of something in it."""
        return f" in {self.name}" if self.path else ""


def scopes(model: Model) -> Iterator[GraphScope]:
    """All scopes, outer ones first, without the functions that tiling added."""
    yield from _below(GraphScope((), None, (), model.graph, model.opsets))
    for key, function in model.functions.items():
        if function.domain != DOMAIN:
            path = (call_name(model, function),)
            yield from _below(GraphScope(path, key, (), function, {**model.opsets, **function.opsets}))


def _below(place: GraphScope) -> Iterator[GraphScope]:
    yield place
    for at, node in enumerate(place.body.nodes):
        for name, body in subgraphs(node):
            path = (*place.path, body_name(node, name))
            yield from _below(replace(place, path=path, way=(*place.way, (at, name)), body=body))


def put(model: Model, place: GraphScope, body: Body) -> Model:
    """The model with the body of a scope replaced; everything around it is rebuilt."""
    if place.root is None:
        assert isinstance(model.graph, Graph)
        graph = _put(model.graph, place.way, body)
        assert isinstance(graph, Graph)
        return replace(model, graph=graph)
    function = _put(model.functions[place.root], place.way, body)
    assert isinstance(function, Function)
    edited = replace(function, record=None)
    return replace(model, functions={**model.functions, place.root: edited})


def _put(around: Body, way: Sequence[tuple[int, str]], body: Body) -> Body:
    if not way:
        return body
    (at, name), *rest = way
    node = around.nodes[at]
    inner = dict(subgraphs(node))[name]
    changed = with_bodies(node, {name: _put(inner, rest, body)})
    return replace(around, nodes=(*around.nodes[:at], changed, *around.nodes[at + 1 :]))


def with_nodes(body: Body, nodes: Sequence[Node]) -> Body:
    """A body with other nodes."""
    return replace(body, nodes=tuple(nodes))


def sources(body: Body) -> set[str]:
    """The values that exist before the first node of a body runs."""
    if isinstance(body, Function):
        return set(body.inputs)
    sparse = sparse_initializers(body) if body.extra else ()
    return {value.name for value in body.inputs} | set(body.initializers) | set(sparse)


def results(body: Body) -> list[str]:
    """Names of a body's outputs."""
    return list(body.outputs) if isinstance(body, Function) else [value.name for value in body.outputs]


def defined(body: Body) -> set[str]:
    """All values that a body makes or receives, without those of bodies inside it."""
    return sources(body) | {name for node in body.nodes for name in node.outputs if name}
