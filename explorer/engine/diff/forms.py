"""Canonical forms: when two attributes, weights or function bodies are the same, whatever their names.

Everything that a diff compares is brought to a canonical form here: names of values inside a subgraph
or function are replaced by their order of appearance, numbers keep their type, tensors are told apart
by type, shape and a sample of their bytes. Equal forms get the same small integer, so that matching
compares integers only. The sample tells weights apart without reading them; whether two weights are
really equal is decided by `Forms.equal_content`, which reads both, a slab at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from explorer.engine.formats.onnx.protobuf_wire import fields
from explorer.engine.graph.model import AttributeRef, FileSpan, Graph, Inline, Model, Node, Payload, Tensor
from explorer.engine.progress import Cancel, stop_if

Form = tuple[Any, ...]

_WHOLE = 4096
"""Payloads up to this many bytes are their own sample."""

_SAMPLES = 8
_SAMPLE = 64
_CHUNK = 1 << 20


class Forms:
    """Canonical forms of both models of a diff, numbered together.

    Args:
        cancel: Called between slabs of weights; True stops the comparison.
    """

    def __init__(self, cancel: Cancel = None) -> None:
        self.cancel = cancel
        self._ids: dict[Form, int] = {}
        self._functions: dict[tuple[int, tuple[str, str, str]], int] = {}
        self._samples: dict[int, Form] = {}
        self._equal: dict[tuple[int, int], bool] = {}
        # keys above are ids: the objects must live as long
        self._kept: list[object] = []

    def number(self, form: Form) -> int:
        """The integer that stands for `form`, the same for equal forms."""
        return self._ids.setdefault(form, len(self._ids))

    def operator(self, model: Model, node: Node) -> int:
        """The meaning of a node without attributes: its operator, or the body of its function."""
        if node.key in model.functions:
            return self.number(("call", *node.key, self.function(model, node.key)))
        return self.number(("op", *node.key))

    def function(self, model: Model, key: tuple[str, str, str]) -> int:
        """A local function's meaning: its body with the bodies of called functions."""
        memo = id(model), key
        if memo not in self._functions:
            self._kept.append(model)
            body = model.functions[key]
            form = self._body(model, body.nodes, body.inputs, body.outputs, {}, [])
            opsets = tuple(sorted(body.opsets.items()))
            rest = body.attributes, self._mapping(model, body.defaults, {}, []), opsets
            self._functions[memo] = self.number(("function", form, *rest))
        return self._functions[memo]

    def attributes(self, model: Model, node: Node) -> int:
        """All attributes of a node, without the names of captured values."""
        if not node.attributes:
            return -1
        return self.number(self._mapping(model, node.attributes, {}, []))

    def attribute(self, model: Model, value: Any) -> int:
        """One attribute's value."""
        return self.number(self._value(model, value, {}, []))

    def sample(self, tensor: Tensor) -> Form:
        """Type, shape and some bytes of a tensor: equal tensors have equal samples."""
        form = self._samples.get(id(tensor))
        if form is None:
            self._kept.append(tensor)
            form = self._samples[id(tensor)] = (tensor.dtype, tensor.shape, _sample(tensor))
        return form

    def equal_content(self, before: Tensor, after: Tensor) -> bool:
        """Whether two tensors of the same type and shape hold the same bytes.

        Raises:
            Cancelled: `cancel` returned True.
        """
        key = id(before), id(after)
        if key not in self._equal:
            self._kept += (before, after)
            self._equal[key] = self._same_bytes(before, after)
        return self._equal[key]

    def _same_bytes(self, before: Tensor, after: Tensor) -> bool:
        a, b = _payload(before), _payload(after)
        if a is None or b is None:
            return a is b
        if a is b or (isinstance(a, FileSpan) and a == b):
            return True
        if a.size != b.size or self.sample(before) != self.sample(after):
            return False
        if a.size <= _WHOLE:
            return True  # the sample is all of it
        if isinstance(a, FileSpan) and isinstance(b, FileSpan):
            return self._same_spans(a, b)
        chunks_a, chunks_b = _chunks(a), _chunks(b)
        for chunk_a, chunk_b in zip(chunks_a, chunks_b, strict=True):
            stop_if(self.cancel)
            if chunk_a != chunk_b:
                return False
        return True

    def _same_spans(self, a: FileSpan, b: FileSpan) -> bool:
        bytes_a, bytes_b = a.source.map, b.source.map
        for at in range(0, a.size, _CHUNK):
            stop_if(self.cancel)
            stop = min(at + _CHUNK, a.size)
            # two copies and a memcmp: comparing memoryviews goes element by element
            if bytes_a[a.offset + at : a.offset + stop] != bytes_b[b.offset + at : b.offset + stop]:
                return False
            a.release(at, stop)
            b.release(at, stop)
        return True

    def _mapping(
        self, model: Model, values: Mapping[str, Any], names: dict[str, Form], free: list[str]
    ) -> Form:
        return tuple((name, self._value(model, values[name], names, free)) for name in sorted(values))

    def _value(self, model: Model, value: Any, names: dict[str, Form], free: list[str]) -> Form:
        if (form := literal_form(value)) is not None:
            return form
        if isinstance(value, (tuple, list)):
            return "many", tuple(self._value(model, element, names, free) for element in value)
        if isinstance(value, Tensor):
            return "tensor", self.sample(value)
        if isinstance(value, AttributeRef):
            return "ref", value.name
        if isinstance(value, Graph):
            return "graph", self._graph(model, value, names, free)
        return "none", repr(value)

    def _graph(self, model: Model, graph: Graph, outer: dict[str, Form], free: list[str]) -> Form:
        names = dict(outer)
        for value in graph.inputs:
            names[value.name] = ("in", len(names))
        weights = []
        for name, tensor in graph.initializers.items():
            names[name] = ("weight", len(names))
            weights.append(self.sample(tensor))
        declared = tuple((v.dtype, v.shape) for v in graph.inputs)
        outputs = [v.name for v in graph.outputs]
        return declared, tuple(weights), self._body(model, graph.nodes, (), outputs, names, free)

    def _body(
        self,
        model: Model,
        nodes: Sequence[Node],
        inputs: Sequence[str],
        outputs: Sequence[str],
        names: dict[str, Form],
        free: list[str],
    ) -> Form:
        names = dict(names)
        for name in inputs:
            names[name] = ("in", len(names))

        def place(name: str) -> Form:
            if not name:
                return ()
            if name not in names:
                # a value from an outer graph: the caller compares which one
                names[name] = ("free", len(free))
                free.append(name)
            return names[name]

        forms: list[Form] = []
        for i, node in enumerate(nodes):
            takes = tuple(place(name) for name in node.inputs)
            for slot, name in enumerate(node.outputs):
                if name:
                    names[name] = ("node", i, slot, len(names))
            attributes = self._mapping(model, node.attributes, names, free) if node.attributes else ()
            forms.append((self.operator(model, node), takes, len(node.outputs), attributes))
        return tuple(forms), tuple(place(name) for name in outputs)


