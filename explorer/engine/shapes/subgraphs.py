"""Subgraphs of a model: the main graph, the bodies of its branches and loops, its functions.

A product may stand in any of them. What it sees there (stored tensors and values of the graphs around it) is
put together here once, for who looks for products and, apart from it, for who proves them.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.graph.model import Function, Graph, Model, Node, subgraphs
from explorer.engine.graph.tile_metadata import DOMAIN
from explorer.engine.shapes.shape_table import same_sizes
from explorer.facts import Dim, TensorInfo

if TYPE_CHECKING:
    from explorer.engine.shapes.inference import Inference, Shapes

Types = list[TensorInfo | None]


class SubgraphView(Struct, frozen=True):
    """One graph inside a model.

    Attributes:
        path: Nodes and functions that hold it, outermost first; empty for the main graph.
        nodes: Its own nodes.
        view: A model whose main graph is this one, with what it sees of the graphs around it before it.
        shapes: Of every value that it sees; a size that differs from call to call is not known.
        example: The same for one of the calls.
        calls: How often it runs in one pass; None where the data decides.
    """

    path: tuple[str, ...]
    nodes: Sequence[Node]
    view: Model
    shapes: Mapping[str, TensorInfo]
    example: Mapping[str, TensorInfo]
    calls: int | None = 1


def view(model: Model, path: Sequence[str]) -> Model | None:
    """The model seen from a place (see `SubgraphView.view`); None if there is no such place."""
    graph = model.graph
    for name in path:
        function = next((f for f in model.functions.values() if call_name(model, f) == name), None)
        if function is not None:
            graph = Graph(name, function.nodes, (), (), {})
            continue
        bodies = ((node, at, body) for node in graph.nodes for at, body in subgraphs(node))
        node_and_body = next(((n, body) for n, at, body in bodies if body_name(n, at) == name), None)
        if node_and_body is None:
            return None
        graph = _inside(graph, node_and_body[0], node_and_body[1])
    return model if not path else replace(model, graph=graph)


def body_name(node: Node, attribute: str) -> str:
    """The name of a body in paths."""
    return f"{node.label}.{attribute}"


def call_name(model: Model, function: Function) -> str:
    """The name of a function in paths, with its domain where several functions share the name."""
    if function.domain == DOMAIN:
        return ""
    alike = sum(f.name == function.name and f.domain != DOMAIN for f in model.functions.values())
    if alike == 1:
        return f"{function.name}()"
    return ":".join(filter(None, (function.domain, function.name, function.overload))) + "()"


def is_call(name: str) -> bool:
    """Whether a piece of a path is a function, not a body."""
    return not name or name.endswith("()")


def _inside(around: Graph, holder: Node, body: Graph) -> Graph:
    """A body with the nodes that ran before it and the stored tensors around it."""
    before = around.nodes[: next(i for i, node in enumerate(around.nodes) if node is holder)]
    return replace(
        body,
        nodes=(*before, *body.nodes),
        initializers={**around.initializers, **body.initializers},
        values=(),
        extra=(),
    )


def places(
    model: Model, inference: Inference, skip: Callable[[Node], bool] = lambda node: False
) -> Iterator[SubgraphView]:
    """Every graph of a model that runs, the main one first; a function once.

    Args:
        model: The model.
        inference: Of its shapes.
        skip: Nodes that are not looked into.
    """
    main = SubgraphView((), model.graph.nodes, model, inference.main.values, inference.main.values)
    functions: dict[tuple[str, str, str], list[SubgraphView]] = {}
    yield main
    yield from _below(main, inference, inference.main, model.opsets, skip, functions, ())
    for calls in functions.values():
        times = [place.calls for place in calls]
        total_calls = None if None in times else sum(t for t in times if t is not None)
        yield replace(calls[0], shapes=_MergedValues([place.shapes for place in calls]), calls=total_calls)


def _below(
    place: SubgraphView,
    inference: Inference,
    shapes: Shapes,
    opsets: Mapping[str, int],
    skip: Callable[[Node], bool],
    functions: dict[tuple[str, str, str], list[SubgraphView]],
    open_: tuple[tuple[str, str, str], ...],
) -> Iterator[SubgraphView]:
    """The places inside one place; calls of functions are collected in `functions`."""
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
            named = (call_name(model, function),)
            inside = SubgraphView(named, function.nodes, inner_model, inner.values, inner.values, place.calls)
            functions.setdefault(node.key, []).append(inside)
            within = {**opsets, **function.opsets}
            below = _below(inside, inference, inner, within, skip, functions, (*open_, node.key))
            for inner_place in below:
                # a body in a function belongs to the function, whoever calls it
                if len(functions[node.key]) == 1:
                    yield inner_place
            continue
        for attribute, body in subgraphs(node):
            types_, trips = _types(node, body, place.shapes, inference, shapes, opsets)
            inner = inference.of_body(body, types_, place.shapes, shapes.constants, opsets)
            times = None if trips is None or place.calls is None else trips * place.calls
            path = (*place.path, body_name(node, attribute))
            inner_model = replace(model, graph=_inside(model.graph, node, body))
            # nothing writes to either
            inner_values = ChainMap[str, TensorInfo](inner.values, place.shapes)  # type: ignore[arg-type]
            inside = SubgraphView(path, body.nodes, inner_model, inner_values, inner_values, times)
            yield inside
            yield from _below(inside, inference, inner, opsets, skip, functions, open_)


def _types(
    node: Node,
    body: Graph,
    outer: Mapping[str, TensorInfo],
    inference: Inference,
    shapes: Shapes,
    opsets: Mapping[str, int],
) -> tuple[Types, int | None]:
    """Types of a body's inputs, and how often it runs for one run of its node; None if the data decides."""
    if node.op == "Scan":
        types, trips = scan_types(node, outer.get)
        return types, trips if isinstance(trips, int) else None
    if node.op == "Loop":
        types = inference.loop_types(node, outer, shapes.constants, opsets)
        limit = shapes.constants.get(node.inputs[0]) if node.inputs and node.inputs[0] else None
        going = any(
            body.outputs and body.outputs[0].name in n.outputs and n.op == "Identity" for n in body.nodes
        )
        return types, int(limit.reshape(-1)[0]) if limit is not None and going else None
    return [], None


