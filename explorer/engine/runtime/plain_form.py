"""Plain form of a model: an equivalent graph that can be cut into parts that onnxruntime loads.

Explorer tiles, quantizes and proves a model in parts. A part cannot hold sparse tensors, because they are
stored outside the initializers. onnxruntime refuses two nodes with the same name. Before IR version 4, it
also needs every initializer among the graph inputs.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.base.units import bytes_text, printable
from explorer.engine.formats.onnx.protobuf_wire import iterate_fields
from explorer.engine.formats.onnx.tensors import TensorReader, list_sparse_spans, read_sparse
from explorer.engine.graph.dtypes import get_numpy_type
from explorer.engine.graph.model import (
    DerivedPayload,
    FileSpan,
    Function,
    Graph,
    Model,
    Node,
    Tensor,
    list_bodies,
    replace_bodies,
)
from explorer.engine.graph.repeated_nodes import NodeRun, combine_nodes, create_free_name, list_stored_nodes

_MAX_DENSE_BYTES = 1 << 32
"""Maximum bytes of a sparse tensor in dense form."""

_FIRST_WITHOUT_INPUTS = 4
"""First IR version in which an initializer need not be listed as an input."""

_SPARSE_FIELD = 15
"""Field number of the sparse initializers in a GraphProto."""


def build_plain_form(model: Model) -> Model:
    """Returns the model in plain form, or the same object if it already is.

    Raises:
        BadModel: A sparse tensor is inconsistent, or too large in dense form.
    """
    graph = _build_plain_graph(model.graph)
    functions = {key: _build_plain_function(function) for key, function in model.functions.items()}
    if any(functions[key] is not function for key, function in model.functions.items()):
        model = replace(model, functions=functions)
    if model.ir_version < _FIRST_WITHOUT_INPUTS and graph.initializers:
        inputs = tuple(value for value in graph.inputs if value.name not in graph.initializers)
        graph = replace(graph, inputs=inputs)
        model = replace(model, ir_version=_FIRST_WITHOUT_INPUTS)
    return model if graph is model.graph else replace(model, graph=graph)


def _build_plain_graph(graph: Graph) -> Graph:
    nodes = _build_plain_nodes(graph.nodes)
    added = (
        {tensor.name: tensor for tensor in map(_build_dense_tensor, list_sparse_spans(graph))}
        if graph.extra
        else {}
    )
    if added:
        initializers = {**graph.initializers, **added}
        graph = replace(graph, initializers=initializers, extra=_drop_sparse(graph))
    return graph if nodes is graph.nodes else replace(graph, nodes=nodes)


def _build_plain_function(function: Function) -> Function:
    nodes = _build_plain_nodes(function.nodes)
    return function if nodes is function.nodes else replace(function, nodes=nodes, record=None)


def _build_plain_nodes(nodes: Any) -> Any:
    """Returns the nodes of one graph with unique names, dense constants and plain bodies."""
    originals = list_stored_nodes(nodes)
    counts: Counter[str] = Counter()
    for node in originals:
        counts.update(node.names if isinstance(node, NodeRun) else (node.name,))
    repeated = {name for name, count in counts.items() if count > 1 and name}
    used_names = set(counts) if repeated else set()
    occurrences: Counter[str] = Counter()
    plain_nodes: list[Node] = []
    for node in originals:
        plain_node = _build_plain_node(node)
        if node.name in repeated and not isinstance(node, NodeRun):
            occurrences[node.name] += 1
            if occurrences[node.name] > 1:
                name = create_free_name(f"{node.name}#{occurrences[node.name]}", used_names)
                plain_node = plain_node.replace_values(node.inputs, node.outputs, name)
        plain_nodes.append(plain_node)
    if all(a is b for a, b in zip(originals, plain_nodes, strict=True)):
        return nodes
    return combine_nodes(plain_nodes)


def _build_plain_node(node: Node) -> Node:
    """Returns a node with a dense constant and plain bodies."""
    if isinstance(node, NodeRun):
        return node
    if node.op == "Constant" and not node.domain:
        span = node.attributes.get("sparse_value")
        if isinstance(span, FileSpan):
            value = replace(_build_dense_tensor(span), name="")
            return node.replace_attributes({"value": value})
        return node
    changed = {
        name: body for name, inner in list_bodies(node) if (body := _build_plain_graph(inner)) is not inner
    }
    return replace_bodies(node, changed) if changed else node


def _build_dense_tensor(span: FileSpan) -> Tensor:
    """Returns the dense form of a sparse tensor. The zeros are filled in when the values are read.

    Raises:
        BadModel: The dense form is too large.
    """
    values, shape, _ = read_sparse(span)
    size = replace(values, shape=shape, stored_elements=None).nbytes
    if size > _MAX_DENSE_BYTES:
        reason = f"sparse tensor '{printable(values.name)}' takes {bytes_text(size)} with its zeros"
        raise BadModel(f"{reason}; a runtime cannot hold it", where=span.source.path)
    return Tensor(values.name, values.dtype, shape, DerivedPayload(size, partial(_read_dense_bytes, span)))


def _read_dense_bytes(span: FileSpan) -> bytes:
    """Returns the bytes of a sparse tensor in dense form.

    Raises:
        BadModel: The tensor has no indices, or they do not fit its shape.
    """
    import numpy as np  # opening a model must not wait for numpy

    values, shape, _ = read_sparse(span)
    indices = _read_indices(span)
    numbers = values.array().reshape(-1)
    count = math.prod(shape)
    if indices is None or numbers.dtype != get_numpy_type(values.dtype):
        raise BadModel(f"sparse tensor '{printable(values.name)}' cannot be read", where=span.source.path)
    positions = indices.array()
    if positions.ndim == 2 and positions.shape[1] == len(shape):
        strides = np.asarray([math.prod(shape[axis + 1 :]) for axis in range(len(shape))], np.int64)
        is_in_range = bool(((positions >= 0) & (positions < np.asarray(shape))).all())
        positions = positions @ strides
    else:
        positions = positions.reshape(-1)
        is_in_range = bool(((positions >= 0) & (positions < count)).all())
    if not is_in_range or positions.size != numbers.size:
        message = f"the indices of sparse tensor '{printable(values.name)}' do not fit its shape"
        raise BadModel(message, where=span.source.path)
    dense = np.zeros(count, numbers.dtype)
    dense[positions] = numbers
    return dense.tobytes()


def _read_indices(span: FileSpan) -> Tensor | None:
    """Returns the indices of a sparse tensor, or None if its record has none."""
    reader = TensorReader(span.source)
    for number, wire_type, _, start, end in iterate_fields(reader.data, span.offset, span.offset + span.size):
        if number == 2 and wire_type == 2:
            return reader.read_tensor(start, end)
    return None


def _drop_sparse(graph: Graph) -> tuple[FileSpan, ...]:
    """Returns the uninterpreted fields of a graph, without its sparse initializers."""
    remaining: list[FileSpan] = []
    for part in graph.extra:
        for number, _, start, _, end in iterate_fields(part.source.map, part.offset, part.offset + part.size):
            if number != _SPARSE_FIELD:
                remaining.append(FileSpan(part.source, start, end - start))
    return tuple(remaining)
