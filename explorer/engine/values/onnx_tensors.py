"""Stored tensors of an ONNX model, whose values are left in the file.

The tensors are initializers of the graph and of its bodies, values of Constant nodes, and sparse tensors. A
slab is read from the memory-mapped file, and its pages are then released.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.engine.formats.onnx import tensors
from explorer.engine.graph.constant_nodes import read_constant
from explorer.engine.graph.dtypes import get_numpy_type, unpack_numbers
from explorer.engine.graph.model import (
    DTYPES,
    FileSpan,
    Graph,
    Inline,
    Model,
    Node,
    Payload,
    Tensor,
    get_dtype_code,
    list_bodies,
)
from explorer.engine.values.numbers import SLAB, Array, Numbers, select_elements
from explorer.engine.values.slices.packed_weights import build_unpackers
from explorer.engine.values.slices.scales import find_scales

_UNPACKED = 4
"""Maximum growth of a slab when packed numbers are unpacked to one byte each."""


def list_stored(model: Model) -> list[Numbers]:
    """Returns every tensor that the model stores, in the order of the file: initializers, then constants.

    The name of a tensor in a branch or body starts with the path of its node. In a local function it starts
    with the function's name.
    """
    tensor_numbers = list(_list_graph_tensors(model.graph, ""))
    for function in model.functions.values():
        tensor_numbers += _list_node_tensors(function.nodes, f"{function.name}/")
    return tensor_numbers


def _list_graph_tensors(graph: Graph, prefix: str) -> Iterator[Numbers]:
    """Yields the tensors of a graph and of its bodies. `prefix` precedes their names."""
    reader_by_tensor: dict[str, str] = {}
    for node in graph.nodes:
        for name in node.inputs:
            reader_by_tensor.setdefault(name, prefix + node.label)
    stored_tensors = {**graph.initializers, **_collect_constants(graph.nodes)}
    scales = find_scales(graph.nodes, stored_tensors)
    by_rows = {n.inputs[1] for n in graph.nodes if n.op == "Gemm" and n.attributes.get("transB")}
    packed = build_unpackers(graph.nodes, stored_tensors)
    for name, tensor in graph.initializers.items():
        numbers = _build_numbers(tensor, prefix + name, reader_by_tensor.get(name, ""))
        unpack = partial(packed[name], numbers) if name in packed else None
        yield replace(numbers, scales=scales.get(name), unpack=unpack, by_rows=name in by_rows)
    for span in tensors.list_sparse_spans(graph):
        yield _read_sparse(span, prefix, "", reader_by_tensor)
    yield from _list_node_tensors(graph.nodes, prefix, reader_by_tensor)


def _collect_constants(nodes: Sequence[Node]) -> dict[str, Tensor]:
    """Returns the tensors of Constant nodes, by the names of their outputs."""
    return {
        node.outputs[0]: value
        for node in nodes
        if node.op == "Constant"
        and node.outputs
        and isinstance(value := node.attributes.get("value"), Tensor)
    }


def _list_node_tensors(
    nodes: Sequence[Node], prefix: str, reader_by_tensor: Mapping[str, str] | None = None
) -> Iterator[Numbers]:
    """Yields the tensors of Constant nodes and of bodies.

    Args:
        nodes: The nodes.
        prefix: Text that precedes the names of the tensors.
        reader_by_tensor: Paths of the first node that reads each value, by the name of the value.
    """
    for node in nodes:
        if node.op == "Constant" and not node.domain and node.outputs:
            yield from _list_constant(node, prefix, reader_by_tensor or {})
        for name, body in list_bodies(node):
            yield from _list_graph_tensors(body, f"{prefix}{node.label}/{name}/")


def _list_constant(node: Node, prefix: str, reader_by_tensor: Mapping[str, str]) -> Iterator[Numbers]:
    """Yields the tensor of a Constant node, or nothing if its value is not a tensor."""
    output = node.outputs[0]
    name, layer = prefix + output, reader_by_tensor.get(output, prefix + node.label)
    sparse = node.attributes.get("sparse_value")
    if (tensor := read_constant(node)) is not None:
        yield _build_numbers(tensor, name, layer)
    elif isinstance(sparse, FileSpan):
        yield _read_sparse(sparse, prefix, output, reader_by_tensor)


def _build_numbers(tensor: Tensor, name: str, layer: str) -> Numbers:
    """Returns the numbers of a stored tensor under another name. `layer` is the path of its first reader."""
    payload = tensor.payload
    identity: Hashable = ("name", name)
    if isinstance(payload, FileSpan) and payload.size:
        identity = payload.source.path, payload.offset, payload.size

    return Numbers(
        name,
        tensor.dtype,
        tensor.shape,
        tensor.nbytes,
        partial(read_slabs, tensor),
        layer,
        identity,
        part=partial(read_part, tensor),
    )


def _read_sparse(span: FileSpan, prefix: str, output: str, reader_by_tensor: Mapping[str, str]) -> Numbers:
    """Returns the numbers of a SparseTensorProto. Its missing elements are zero.

    Raises:
        BadModel: The tensor holds more values than its shape has elements.
    """
    tensor, shape, indices = tensors.read_sparse(span)
    name = output or tensor.name
    missing = math.prod(shape) - tensor.elements
    if missing < 0:
        raise BadModel(f"sparse tensor '{name}' holds more values than it has places", where=span.source.path)
    return replace(
        _build_numbers(tensor, prefix + name, reader_by_tensor.get(name, "")),
        shape=shape,
        nbytes=tensor.nbytes + indices,
        identity=("sparse", span.source.path, span.offset),
        part=None,
        unstored_zeros=missing,
    )


def read_slabs(tensor: Tensor) -> Iterator[Array]:
    """Yields the elements of a tensor in order, in arrays of at most `SLAB` bytes."""
    payload = tensor.payload
    bits = DTYPES[get_dtype_code(tensor.dtype)].bits
    if payload is None or not bits or not tensor.elements:
        return
    remaining = tensor.elements
    # a piece holds whole numbers: four numbers of 6 bits fill three bytes
    for piece in _cut_to_elements(payload.read_pieces(), 3 if bits == 6 else max(bits // 8, 1)):
        if bits >= 8:
            yield np.frombuffer(piece, get_numpy_type(tensor.dtype))
            continue
        step = SLAB // _UNPACKED // 3 * 3
        for start in range(0, len(piece), step):
            part = unpack_numbers(piece[start : start + step], bits, tensor.dtype)[:remaining]
            remaining -= part.size
            yield part


def read_part(tensor: Tensor, start: int, stop: int) -> Iterator[Array]:
    """Yields the elements `[start, stop)` of a tensor, reading no other bytes of its file."""
    payload = tensor.payload
    bits = DTYPES[get_dtype_code(tensor.dtype)].bits
    if payload is None or not bits or tensor.stored_elements is not None:
        return
    numbers_per_group = 8 // math.gcd(bits, 8)
    first = start // numbers_per_group * numbers_per_group
    offset, end = first * bits // 8, min(-(-stop * bits // 8), payload.size)
    span: Payload = (
        FileSpan(payload.source, payload.offset + offset, end - offset)
        if isinstance(payload, FileSpan)
        else Inline(bytes(payload.view()[offset:end]))
    )
    part = replace(tensor, shape=(stop - first,), payload=span, record=None)
    yield from select_elements(read_slabs(part), start - first, stop - first)


def _cut_to_elements(pieces: Iterator[memoryview], unit: int) -> Iterator[memoryview]:
    """Yields the bytes of `pieces` in pieces of whole elements and at most `SLAB` bytes.

    Pieces of up to a sixteenth of `SLAB` are joined.
    """
    step = SLAB // unit * unit
    pending = bytearray()
    for piece in pieces:
        if not pending and len(piece) > SLAB // 16 and not len(piece) % unit:
            for start in range(0, len(piece), step):
                yield piece[start : start + step]
            continue
        pending += piece
        if len(pending) > SLAB // 16:
            ready_bytes = len(pending) // unit * unit
            for start in range(0, ready_bytes, step):
                yield memoryview(bytes(pending[start : min(start + step, ready_bytes)]))
            del pending[:ready_bytes]
    if pending:
        yield memoryview(bytes(pending))
