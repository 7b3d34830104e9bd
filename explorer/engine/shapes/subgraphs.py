"""Subgraphs of a model: the main graph, the bodies of branches and loops, and functions.

A matrix product may be in any of them. A `SubgraphView` combines a subgraph with the tensors and values of
the enclosing graphs that it reads. Both the search for products and their proof use these views.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.graph.model import Function, Graph, Model, Node, subgraphs
from explorer.engine.graph.tile_metadata import DOMAIN
from explorer.engine.shapes.shape_table import find_common_sizes
from explorer.facts import Dim, TensorInfo

if TYPE_CHECKING:
    from explorer.engine.shapes.inference import Inference, Shapes

Types = list[TensorInfo | None]


class SubgraphView(Struct, frozen=True):
    """One graph inside a model.

    Attributes:
        path: Names of the nodes and functions that contain the graph, outermost first; empty for the main
            graph.
        nodes: Nodes of the graph itself.
        view: Model whose main graph is this graph, preceded by the nodes of the enclosing graphs that it can
            read.
        shapes: Facts of every visible value. A size that differs between calls is unknown.
        example: Facts of every visible value in one of the calls.
        calls: Number of times that the graph runs in one pass, or None if it depends on data.
    """

    path: tuple[str, ...]
    nodes: Sequence[Node]
    view: Model
    shapes: Mapping[str, TensorInfo]
    example: Mapping[str, TensorInfo]
    calls: int | None = 1


def view(model: Model, path: Sequence[str]) -> Model | None:
    """Returns the model seen from a subgraph (see `SubgraphView.view`).

    The result is None if `path` names no subgraph.
    """
    graph = model.graph
    for name in path:
        function = next((f for f in model.functions.values() if call_name(model, f) == name), None)
        if function is not None:
            graph = Graph(name, function.nodes, (), (), {})
            continue
        bodies = ((node, attribute, body) for node in graph.nodes for attribute, body in subgraphs(node))
        node_and_body = next(
            ((n, body) for n, attribute, body in bodies if body_name(n, attribute) == name), None
        )
        if node_and_body is None:
            return None
        graph = _build_inner_graph(graph, node_and_body[0], node_and_body[1])
    return model if not path else replace(model, graph=graph)


def body_name(node: Node, attribute: str) -> str:
    """Returns the name of a body in paths."""
    return f"{node.label}.{attribute}"


def call_name(model: Model, function: Function) -> str:
    """Returns the name of a function in paths, with its domain if several functions share the name."""
    if function.domain == DOMAIN:
        return ""
    count = sum(f.name == function.name and f.domain != DOMAIN for f in model.functions.values())
    if count == 1:
        return f"{function.name}()"
    return ":".join(filter(None, (function.domain, function.name, function.overload))) + "()"


def is_call(name: str) -> bool:
    """Whether a component of a path is a function, not a body."""
    return not name or name.endswith("()")


def _build_inner_graph(outer: Graph, holder: Node, body: Graph) -> Graph:
    """Returns a body with the nodes that run before it and the stored tensors of the enclosing graph."""
    before = outer.nodes[: next(i for i, node in enumerate(outer.nodes) if node is holder)]
    return replace(
        body,
        nodes=(*before, *body.nodes),
        initializers={**outer.initializers, **body.initializers},
        values=(),
        extra=(),
    )


def places(
    model: Model, inference: Inference, skip: Callable[[Node], bool] = lambda node: False
) -> Iterator[SubgraphView]:
    """Yields every graph of a model that runs, the main graph first, and each function once.

    Args:
        model: The model.
        inference: Shape inference of the model.
        skip: Function that returns whether the bodies of a node are skipped.
    """
    main = SubgraphView((), model.graph.nodes, model, inference.main.values, inference.main.values)
    functions: dict[tuple[str, str, str], list[SubgraphView]] = {}
    yield main
    yield from _list_inner_subgraphs(main, inference, inference.main, model.opsets, skip, functions, ())
    for calls in functions.values():
        call_counts = [place.calls for place in calls]
        total_calls = None if None in call_counts else sum(t for t in call_counts if t is not None)
        yield replace(calls[0], shapes=_MergedValues([place.shapes for place in calls]), calls=total_calls)


def _list_inner_subgraphs(
    place: SubgraphView,
    inference: Inference,
    shapes: Shapes,
    opsets: Mapping[str, int],
    skip: Callable[[Node], bool],
    functions: dict[tuple[str, str, str], list[SubgraphView]],
    open_: tuple[tuple[str, str, str], ...],
) -> Iterator[SubgraphView]:
    """Yields the subgraphs inside one subgraph, and collects calls of functions in `functions`."""
    model = place.view
    for node in place.nodes:
        if skip(node):
            continue
        function = model.functions.get(node.key)
        if function is not None:
            if node.key in open_ or len(open_) > 32:
                continue
            types = [place.shapes.get(name) if name else None for name in node.inputs]
            _, inner = inference.of_function(function, node, types, shapes.constants)
            graph = Graph(function.name, function.nodes, (), (), {})
            inner_model = replace(model, graph=graph, opsets={**model.opsets, **function.opsets})
            call_path = (call_name(model, function),)
            call_view = SubgraphView(
                call_path, function.nodes, inner_model, inner.values, inner.values, place.calls
            )
            functions.setdefault(node.key, []).append(call_view)
            inner_opsets = {**opsets, **function.opsets}
            inner_places = _list_inner_subgraphs(
                call_view, inference, inner, inner_opsets, skip, functions, (*open_, node.key)
            )
            for inner_place in inner_places:
                # the bodies in a function are yielded once, not for each call
                if len(functions[node.key]) == 1:
                    yield inner_place
            continue
        for attribute, body in subgraphs(node):
            types_, trips = _body_types(node, body, place.shapes, inference, shapes, opsets)
            inner = inference.of_body(body, types_, place.shapes, shapes.constants, opsets)
            calls = None if trips is None or place.calls is None else trips * place.calls
            path = (*place.path, body_name(node, attribute))
            inner_model = replace(model, graph=_build_inner_graph(model.graph, node, body))
            # neither mapping is changed
            inner_values = ChainMap[str, TensorInfo](inner.values, place.shapes)  # type: ignore[arg-type]
            call_view = SubgraphView(path, body.nodes, inner_model, inner_values, inner_values, calls)
            yield call_view
            yield from _list_inner_subgraphs(call_view, inference, inner, opsets, skip, functions, open_)


def _body_types(
    node: Node,
    body: Graph,
    outer: Mapping[str, TensorInfo],
    inference: Inference,
    shapes: Shapes,
    opsets: Mapping[str, int],
) -> tuple[Types, int | None]:
    """Returns the types of a body's inputs, and how often the body runs in one run of its node.

    The number of runs is None if it depends on data.
    """
    if node.op == "Scan":
        types, trips = scan_types(node, outer.get)
        return types, trips if isinstance(trips, int) else None
    if node.op == "Loop":
        types = inference.loop_types(node, outer, shapes.constants, opsets)
        limit = shapes.constants.get(node.inputs[0]) if node.inputs and node.inputs[0] else None
        never_stops = any(
            body.outputs and body.outputs[0].name in n.outputs and n.op == "Identity" for n in body.nodes
        )
        return types, int(limit.reshape(-1)[0]) if limit is not None and never_stops else None
    return [], None


def scan_types(node: Node, info_of: Callable[[str], TensorInfo | None]) -> tuple[Types, Dim]:
    """Returns the types of the inputs of a Scan's body, and how often the body runs."""
    count = int(node.attributes.get("num_scan_inputs", 0))
    state_count = len(node.inputs) - count
    axes = node.attributes.get("scan_input_axes") or (0,) * count
    types: Types = [info_of(name) for name in node.inputs[:state_count]]
    trips: Dim = None
    for name, axis in zip(node.inputs[state_count:], axes, strict=False):
        info = info_of(name)
        if info is None or info.shape is None or not -len(info.shape) <= axis < len(info.shape):
            types.append(None if info is None else replace(info, shape=None))
            continue
        position = axis % len(info.shape)
        trips = info.shape[position] if not isinstance(trips, int) else trips
        types.append(replace(info, shape=info.shape[:position] + info.shape[position + 1 :]))
    return types, trips


class _MergedValues(Mapping[str, TensorInfo]):
    """Values of a function, merged over all its calls. A size that differs is unknown."""

    def __init__(self, calls: Sequence[Mapping[str, TensorInfo]]) -> None:
        self._calls = calls

    def __getitem__(self, name: str) -> TensorInfo:
        merged, *others = (call[name] for call in self._calls)
        for info in others:
            merged = replace(merged, shape=find_common_sizes(merged.shape, info.shape))
        return merged

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls[0])

    def __len__(self) -> int:
        return len(self._calls[0])