def literal_form(value: Any) -> Form | None:
    """The form of a number, a string or bytes; None for composed values."""
    if isinstance(value, float):
        return "f", struct.pack("<d", value)  # NaN equals itself, and -0.0 is not 0.0
    if isinstance(value, (int, str, bytes)):
        return type(value).__name__, value
    return ("span", bytes(value.view())) if isinstance(value, FileSpan) else None


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in an attribute's value, those in subgraphs included, in canonical order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for element in value:
            yield from tensors(element)
    elif isinstance(value, Graph):
        yield from value.initializers.values()
        yield from body_tensors(value.nodes)


def body_tensors(nodes: Sequence[Node]) -> Iterator[Tensor]:
    """Every tensor in the attributes of `nodes`, in canonical order."""
    for node in nodes:
        for name in sorted(node.attributes):
            yield from tensors(node.attributes[name])


def _payload(tensor: Tensor) -> Payload | None:
    """The bytes of a tensor; the reader keeps strings and sparse data only as their record."""
    record = tensor.record
    if tensor.dtype != "string" or record is None:
        return tensor.payload
    encoded = record.view()
    strings = [
        bytes(encoded[at:end])
        for number, wire, _, at, end in fields(encoded, 0, record.size)
        if number == 6 and wire == 2
    ]
    return Inline(b"".join(struct.pack("<Q", len(text)) + text for text in strings))


def _sample(tensor: Tensor) -> bytes:
    payload = _payload(tensor)
    if payload is None:
        return b""
    size = payload.size
    if size <= _WHOLE:
        return bytes(payload.view())
    places = [i * (size - _SAMPLE) // (_SAMPLES - 1) for i in range(_SAMPLES)]
    if isinstance(payload, (FileSpan, Inline)):
        view = payload.view()
        return b"".join(bytes(view[at : at + _SAMPLE]) for at in places)
    # computed on reading, so read it in order and keep only the sampled places
    out = bytearray()
    begin = 0
    for piece in payload.pieces():
        chunk = memoryview(piece).cast("B")
        for at in places:
            first, last = max(at, begin), min(at + _SAMPLE, begin + len(chunk))
            if first < last:
                out += chunk[first - begin : last - begin]
        begin += len(chunk)
    return bytes(out)


def _chunks(payload: Payload) -> Iterator[bytes]:
    """The bytes in chunks of one size, so that two payloads in different pieces can be compared."""
    rest = bytearray()
    for piece in payload.pieces():
        chunk = memoryview(piece).cast("B")
        for at in range(0, len(chunk), _CHUNK):
            rest += chunk[at : at + _CHUNK]
            while len(rest) >= _CHUNK:
                yield bytes(rest[:_CHUNK])
                del rest[:_CHUNK]
    if rest:
        yield bytes(rest)
