"""Plain form of a model: the same graph in a form that can be cut into parts.

A model is tiled, quantized and proved in parts. Parts have no sparse tensors, which lie outside the
initializers. onnxruntime refuses two nodes of the same name, and before IR version 4 it needs every
initializer among the inputs. onnxruntime loads the whole model, so it must load the parts, too.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.base.units import bytes_text, printable
from explorer.engine.formats.onnx.protobuf_wire import fields
from explorer.engine.formats.onnx.tensors import TensorReader, sparse, sparse_spans
from explorer.engine.graph.dtypes import numpy_type
from explorer.engine.graph.model import (
    DerivedPayload,
    FileSpan,
    Function,
    Graph,
    Model,
    Node,
    Tensor,
    subgraphs,
    with_bodies,
)
from explorer.engine.graph.repeated_nodes import NodeRun, free_name, gathered, node_sequence

_LARGEST = 1 << 32
"""Largest size of a sparse tensor with its zeros, in bytes."""

_OWN_INPUTS = 4
"""The first IR version in which an initializer need not be listed as an input."""

_SPARSE_FIELD = 15
"""Field number of the sparse initializers in a GraphProto."""


def plain(model: Model) -> Model:
    """The model in plain form; the same object if it is plain already.

    Raises:
        BadModel: A sparse tensor contradicts itself, or is too large with its zeros.
    """
    graph = _graph(model.graph)
    functions = {key: _function(function) for key, function in model.functions.items()}
    if any(functions[key] is not function for key, function in model.functions.items()):
        model = replace(model, functions=functions)
    if model.ir_version < _OWN_INPUTS and graph.initializers:
        inputs = tuple(value for value in graph.inputs if value.name not in graph.initializers)
        graph = replace(graph, inputs=inputs)
        model = replace(model, ir_version=_OWN_INPUTS)
    return model if graph is model.graph else replace(model, graph=graph)


def _graph(graph: Graph) -> Graph:
    nodes = _nodes(graph.nodes)
    added = {tensor.name: tensor for tensor in map(_dense, sparse_spans(graph))} if graph.extra else {}
    if added:
        initializers = {**graph.initializers, **added}
        graph = replace(graph, initializers=initializers, extra=_without_sparse(graph))
    return graph if nodes is graph.nodes else replace(graph, nodes=nodes)


def _function(function: Function) -> Function:
    nodes = _nodes(function.nodes)
    return function if nodes is function.nodes else replace(function, nodes=nodes, record=None)


def _nodes(nodes: Any) -> Any:
    """The nodes of one graph with unique names, dense constants and plain bodies."""
    originals = node_sequence(nodes)
    counts: Counter[str] = Counter()
    for node in originals:
        counts.update(node.names if isinstance(node, NodeRun) else (node.name,))
    repeated = {name for name, count in counts.items() if count > 1 and name}
    taken = set(counts) if repeated else set()
    occurrences: Counter[str] = Counter()
    out: list[Node] = []
    for node in originals:
        plain_node = _node(node)
        if node.name in repeated and not isinstance(node, NodeRun):
            occurrences[node.name] += 1
            if occurrences[node.name] > 1:
                name = free_name(f"{node.name}#{occurrences[node.name]}", taken)
                plain_node = plain_node.with_values(node.inputs, node.outputs, name)
        out.append(plain_node)
    return nodes if all(a is b for a, b in zip(originals, out, strict=True)) else gathered(out)


def _node(node: Node) -> Node:
    """A node with a dense constant and plain bodies."""
    if isinstance(node, NodeRun):
        return node
    if node.op == "Constant" and not node.domain:
        span = node.attributes.get("sparse_value")
        if isinstance(span, FileSpan):
            value = replace(_dense(span), name="")
            return node.with_attributes({"value": value})
        return node
    changed = {name: body for name, inner in subgraphs(node) if (body := _graph(inner)) is not inner}
    return with_bodies(node, changed) if changed else node


def _dense(span: FileSpan) -> Tensor:
    """A sparse tensor as a dense one; the zeros are filled in when the values are read."""
    values, shape, _ = sparse(span)
    size = replace(values, shape=shape, held=None).nbytes
    if size > _LARGEST:
        reason = f"sparse tensor '{printable(values.name)}' takes {bytes_text(size)} with its zeros"
        raise BadModel(f"{reason}; a runtime cannot hold it", where=span.source.path)
    return Tensor(values.name, values.dtype, shape, DerivedPayload(size, partial(_filled, span)))


def _filled(span: FileSpan) -> bytes:
    """The bytes of a sparse tensor with its zeros."""
    import numpy as np  # opening a model must not wait for numpy

    values, shape, _ = sparse(span)
    indices = _indices(span)
    numbers = values.array().reshape(-1)
    count = math.prod(shape)
    if indices is None or numbers.dtype != numpy_type(values.dtype):
        raise BadModel(f"sparse tensor '{printable(values.name)}' cannot be read", where=span.source.path)
    places = indices.array()
    if places.ndim == 2 and places.shape[1] == len(shape):
        steps = np.asarray([math.prod(shape[axis + 1 :]) for axis in range(len(shape))], np.int64)
        fits = bool(((places >= 0) & (places < np.asarray(shape))).all())
        places = places @ steps
    else:
        places = places.reshape(-1)
        fits = bool(((places >= 0) & (places < count)).all())
    if not fits or places.size != numbers.size:
        raise BadModel(
            f"the indices of sparse tensor '{printable(values.name)}' do not fit its shape",
            where=span.source.path,
        )
    out = np.zeros(count, numbers.dtype)
    out[places] = numbers
    return out.tobytes()


def _indices(span: FileSpan) -> Tensor | None:
    reader = TensorReader(span.source)
    for number, wire, _, at, end in fields(reader.data, span.offset, span.offset + span.size):
        if number == 2 and wire == 2:
            return reader.tensor(at, end)
    return None


def _without_sparse(graph: Graph) -> tuple[FileSpan, ...]:
    """The uninterpreted fields of a graph, without its sparse initializers."""
    remaining: list[FileSpan] = []
    for part in graph.extra:
        for number, _, start, _, end in fields(part.source.map, part.offset, part.offset + part.size):
            if number != _SPARSE_FIELD:
                remaining.append(FileSpan(part.source, start, end - start))
    return tuple(remaining)
