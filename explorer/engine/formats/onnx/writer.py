"""ONNX writer: encodes a `Model` and streams it to a file.

Unchanged nodes and tensors are copied as bytes from the file that they were read from. A computed payload,
such as the tiles of a weight, is computed slab by slab while it is written, so no weight is copied in memory.

`encode_skeleton` encodes the model without its weights for onnx's shape inference, or with references to the
weights for onnxruntime.

Field numbers are those of onnx.proto (IR version 13).
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import queue
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from explorer.engine.formats.onnx.protobuf_wire import (
    encode_length_delimited,
    encode_tagged_varint,
    encode_varint,
)
from explorer.engine.graph.model import (
    AttributeRef,
    ComputedPayload,
    FileSpan,
    Function,
    Graph,
    Inline,
    Model,
    Node,
    Payload,
    Tensor,
    Value,
    get_dtype_code,
)
from explorer.engine.graph.repeated_nodes import NodeRun, Tensors, WeightBundle, list_stored_nodes
from explorer.engine.progress import Cancel, OnProgress, stop_if
from explorer.facts import Progress, Shape
from explorer.host import output_files

Part = bytes | Payload
"""A part of an encoded message: bytes, or data that is read or computed while it is written."""
Piece = bytes | bytearray | memoryview
"""Bytes that are written in one call."""

PROTOBUF_LIMIT = (1 << 31) - 1
"""Maximum bytes of a protobuf message. A larger model has its weights in a second file."""

_MAX_SKELETON_BYTES = 1024
"""Payloads below this many bytes stay in a skeleton: shapes, axes, scalars."""

_MAX_SIZES_BYTES = 1 << 16
"""Maximum bytes of an int64 tensor that stays in the skeleton, because shape inference needs its values."""

_BLOCK_BYTES = 1 << 20
"""Bytes of a block: smaller chunks are joined to blocks, and larger chunks of zeros become holes."""

_COPY_BYTES = 1 << 24
"""Bytes of a source file that are copied at once."""


class _Parts(list[Part]):
    """A list of encoded parts with their total size in bytes, which a length prefix needs."""

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        super().__init__()
        self.size = 0
        for part in parts:
            self.add(part)

    def add(self, part: Part) -> None:
        self.append(part)
        self.size += len(part) if isinstance(part, bytes) else part.size

    def add_message(self, number: int, body: _Parts) -> None:
        """Adds `body` as the length-delimited field `number`."""
        head = encode_varint(number << 3 | 2) + encode_varint(body.size)
        if len(body) == 1 and isinstance(body[0], bytes):
            self.add(head + body[0])
            return
        self.add(head)
        self.extend(body)
        self.size += body.size


class _Encoder:
    """Encodes a model as a list of parts: bytes, and payloads that are read while they are written.

    Args:
        refer: Function that decides where the data of a tensor with 1 KB or more is stored. It returns
            (location, offset) for external data, None for data in the model, or ('', 0) for no data.
    """

    def __init__(self, refer: Callable[[Tensor], tuple[str, int] | None]) -> None:
        self.refer = refer
        self.kinds: dict[tuple[tuple[int, ...], str], bytes] = {}
        """Cache of encoded (shape, type) pairs; thousands of tiles share one."""

    def encode_model(self, model: Model) -> _Parts:
        parts = _Parts([encode_tagged_varint(1, model.ir_version)])
        if model.producer:
            parts.add(encode_length_delimited(2, model.producer.encode()))
        if model.producer_version:
            parts.add(encode_length_delimited(3, model.producer_version.encode()))
        for span in model.extra:
            parts.add(span)
        parts.add_message(7, self.encode_graph(model.graph))
        for domain, version in model.opsets.items():
            parts.add(encode_length_delimited(8, _encode_opset(domain, version)))
        for key, value in model.metadata.items():
            parts.add(encode_length_delimited(14, _encode_pair(key, value)))
        for function in model.functions.values():
            parts.add_message(25, self.encode_function(function))
        return parts

    def encode_graph(self, graph: Graph) -> _Parts:
        parts = _Parts()
        self.add_nodes(parts, 1, graph.nodes)
        parts.add(encode_length_delimited(2, graph.name.encode()))
        for span in graph.extra:
            parts.add(span)
        for number, values in ((11, graph.inputs), (12, graph.outputs), (13, graph.values)):
            for value in values:
                parts.add(encode_length_delimited(number, _encode_value(value)))
        initializers = graph.initializers
        if isinstance(initializers, Tensors) and self.refer is _store_in_model:
            for bundle in initializers.bundles:
                parts.add(self.encode_bundle(5, bundle))
            initializers = initializers.single
        for tensor in initializers.values():
            parts.add_message(5, self.encode_tensor(tensor))
        return parts

    def encode_bundle(self, number: int, bundle: WeightBundle) -> ComputedPayload:
        """Encodes tensors as the repeated field `number`; headers and data are joined while writing."""
        heads: list[bytes] = []
        sizes: list[int] = []
        names = list(map(str.encode, bundle.names))
        for (shape, name_bytes), group in itertools.groupby(zip(bundle.shapes, map(len, names), strict=True)):
            size = Tensor("", bundle.dtype, shape, None).nbytes
            raw = encode_varint(9 << 3 | 2) + encode_varint(size)
            front = (
                self.encode_type(shape, bundle.dtype) + encode_varint(8 << 3 | 2) + encode_varint(name_bytes)
            )
            length = len(front) + name_bytes + len(raw) + size
            front = encode_varint(number << 3 | 2) + encode_varint(length) + front
            first, last = len(heads), len(heads) + len(list(group))
            heads += [front + name + raw for name in names[first:last]]
            sizes += [len(heads[-1]) + size] * (last - first)
        bands = []
        first = 0
        for count, read_tensors in bundle.bands:
            last = first + count
            make = functools.partial(_join_heads, heads[first:last], read_tensors)
            bands.append(ComputedPayload(sum(sizes[first:last]), make, is_independent=True))
            first = last
        return ComputedPayload(sum(sizes), functools.partial(_join_heads, heads, bundle.data), tuple(bands))

    def encode_type(self, shape: tuple[int, ...], dtype: str) -> bytes:
        """Encodes the shape and type of a tensor."""
        kind = shape, dtype
        if kind not in self.kinds:
            dims = b"".join(encode_tagged_varint(1, dim) for dim in shape)
            self.kinds[kind] = dims + encode_tagged_varint(2, get_dtype_code(dtype))
        return self.kinds[kind]

    def add_nodes(self, parts: _Parts, number: int, nodes: Sequence[Node]) -> None:
        """Adds nodes as the repeated field `number`. Neighboring nodes without attributes become one part."""
        run: list[bytes] = []
        for node in list_stored_nodes(nodes):
            if isinstance(node, NodeRun):
                run += _encode_run(number, node)
            elif node.record is None and not node.attributes:
                run.append(encode_length_delimited(number, _encode_head(node)))
            else:
                if run:
                    parts.add(b"".join(run))
                    run.clear()
                parts.add_message(number, self.encode_node(node))
        if run:
            parts.add(b"".join(run))

    def encode_node(self, node: Node) -> _Parts:
        record = node.record
        if record is not None and not _has_external_data(node):
            return _Parts([record if record.size >= _MAX_SKELETON_BYTES else bytes(record.view())])
        parts = _Parts([_encode_head(node)])
        for name, attribute in node.attributes.items():
            parts.add_message(5, self.encode_attribute(name, attribute))
        return parts

    def encode_attribute(self, name: str, value: Any) -> _Parts:
        parts = _Parts([encode_length_delimited(1, name.encode())])
        kind = _get_attribute_kind(value)
        if isinstance(value, AttributeRef):
            parts.add(encode_length_delimited(21, value.name.encode()))
            kind = value.kind
        elif kind == 1:
            parts.add(b"\x15" + struct.pack("<f", value))
        elif kind == 2:
            parts.add(encode_tagged_varint(3, int(value)))
        elif kind in (3, 8):
            for element in value if kind == 8 else (value,):
                parts.add(
                    encode_length_delimited(
                        kind + 1, element if isinstance(element, bytes) else element.encode()
                    )
                )
        elif kind in (4, 5, 9, 10):
            encode = self.encode_tensor if kind in (4, 9) else self.encode_graph
            for element in value if kind > 5 else (value,):
                parts.add_message(kind + 1, encode(element))
        elif kind == 6:
            parts.add(encode_length_delimited(7, struct.pack(f"<{len(value)}f", *value)))
        elif kind == 7:
            parts.add(encode_length_delimited(8, b"".join(map(encode_varint, value))))
        parts.add(encode_varint(20 << 3) + encode_varint(kind))
        return parts

    def encode_tensor(self, tensor: Tensor) -> _Parts:
        payload = tensor.payload
        large = payload is not None and payload.size >= _MAX_SKELETON_BYTES
        reference = self.refer(tensor) if large else None
        if reference is None and tensor.record is not None and not tensor.external:
            return _Parts([tensor.record])
        body = self.encode_type(tensor.shape, tensor.dtype) + encode_length_delimited(8, tensor.name.encode())
        if reference is not None:
            location, offset = reference
            if location:
                entries = (
                    ("location", location),
                    ("offset", str(offset)),
                    ("length", str(_count_bytes(payload))),
                )
                body += b"".join(encode_length_delimited(13, _encode_pair(k, v)) for k, v in entries)
                body += encode_tagged_varint(14, 1)
            return _Parts([body])
        if payload is None:
            return _Parts([body])
        # weights from an external file become part of the model if they fit
        return _Parts([body + encode_varint(9 << 3 | 2) + encode_varint(payload.size), payload])

    def encode_function(self, function: Function) -> _Parts:
        if function.record is not None and not any(map(_has_external_data, function.nodes)):
            return _Parts([function.record])
        head = [encode_length_delimited(1, function.name.encode())]
        head += [_encode_repeated(4, function.inputs), _encode_repeated(5, function.outputs)]
        head += [encode_length_delimited(6, name.encode()) for name in function.attributes]
        parts = _Parts([b"".join(head)])
        for span in function.extra:
            parts.add(span)
        self.add_nodes(parts, 7, function.nodes)
        for domain, version in function.opsets.items():
            parts.add(encode_length_delimited(9, _encode_opset(domain, version)))
        parts.add(encode_length_delimited(10, function.domain.encode()))
        for name, value in function.defaults.items():
            parts.add_message(11, self.encode_attribute(name, value))
        for declared in function.values:
            parts.add(encode_length_delimited(12, _encode_value(declared)))
        if function.overload:
            parts.add(encode_length_delimited(13, function.overload.encode()))
        for key, value in function.metadata.items():
            parts.add(encode_length_delimited(14, _encode_pair(key, value)))
        return parts


def _has_external_data(node: Node) -> bool:
    """Whether an attribute of a node, such as a body, has a tensor in another file.

    Only then the attributes of a small record are decoded: the key of the file's name is in its bytes.
    """
    record = node.record
    if record is not None and record.size < _MAX_SKELETON_BYTES and b"location" not in bytes(record.view()):
        return False
    return any(map(_is_stored_outside, node.attributes.values()))


def _is_stored_outside(value: Any) -> bool:
    """Whether an attribute has a tensor in another file."""
    if isinstance(value, Graph):
        return any(tensor.external for tensor in value.initializers.values()) or any(
            map(_has_external_data, value.nodes)
        )
    if isinstance(value, (tuple, list)):
        return any(map(_is_stored_outside, value))
    return isinstance(value, Tensor) and bool(value.external)


def _join_heads(
    heads: Sequence[bytes], read_tensors: Callable[[], Iterator[memoryview]]
) -> Iterator[memoryview]:
    """Joins each header with the data of its tensor, and yields chunks of about 1 MB."""
    pieces: list[bytes | memoryview] = []
    size = 0
    for head, tensor in zip(heads, read_tensors(), strict=True):
        pieces += (head, tensor)
        size += len(tensor)
        if size >= _BLOCK_BYTES:
            yield memoryview(b"".join(pieces))
            pieces, size = [], 0
    if pieces:
        yield memoryview(b"".join(pieces))


def _encode_head(node: Node) -> bytes:
    """Encodes a node without its attributes."""
    words = [(3, node.name), (4, node.op), (7, node.domain), (8, node.overload)]
    head = [encode_length_delimited(number, word.encode()) for number, word in words if word]
    head += [encode_length_delimited(9, _encode_pair(key, value)) for key, value in node.metadata.items()]
    return b"".join((_encode_repeated(1, node.inputs), _encode_repeated(2, node.outputs), *head))


def _encode_repeated(number: int, words: Sequence[str]) -> bytes:
    """Encodes words as the repeated field `number`.

    A tiled graph consists mostly of names, often of equal length. Words of equal length share one field
    header, so they are joined in one call.
    """
    if not "".join(words).isascii():
        return b"".join([encode_length_delimited(number, word.encode()) for word in words])
    text = []
    for size, group in itertools.groupby(words, len):
        head = _encode_field_head(number, size)
        text.append(head + head.join(group))
    return "".join(text).encode("latin-1")


def _encode_run(number: int, run: NodeRun) -> list[bytes]:
    """Encodes the nodes of a run as the repeated field `number`.

    Neighboring nodes mostly have names of the same lengths, so the bytes between the names are equal. Such
    nodes are joined as text, with one character per byte.
    """
    shared = _encode_field_text(4, run.op) + _encode_field_text(7, run.domain)
    for key, value in run.metadata.items():
        shared += _encode_field_text(9, _encode_field_text(1, key) + _encode_field_text(2, value))
    columns = (*run.wires, run.outputs, run.names, run.labels)
    if not all("".join(words).isascii() for words in ((run.label_key, shared), *columns)):
        return [encode_length_delimited(number, _encode_head(node)) for node in run.build_nodes()]
    text: list[str] = []
    first = 0
    for sizes, group in itertools.groupby(zip(*(map(len, column) for column in columns), strict=True)):
        last = first + len(list(group))
        *heads, end = map(itertools.repeat, _encode_separators(number, sizes, run.label_key, shared))
        words = (column[first:last] for column in columns)
        row = itertools.chain.from_iterable(zip(heads, words, strict=True))
        text += itertools.chain.from_iterable(zip(*row, end, strict=False))
        first = last
    return ["".join(text).encode("latin-1")]


@functools.lru_cache(maxsize=64)
def _encode_separators(number: int, sizes: tuple[int, ...], label_key: str, shared: str) -> tuple[str, ...]:
    """Returns the encoded text before, between and after the words of a node.

    Args:
        number: Field number of the node.
        sizes: Lengths of the words: inputs, output, name, label.
        label_key: Metadata key of the label.
        shared: Encoded fields that are equal in all nodes of the run.
    """
    *inputs, output, name, label = sizes
    pair = _encode_field_text(1, label_key) + _encode_field_head(2, label)
    heads = [_encode_field_head(1, size) for size in inputs]
    heads += [
        _encode_field_head(2, output),
        _encode_field_head(3, name),
        _encode_field_head(9, len(pair) + label) + pair,
    ]
    size = sum(map(len, heads)) + sum(sizes) + len(shared)
    return (_encode_field_head(number, size) + heads[0], *heads[1:], shared)


@functools.lru_cache(maxsize=1024)
def _encode_field_head(number: int, size: int) -> str:
    """Returns the tag and length of a field with `size` bytes, as text with one character per byte."""
    return (encode_varint(number << 3 | 2) + encode_varint(size)).decode("latin-1")


def _encode_field_text(number: int, word: str) -> str:
    """Encodes an ASCII word as a length-delimited field, as text with one character per byte."""
    return f"{_encode_field_head(number, len(word))}{word}"


def _get_attribute_kind(value: Any) -> int:
    """Returns the AttributeProto.AttributeType of a Python value, or 0 for a reference to an attribute.

    An empty list counts as a list of integers.
    """
    if isinstance(value, AttributeRef):
        return 0
    if isinstance(value, (tuple, list)):
        if not value:
            return 7
        first = _get_attribute_kind(value[0])
        return first + 5
    for kind, types in ((1, float), (2, (int, bool)), (3, (str, bytes)), (4, Tensor), (5, Graph)):
        if isinstance(value, types):
            return kind
    raise TypeError(f"no ONNX attribute can hold a {type(value).__name__}")


def _count_bytes(payload: Payload | None) -> int:
    return 0 if payload is None else payload.size


def _encode_pair(key: str, value: str) -> bytes:
    return encode_length_delimited(1, key.encode()) + encode_length_delimited(2, value.encode())


def _encode_opset(domain: str, version: int) -> bytes:
    return (encode_length_delimited(1, domain.encode()) if domain else b"") + encode_tagged_varint(2, version)


def _encode_value(value: Value) -> bytes:
    if value.record is not None:
        return bytes(value.record.view())
    body = encode_length_delimited(1, value.name.encode())
    if value.dtype is None:
        return body
    return body + encode_length_delimited(2, encode_tensor_type(value.dtype, value.shape))


def encode_tensor_type(dtype: str, shape: Shape | None) -> bytes:
    """Encodes the TypeProto of a tensor."""
    tensor_type = encode_tagged_varint(1, get_dtype_code(dtype))
    if shape is not None:
        dims = b""
        for dim in shape:
            inner = b""
            if isinstance(dim, int):
                inner = encode_tagged_varint(1, dim)
            elif dim is not None:
                inner = encode_length_delimited(2, dim.encode())
            dims += encode_length_delimited(1, inner)
        tensor_type += encode_length_delimited(2, dims)
    return encode_length_delimited(1, tensor_type)


def _store_in_model(_: Tensor) -> None:
    """Decides that the data of a tensor is stored in the model."""
    return None


def _may_hold_sizes(tensor: Tensor) -> bool:
    """Whether a tensor may hold shapes or axes, whose values shape inference needs.

    The limit is above `_MAX_SKELETON_BYTES`: the sizes of a Split into hundreds of tiles take more than 1 KB.
    """
    return tensor.dtype == "int64" and tensor.nbytes <= _MAX_SIZES_BYTES


def _omit_unless_sizes(tensor: Tensor) -> tuple[str, int] | None:
    """Decides that the data of a tensor is omitted, unless it may hold sizes."""
    return None if _may_hold_sizes(tensor) else ("", 0)


def encode(model: Model) -> bytes:
    """Encodes a model with its weights in memory. For small models and tests."""
    return _join(_Encoder(_store_in_model).encode_model(model))


def encode_skeleton(model: Model, *, folder: str | None = None) -> bytes:
    """Encodes a model without its weights.

    Without `folder`, the result is for shape inference: payloads of 1 KB or more are omitted, except int64
    tensors up to 64 KB. With `folder`, the result is for onnxruntime: payloads of 1 KB or more in a file
    below the folder become external data in that file, which may be the .onnx file itself. All other
    payloads, and int64 tensors up to 64 KB, stay in the model.

    Args:
        model: Model to encode.
        folder: Folder in which onnxruntime looks for external data, or None to omit the weights.

    Note:
        A node that is copied from its file keeps the tensors in its attributes, such as a large Constant.
    """
    if folder is None:
        return _join(_Encoder(_omit_unless_sizes).encode_model(model))
    root = os.path.realpath(folder)

    def refer(tensor: Tensor) -> tuple[str, int] | None:
        payload = tensor.payload
        if not isinstance(payload, FileSpan) or _may_hold_sizes(tensor):
            return None  # onnxruntime's shape inference reads only tensors inside the model
        path = os.path.realpath(payload.source.path)
        if os.path.commonpath([root, path]) != root:
            return None
        return os.path.relpath(path, root), payload.offset

    return _join(_Encoder(refer).encode_model(model))


def _join(parts: _Parts) -> bytes:
    return b"".join(p if isinstance(p, bytes) else bytes(p.view()) for p in parts)


def write(model: Model, path: str, *, on_progress: OnProgress = None, cancel: Cancel = None) -> None:
    """Writes a model to the file `path`. Call it in a `write_atomically`, so that a failure leaves no file.

    If the model is larger than protobuf's limit of 2 GiB, its weights are written to `path` + '.data'. Small
    tensors and sizes stay in the model.

    Args:
        model: Model to write; its payloads are read while writing.
        path: Path of the new file; an existing file is replaced.
        on_progress: Callback that receives the number of bytes written to the file with the weights.
        cancel: Callback that returns True to stop; it is called between chunks.

    Raises:
        OSError: The file cannot be written; `output_files.write_atomically` turns it into one line.
        Cancelled: `cancel` returned True.
    """
    parts = _Encoder(_store_in_model).encode_model(model)
    if parts.size <= PROTOBUF_LIMIT:
        _write_parts(parts, path, on_progress, cancel)
        return
    data_path = path + ".data"
    outside: dict[int, tuple[Tensor, int]] = {}
    offset = 0

    def refer(tensor: Tensor) -> tuple[str, int] | None:
        nonlocal offset
        if _may_hold_sizes(tensor):
            return None  # shape inference does not read external data
        if id(tensor) not in outside:
            outside[id(tensor)] = tensor, offset
            # page-aligned, so that it can be mapped
            offset += -(-_count_bytes(tensor.payload) // 4096) * 4096
        return os.path.basename(data_path), outside[id(tensor)][1]

    parts = _Encoder(refer).encode_model(model)
    weights = _Parts()
    for tensor, start in outside.values():
        weights.add(b"\0" * (start - weights.size))
        assert tensor.payload is not None
        weights.add(tensor.payload)
    _write_parts(weights, data_path, on_progress, cancel)
    _write_parts(parts, path, None, cancel)


def _write_parts(parts: _Parts, path: str, on_progress: OnProgress, cancel: Cancel) -> None:
    """Writes the parts to a new file with two threads.

    Either thread computes and writes independent parts. Parts that must be computed in order are computed by
    this thread, and written by the other thread meanwhile.
    """
    descriptor = output_files.open_descriptor(path)
    thread = _WriterThread(descriptor)
    offset = 0
    try:
        for job, size, is_independent in _group_jobs(parts):
            pieces = _join_batches(_list_pieces(job))
            if is_independent and thread.queue_chunks(pieces, offset):
                offset += size
                _report(offset, parts.size, on_progress, cancel)
                continue
            if not is_independent:
                thread.wait()
            for chunk in pieces:
                if is_independent:
                    _write_at(descriptor, chunk, offset)
                else:
                    thread.write(chunk, offset)
                offset += len(chunk)
                _report(offset, parts.size, on_progress, cancel)
        thread.finish()
        os.ftruncate(descriptor, offset)
    finally:
        thread.stop()
        os.close(descriptor)


def _report(written_bytes: int, total: int, on_progress: OnProgress, cancel: Cancel) -> None:
    stop_if(cancel)
    if on_progress is not None:
        on_progress(Progress("writing", written_bytes, total))


def _group_jobs(parts: _Parts) -> Iterator[tuple[list[Part], int, bool]]:
    """Groups neighboring parts into jobs of about 1 MB.

    Yields:
        The parts of a job, their total bytes, and whether another thread may compute them.
    """
    job: list[Part] = []
    job_bytes, is_independent = 0, True
    for part, is_part_independent in _split_computed(parts):
        job.append(part)
        job_bytes += len(part) if isinstance(part, bytes) else part.size
        is_independent = is_independent and is_part_independent
        if job_bytes >= _BLOCK_BYTES:
            yield job, job_bytes, is_independent
            job, job_bytes, is_independent = [], 0, True
    if job:
        yield job, job_bytes, is_independent


def _split_computed(parts: _Parts) -> Iterator[tuple[Part, bool]]:
    """Splits large parts. Yields each part, and whether it can be computed independently of the others."""
    for part in parts:
        if isinstance(part, ComputedPayload) and part.parts:
            yield from ((subpart, subpart.is_independent) for subpart in part.parts)
        elif isinstance(part, FileSpan):
            for start in range(0, part.size, _COPY_BYTES):
                yield FileSpan(part.source, part.offset + start, min(_COPY_BYTES, part.size - start)), True
        else:
            yield part, isinstance(part, (bytes, Inline))


class _WriterThread:
    """Computes and writes parts of a file in a second thread, mostly without Python's global lock.

    concurrent.futures is not used: it imports logging, which takes as long as tiling a small model.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._work: queue.SimpleQueue[tuple[Iterable[Piece], int] | None] = queue.SimpleQueue()
        self._free_slots = threading.Semaphore(2)
        self._error: Exception | None = None
        self._is_stopped = False
        self._thread: threading.Thread | None = threading.Thread(target=self._run, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the system has no more threads
            self._thread = None

    def write(self, chunk: Piece, offset: int) -> None:
        """Queues a chunk to write; waits while two jobs are unfinished."""
        if self._thread is None:
            _write_at(self.descriptor, chunk, offset)
            return
        self._free_slots.acquire()
        self._check()
        self._work.put(((chunk,), offset))

    def queue_chunks(self, pieces: Iterator[Piece], offset: int) -> bool:
        """Queues chunks to compute and write.

        Returns False, and queues nothing, if two jobs are unfinished or the thread could not start.
        """
        if self._thread is None or not self._free_slots.acquire(blocking=False):
            return False
        self._check()
        self._work.put((pieces, offset))
        return True

    def wait(self) -> None:
        """Waits until the queued chunks are written."""
        for _ in range(2):
            self._free_slots.acquire()
        self._free_slots.release(2)

    def finish(self) -> None:
        """Waits until everything is written, ends the thread, and raises its error if it failed."""
        self._end()
        self._check()

    def stop(self) -> None:
        """Discards unwritten chunks and ends the thread; afterwards it no longer uses the file."""
        self._is_stopped = True
        self._end()

    def _end(self) -> None:
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            pieces, offset = work
            try:
                for chunk in pieces if self._error is None else ():
                    if self._is_stopped:
                        break
                    _write_at(self.descriptor, chunk, offset)
                    offset += len(chunk)
            except Exception as error:  # `_check` raises it in the calling thread
                self._error = error
            self._free_slots.release()


def _write_at(descriptor: int, chunk: Piece, offset: int) -> None:
    """Writes a chunk at an offset of the file; a large chunk of zeros becomes a hole."""
    if _is_all_zeros(chunk):
        return
    view = memoryview(chunk)
    while len(view):
        written_bytes = os.pwrite(descriptor, view, offset)
        if not written_bytes:  # some file systems report a full disk this way
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        view, offset = view[written_bytes:], offset + written_bytes


def _is_all_zeros(chunk: Piece) -> bool:
    """Whether a chunk is large and all zeros; as a hole in the file it takes no disk space."""
    if len(chunk) < _BLOCK_BYTES or any(chunk[:64]) or any(chunk[-64:]):
        return False
    import numpy as np

    return not np.frombuffer(chunk, np.uint8)[: len(chunk) // 8 * 8].view(np.uint64).any()


def _list_pieces(parts: Iterable[Part]) -> Iterator[bytes | memoryview]:
    for part in parts:
        if isinstance(part, bytes):
            yield part
        else:
            yield from part.read_pieces()


def _join_batches(chunks: Iterator[bytes | memoryview]) -> Iterator[Piece]:
    """Joins small chunks into blocks of about 1 MB.

    Large chunks are yielded without a copy and are valid only until the next iteration.
    """
    block = bytearray()
    for chunk in chunks:
        if len(chunk) >= _BLOCK_BYTES:
            if block:
                yield block
                block = bytearray()
            yield chunk
            continue
        block += chunk
        if len(block) >= _BLOCK_BYTES:
            yield block
            block = bytearray()
    if block:
        yield block
