"""Computes canonical forms of attributes, weights and function bodies, which do not depend on names.

In a canonical form, the names of values in a subgraph or function are replaced by their order of appearance.
Numbers keep their type. A tensor is represented by its type, its shape and a sample of its bytes. Equal forms
get the same integer, so that matching compares only integers. Different samples prove that two weights
differ. If the samples are equal, `Forms.has_equal_content` reads both weights in chunks and compares them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from explorer.engine.formats.onnx.protobuf_wire import iterate_fields
from explorer.engine.graph.model import AttributeRef, FileSpan, Graph, Inline, Model, Node, Payload, Tensor
from explorer.engine.progress import Cancel, stop_if

Form = tuple[Any, ...]

_MAX_SAMPLED_WHOLE = 4096
"""Maximum size in bytes of a payload whose sample is the entire payload."""

_SAMPLE_COUNT, _SAMPLE_BYTES = 8, 64
"""Number of samples of a larger payload, and bytes of each, at equal distances."""
_CHUNK_BYTES = 1 << 20


class Forms:
    """Canonical forms of both models of a diff, with a common numbering: equal forms have the same integer.

    Args:
        cancel: Callback between chunks of weights; the comparison stops when it returns True.
    """

    def __init__(self, cancel: Cancel = None) -> None:
        self.cancel = cancel
        self._ids: dict[Form, int] = {}
        self._functions: dict[tuple[int, tuple[str, str, str]], int] = {}
        self._samples: dict[int, Form] = {}
        self._equal: dict[tuple[int, int], bool] = {}
        # three of these caches have ids of objects as keys; the references keep these objects alive
        self._referenced: list[object] = []

    def number_form(self, form: Form) -> int:
        """Returns the integer of `form`; equal forms have the same integer."""
        return self._ids.setdefault(form, len(self._ids))

    def number_operator(self, model: Model, node: Node) -> int:
        """Returns the integer of a node's operator, or of its function's body, without attributes."""
        if node.key in model.functions:
            return self.number_form(("call", *node.key, self.number_function(model, node.key)))
        return self.number_form(("op", *node.key))

    def number_function(self, model: Model, key: tuple[str, str, str]) -> int:
        """Returns the integer of a local function, including the functions that it calls."""
        memo_key = id(model), key
        if memo_key not in self._functions:
            self._referenced.append(model)
            body = model.functions[key]
            form = self._encode_body(model, body.nodes, body.inputs, body.outputs, {}, [])
            opsets = tuple(sorted(body.opsets.items()))
            remaining_fields = body.attributes, self._encode_mapping(model, body.defaults, {}, []), opsets
            self._functions[memo_key] = self.number_form(("function", form, *remaining_fields))
        return self._functions[memo_key]

    def number_attributes(self, model: Model, node: Node) -> int:
        """Returns the integer of a node's attributes, or -1 without any. Captured names are ignored."""
        if not node.attributes:
            return -1
        return self.number_form(self._encode_mapping(model, node.attributes, {}, []))

    def number_attribute(self, model: Model, value: Any) -> int:
        """Returns the integer of an attribute value."""
        return self.number_form(self._encode_value(model, value, {}, []))

    def get_sample(self, tensor: Tensor) -> Form:
        """Returns type, shape and some bytes of a tensor; equal tensors have equal samples."""
        form = self._samples.get(id(tensor))
        if form is None:
            self._referenced.append(tensor)
            form = self._samples[id(tensor)] = (tensor.dtype, tensor.shape, _sample_bytes(tensor))
        return form

    def has_equal_content(self, before: Tensor, after: Tensor) -> bool:
        """Whether two tensors of the same type and shape have the same bytes.

        Raises:
            Cancelled: `cancel` returned True.
        """
        key = id(before), id(after)
        if key not in self._equal:
            self._referenced += (before, after)
            self._equal[key] = self._has_same_bytes(before, after)
        return self._equal[key]

    def _has_same_bytes(self, before: Tensor, after: Tensor) -> bool:
        """Whether two tensors have the same bytes; two without bytes are equal."""
        a, b = _read_payload(before), _read_payload(after)
        if a is None or b is None:
            return a is b
        if a is b or (isinstance(a, FileSpan) and a == b):
            return True
        if a.size != b.size or self.get_sample(before) != self.get_sample(after):
            return False
        if a.size <= _MAX_SAMPLED_WHOLE:
            return True  # the sample is the entire payload
        if isinstance(a, FileSpan) and isinstance(b, FileSpan):
            return self._has_same_spans(a, b)
        chunks_a, chunks_b = _iterate_chunks(a), _iterate_chunks(b)
        for chunk_a, chunk_b in zip(chunks_a, chunks_b, strict=True):
            stop_if(self.cancel)
            if chunk_a != chunk_b:
                return False
        return True

    def _has_same_spans(self, a: FileSpan, b: FileSpan) -> bool:
        bytes_a, bytes_b = a.source.map, b.source.map
        for start in range(0, a.size, _CHUNK_BYTES):
            stop_if(self.cancel)
            stop = min(start + _CHUNK_BYTES, a.size)
            # copying to bytes and comparing is faster than comparing memoryviews element by element
            if bytes_a[a.offset + start : a.offset + stop] != bytes_b[b.offset + start : b.offset + stop]:
                return False
            a.release(start, stop)
            b.release(start, stop)
        return True

    def _encode_mapping(
        self, model: Model, values: Mapping[str, Any], names: dict[str, Form], outer_names: list[str]
    ) -> Form:
        return tuple(
            (name, self._encode_value(model, values[name], names, outer_names)) for name in sorted(values)
        )

    def _encode_value(self, model: Model, value: Any, names: dict[str, Form], outer_names: list[str]) -> Form:
        if (form := encode_literal(value)) is not None:
            return form
        if isinstance(value, (tuple, list)):
            return "many", tuple(self._encode_value(model, element, names, outer_names) for element in value)
        if isinstance(value, Tensor):
            return "tensor", self.get_sample(value)
        if isinstance(value, AttributeRef):
            return "ref", value.name
        if isinstance(value, Graph):
            return "graph", self._encode_graph(model, value, names, outer_names)
        return "none", repr(value)

    def _encode_graph(
        self, model: Model, graph: Graph, outer: dict[str, Form], outer_names: list[str]
    ) -> Form:
        """Returns the form of a nested graph: its inputs, weights and nodes, without names."""
        names = dict(outer)
        for value in graph.inputs:
            names[value.name] = ("in", len(names))
        weights = []
        for name, tensor in graph.initializers.items():
            names[name] = ("weight", len(names))
            weights.append(self.get_sample(tensor))
        declared = tuple((v.dtype, v.shape) for v in graph.inputs)
        outputs = [v.name for v in graph.outputs]
        return (
            declared,
            tuple(weights),
            self._encode_body(model, graph.nodes, (), outputs, names, outer_names),
        )

    def _encode_body(
        self,
        model: Model,
        nodes: Sequence[Node],
        inputs: Sequence[str],
        outputs: Sequence[str],
        names: dict[str, Form],
        outer_names: list[str],
    ) -> Form:
        """Returns the form of nodes and outputs, with each name replaced by the place that defines it."""
        names = dict(names)
        for name in inputs:
            names[name] = ("in", len(names))

        def encode_name(name: str) -> Form:
            if not name:
                return ()
            if name not in names:
                # a value from an outer graph; the caller compares its source
                names[name] = ("free", len(outer_names))
                outer_names.append(name)
            return names[name]

        forms: list[Form] = []
        for i, node in enumerate(nodes):
            input_names = tuple(encode_name(name) for name in node.inputs)
            for slot, name in enumerate(node.outputs):
                if name:
                    names[name] = ("node", i, slot, len(names))
            attributes = (
                self._encode_mapping(model, node.attributes, names, outer_names) if node.attributes else ()
            )
            forms.append((self.number_operator(model, node), input_names, len(node.outputs), attributes))
        return tuple(forms), tuple(encode_name(name) for name in outputs)


