"""Scopes of a model: the main graph, bodies of branches and loops, and functions; and their replacement.

Each scope has its own names, so several scopes may define the same name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.formats.onnx.tensors import read_sparse_initializers
from explorer.engine.graph.model import Function, Graph, Model, Node, list_bodies, replace_bodies
from explorer.engine.graph.tile_metadata import DOMAIN
from explorer.engine.shapes.subgraphs import name_body, name_function

Body = Graph | Function


class GraphScope(Struct, frozen=True):
    """One scope of a model.

    Attributes:
        path: Names of the functions and bodies that contain it, outermost first (as `SubgraphView.path`).
        root: Key of the function that contains it, or None for the main graph.
        node_path: Path from the root to the scope: index of each node, and name of its body.
        body: Graph or function.
        opsets: Opset version by domain.
    """

    path: tuple[str, ...]
    root: tuple[str, str, str] | None
    node_path: tuple[tuple[int, str], ...]
    body: Body
    opsets: Mapping[str, int]

    @property
    def name(self) -> str:
        """The prefix before '::' for names in this scope; '' for the main graph."""
        return "/".join(self.path)

    @property
    def text(self) -> str:
        """The text that messages append to a name in this scope."""
        return f" in {self.name}" if self.path else ""


def list_scopes(model: Model) -> Iterator[GraphScope]:
    """Yields all scopes, outer before inner, without the functions that tiling added."""
    yield from _list_nested_scopes(GraphScope((), None, (), model.graph, model.opsets))
    for key, function in model.functions.items():
        if function.domain != DOMAIN:
            path = (name_function(model, function),)
            yield from _list_nested_scopes(
                GraphScope(path, key, (), function, {**model.opsets, **function.opsets})
            )


def _list_nested_scopes(scope: GraphScope) -> Iterator[GraphScope]:
    yield scope
    for index, node in enumerate(scope.body.nodes):
        for name, body in list_bodies(node):
            path = (*scope.path, name_body(node, name))
            yield from _list_nested_scopes(
                replace(scope, path=path, node_path=(*scope.node_path, (index, name)), body=body)
            )


def replace_body(model: Model, scope: GraphScope, body: Body) -> Model:
    """Replaces the body of a scope; all enclosing graphs are rebuilt."""
    if scope.root is None:
        assert isinstance(model.graph, Graph)
        graph = _replace_inner(model.graph, scope.node_path, body)
        assert isinstance(graph, Graph)
        return replace(model, graph=graph)
    function = _replace_inner(model.functions[scope.root], scope.node_path, body)
    assert isinstance(function, Function)
    edited = replace(function, record=None, values=())
    return replace(model, functions={**model.functions, scope.root: edited})


def _replace_inner(outer: Body, node_path: Sequence[tuple[int, str]], body: Body) -> Body:
    if not node_path:
        return body
    (index, name), *remaining = node_path
    node = outer.nodes[index]
    inner = dict(list_bodies(node))[name]
    changed = replace_bodies(node, {name: _replace_inner(inner, remaining, body)})
    return replace(outer, nodes=(*outer.nodes[:index], changed, *outer.nodes[index + 1 :]))


def replace_nodes(body: Body, nodes: Sequence[Node]) -> Body:
    """Returns a body with `nodes` in place of its own."""
    return replace(body, nodes=tuple(nodes))


def list_sources(body: Body) -> set[str]:
    """Returns the names of the values that exist before the first node of a body runs."""
    if isinstance(body, Function):
        return set(body.inputs)
    sparse = read_sparse_initializers(body) if body.extra else ()
    return {value.name for value in body.inputs} | set(body.initializers) | set(sparse)


def list_output_names(body: Body) -> list[str]:
    """Returns the names of a body's outputs."""
    return list(body.outputs) if isinstance(body, Function) else [value.name for value in body.outputs]


def collect_defined_values(body: Body) -> set[str]:
    """Returns the names of all values that a body produces or receives, without values of inner bodies."""
    return list_sources(body) | {name for node in body.nodes for name in node.outputs if name}