def scan_types(node: Node, info_of: Callable[[str], TensorInfo | None]) -> tuple[Types, Dim]:
    """Types of the inputs of a Scan's body, and how often it runs."""
    count = int(node.attributes.get("num_scan_inputs", 0))
    states = len(node.inputs) - count
    axes = node.attributes.get("scan_input_axes") or (0,) * count
    types: Types = [info_of(name) for name in node.inputs[:states]]
    trips: Dim = None
    for name, axis in zip(node.inputs[states:], axes, strict=False):
        info = info_of(name)
        if info is None or info.shape is None or not -len(info.shape) <= axis < len(info.shape):
            types.append(None if info is None else replace(info, shape=None))
            continue
        at = axis % len(info.shape)
        trips = info.shape[at] if not isinstance(trips, int) else trips
        types.append(replace(info, shape=info.shape[:at] + info.shape[at + 1 :]))
    return types, trips


class _MergedValues(Mapping[str, TensorInfo]):
    """Values of a function over all its calls: a size that differs is unknown."""

    def __init__(self, calls: Sequence[Mapping[str, TensorInfo]]) -> None:
        self._calls = calls

    def __getitem__(self, name: str) -> TensorInfo:
        first, *others = (call[name] for call in self._calls)
        for info in others:
            first = replace(first, shape=same_sizes(first.shape, info.shape))
        return first

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls[0])

    def __len__(self) -> int:
        return len(self._calls[0])