def encode_literal(value: Any) -> Form | None:
    """Returns the form of a number, a string, bytes or a span of a file, or None for other values."""
    if isinstance(value, float):
        return "f", struct.pack("<d", value)  # bytes, so that NaN equals itself and -0.0 differs from 0.0
    if isinstance(value, (int, str, bytes)):
        return type(value).__name__, value
    return ("span", bytes(value.view())) if isinstance(value, FileSpan) else None


def list_tensors(value: Any) -> Iterator[Tensor]:
    """Yields every tensor in an attribute value and its subgraphs, in canonical order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for element in value:
            yield from list_tensors(element)
    elif isinstance(value, Graph):
        yield from value.initializers.values()
        yield from list_body_tensors(value.nodes)


def list_body_tensors(nodes: Sequence[Node]) -> Iterator[Tensor]:
    """Yields every tensor in the attributes of `nodes`, in canonical order."""
    for node in nodes:
        for name in sorted(node.attributes):
            yield from list_tensors(node.attributes[name])


def _read_payload(tensor: Tensor) -> Payload | None:
    """Returns the bytes of a tensor, or None if it has none.

    The bytes of strings are in the protobuf record: its field 6, `string_data`, repeated for each string.
    """
    record = tensor.record
    if tensor.dtype != "string" or record is None:
        return tensor.payload
    encoded = record.view()
    strings = [
        bytes(encoded[start:end])
        for number, wire, _, start, end in iterate_fields(encoded, 0, record.size)
        if number == 6 and wire == 2
    ]
    return Inline(b"".join(struct.pack("<Q", len(text)) + text for text in strings))


def _sample_bytes(tensor: Tensor) -> bytes:
    """Returns all bytes of a small tensor, or a few parts of a large one; empty if it has none."""
    payload = _read_payload(tensor)
    if payload is None:
        return b""
    size = payload.size
    if size <= _MAX_SAMPLED_WHOLE:
        return bytes(payload.view())
    offsets = [i * (size - _SAMPLE_BYTES) // (_SAMPLE_COUNT - 1) for i in range(_SAMPLE_COUNT)]
    if isinstance(payload, (FileSpan, Inline)):
        view = payload.view()
        return b"".join(bytes(view[offset : offset + _SAMPLE_BYTES]) for offset in offsets)
    # reading computes the payload, so read it in order and keep only the samples
    samples = bytearray()
    position = 0
    for chunk_data in payload.read_pieces():
        chunk = memoryview(chunk_data).cast("B")
        for offset in offsets:
            first, last = max(offset, position), min(offset + _SAMPLE_BYTES, position + len(chunk))
            if first < last:
                samples += chunk[first - position : last - position]
        position += len(chunk)
    return bytes(samples)


def _iterate_chunks(payload: Payload) -> Iterator[bytes]:
    """Yields a payload in chunks of `_CHUNK_BYTES`; only the last one may be smaller.

    Payloads whose pieces have different sizes can be compared chunk by chunk.
    """
    buffer = bytearray()
    for chunk_data in payload.read_pieces():
        chunk = memoryview(chunk_data).cast("B")
        for start in range(0, len(chunk), _CHUNK_BYTES):
            buffer += chunk[start : start + _CHUNK_BYTES]
            while len(buffer) >= _CHUNK_BYTES:
                yield bytes(buffer[:_CHUNK_BYTES])
                del buffer[:_CHUNK_BYTES]
    if buffer:
        yield bytes(buffer)
