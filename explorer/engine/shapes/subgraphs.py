"""Lists the subgraphs of a model: the main graph, the bodies of branches and loops, and functions.

A matrix product may be in any of them. A `SubgraphView` combines a subgraph with the tensors and values of
the enclosing graphs that it reads. Both the search for products and their proof use these views.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.graph.model import Function, Graph, Model, Node, list_bodies
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
        view: Model whose main graph is this graph, preceded by the nodes of the enclosing graphs whose
            outputs it can read.
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


def find_view(model: Model, path: Sequence[str]) -> Model | None:
    """Returns the `SubgraphView.view` of the subgraph at a path, or None if there is no such subgraph."""
    graph = model.graph
    for name in path:
        function = next((f for f in model.functions.values() if name_function(model, f) == name), None)
        if function is not None:
            graph = Graph(name, function.nodes, (), (), {})
            continue
        bodies = ((node, attribute, body) for node in graph.nodes for attribute, body in list_bodies(node))
        node_and_body = next(
            ((n, body) for n, attribute, body in bodies if name_body(n, attribute) == name), None
        )
        if node_and_body is None:
            return None
        graph = _build_inner_graph(graph, node_and_body[0], node_and_body[1])
    return model if not path else replace(model, graph=graph)


def name_body(node: Node, attribute: str) -> str:
    """Returns the name of a body in the `path` of a `SubgraphView`."""
    return f"{node.label}.{attribute}"


def remove_owner_path(name: str, owner_path: str) -> str:
    """Returns a name without the first parts that it shares with the path of the node that owns its body.

    In the body of an If, Loop or Scan, exporters and tilings use names that start at the root of the model.
    """
    if not owner_path:
        return name
    pieces, owner_pieces = name.split("/"), owner_path.split("/")
    shared_count = 0
    for piece, owner_piece in zip(pieces[:-1], owner_pieces, strict=False):
        if piece != owner_piece:
            break
        shared_count += 1
    return "/".join(pieces[shared_count:])


def join_path(path: Sequence[str], name: str) -> str:
    """Returns the path of a node: the names of the bodies and functions that contain it, and its own name.

    The part of a name that repeats the name before it is left out: `/lstm/steps.body/hidden`, not
    `/lstm/steps.body//lstm/hidden`.
    """
    return "/".join(map(remove_owner_path, (*path, name), ("", *path)))


def name_function(model: Model, function: Function) -> str:
    """Returns the name of a function in the `path` of a `SubgraphView`.

    The name contains the domain if several functions share it, and is '' for a tile operator.
    """
    if function.domain == DOMAIN:
        return ""
    count = sum(f.name == function.name and f.domain != DOMAIN for f in model.functions.values())
    if count == 1:
        return f"{function.name}()"
    return ":".join(filter(None, (function.domain, function.name, function.overload))) + "()"


def is_call(name: str) -> bool:
    """Whether a component of a path names a function, not a body; '' is the function of a tile operator."""
    return not name or name.endswith("()")


def _build_inner_graph(outer: Graph, control_node: Node, body: Graph) -> Graph:
    """Returns a body with the nodes that run before it and the stored tensors of the enclosing graph."""
    before = outer.nodes[: next(i for i, node in enumerate(outer.nodes) if node is control_node)]
    return replace(
        body,
        nodes=(*before, *body.nodes),
        initializers={**outer.initializers, **body.initializers},
        values=(),
        extra=(),
    )


def list_subgraphs(
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
        call_counts = [call.calls for call in calls]
        total_calls = (
            None if None in call_counts else sum(count for count in call_counts if count is not None)
        )
        yield replace(calls[0], shapes=_MergedValues([call.shapes for call in calls]), calls=total_calls)


def _list_inner_subgraphs(
    subgraph: SubgraphView,
    inference: Inference,
    shapes: Shapes,
    opsets: Mapping[str, int],
    skip: Callable[[Node], bool],
    functions: dict[tuple[str, str, str], list[SubgraphView]],
    enclosing_functions: tuple[tuple[str, str, str], ...],
) -> Iterator[SubgraphView]:
    """Yields the bodies inside one subgraph, and adds the calls of functions in it to `functions`.

    Args:
        subgraph: The subgraph.
        inference: Shape inference of the model.
        shapes: Shapes of the subgraph.
        opsets: Versions of the operator sets in the subgraph.
        skip: Function that returns whether the bodies of a node are skipped.
        functions: Views of the calls of each function, by the function's key.
        enclosing_functions: Keys of the functions that contain the subgraph, outermost first.
    """
    model = subgraph.view
    for node in subgraph.nodes:
        if skip(node):
            continue
        function = model.functions.get(node.key)
        if function is not None:
            # recursion and very deep chains of calls, which only a malformed file has, are not followed
            if node.key in enclosing_functions or len(enclosing_functions) > 32:
                continue
            argument_infos = [subgraph.shapes.get(name) if name else None for name in node.inputs]
            _, inner = inference.infer_function(function, node, argument_infos, shapes.constants)
            graph = Graph(function.name, function.nodes, (), (), {})
            inner_model = replace(model, graph=graph, opsets={**model.opsets, **function.opsets})
            call_path = (name_function(model, function),)
            call_view = SubgraphView(
                call_path, function.nodes, inner_model, inner.values, inner.values, subgraph.calls
            )
            functions.setdefault(node.key, []).append(call_view)
            inner_opsets = {**opsets, **function.opsets}
            inner_views = _list_inner_subgraphs(
                call_view, inference, inner, inner_opsets, skip, functions, (*enclosing_functions, node.key)
            )
            for inner_view in inner_views:
                # the bodies in a function are yielded once, not for each call
                if len(functions[node.key]) == 1:
                    yield inner_view
            continue
        for attribute, body in list_bodies(node):
            input_infos, trips = _infer_body_inputs(node, body, subgraph.shapes, inference, shapes, opsets)
            inner = inference.infer_body(body, input_infos, subgraph.shapes, shapes.constants, opsets)
            calls = None if trips is None or subgraph.calls is None else trips * subgraph.calls
            path = (*subgraph.path, name_body(node, attribute))
            inner_model = replace(model, graph=_build_inner_graph(model.graph, node, body))
            # neither mapping is changed
            inner_values = ChainMap[str, TensorInfo](inner.values, subgraph.shapes)  # type: ignore[arg-type]
            call_view = SubgraphView(path, body.nodes, inner_model, inner_values, inner_values, calls)
            yield call_view
            yield from _list_inner_subgraphs(
                call_view, inference, inner, opsets, skip, functions, enclosing_functions
            )


def _infer_body_inputs(
    node: Node,
    body: Graph,
    outer: Mapping[str, TensorInfo],
    inference: Inference,
    shapes: Shapes,
    opsets: Mapping[str, int],
) -> tuple[Types, int | None]:
    """Infers the types of a body's inputs, and counts the runs of the body in one run of its node.

    The count is None if it depends on data. For an If or a SequenceMap, the list is empty and the count None.
    """
    if node.op == "Scan":
        types, trips = infer_scan_inputs(node, outer.get)
        return types, trips if isinstance(trips, int) else None
    if node.op == "Loop":
        types = inference.infer_loop_inputs(node, outer, shapes.constants, opsets)
        limit = shapes.constants.get(node.inputs[0]) if node.inputs and node.inputs[0] else None
        never_stops = any(
            body.outputs and body.outputs[0].name in n.outputs and n.op == "Identity" for n in body.nodes
        )
        return types, int(limit.reshape(-1)[0]) if limit is not None and never_stops else None
    return [], None


def infer_scan_inputs(node: Node, get_info: Callable[[str], TensorInfo | None]) -> tuple[Types, Dim]:
    """Infers the types of the inputs of a Scan's body, and counts the runs of the body (None if unknown).

    Args:
        node: The Scan.
        get_info: Function that returns the fact of a value by name, or None if it is unknown.
    """
    count = int(node.attributes.get("num_scan_inputs", 0))
    state_count = len(node.inputs) - count
    axes = node.attributes.get("scan_input_axes") or (0,) * count
    types: Types = [get_info(name) for name in node.inputs[:state_count]]
    trips: Dim = None
    for name, axis in zip(node.inputs[state_count:], axes, strict=False):
        info = get_info(name)
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
