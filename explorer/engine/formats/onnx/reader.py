"""ONNX reader: reads a file into a `Model`, without its weights.

The file is mapped and walked by its length prefixes; a weight becomes the place of its bytes. Files are not
trusted: lengths and nesting are checked here, and sizes and external paths in `tensors`, once, so that all
other modules can trust a model.

Field numbers are those of onnx.proto (IR version 13).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from explorer.base.errors import BadModel, nearest
from explorer.engine.formats.onnx import messages
from explorer.engine.formats.onnx.messages import decoded, not_onnx
from explorer.engine.formats.onnx.protobuf_wire import fields, packed_varints, signed, varint_at
from explorer.engine.formats.onnx.tensors import TensorReader
from explorer.engine.graph.model import (
    DTYPES,
    AttributeRef,
    FileSpan,
    Function,
    Graph,
    Model,
    Node,
    Source,
    Tensor,
    Value,
)
from explorer.facts import Dim
from explorer.host.gc_pause import gc_pause

MAX_DEPTH = 32
"""Most levels of nested subgraphs; real models stay below 5."""

_MOST_ALIKE = 256
"""Largest size of attributes, in bytes, for which nodes are compared."""

_MOST_REST = 320
"""Largest size of a node from its operator on, in bytes, that identifies its kind."""

_SWEPT = 1 << 24
"""Bytes of a file after which the pages read so far are released."""

_NODE, _GRAPH_NAME, _STORED, _FEED, _RESULT, _VALUE = (number << 3 | 2 for number in (1, 2, 5, 11, 12, 13))
"""Tags of GraphProto's fields, all of which have a length."""
_GRAPH_TAGS = frozenset((_NODE, _GRAPH_NAME, _STORED, _FEED, _RESULT, _VALUE))
_INPUT, _OUTPUT, _NAME, _OP, _ATTRIBUTE, _DOMAIN, _OVERLOAD, _METADATA = (
    number << 3 | 2 for number in (1, 2, 3, 4, 5, 7, 8, 9)
)
"""Tags of NodeProto's fields, all of which have a length."""
_NODE_TAGS = frozenset((_INPUT, _OUTPUT, _NAME, _OP, _ATTRIBUTE, _DOMAIN, _OVERLOAD, _METADATA))
_OWN_TAGS = frozenset((_INPUT, _OUTPUT, _NAME, _METADATA))
"""Those of `_NODE_TAGS` that differ for each node."""


def read(path: str) -> Model:
    """The model in the file at `path`.

    Args:
        path: An .onnx file; external data must lie in the same folder or below it.

    Returns:
        The model. Its weights stay in the file, which must not change while the model is in use.

    Raises:
        BadModel: The file is missing, is not an ONNX model, or contradicts itself.
    """
    try:
        source = Source(path)
    except IsADirectoryError:
        raise BadModel("this is a directory, not a model", where=path, hint="name a file in it") from None
    except FileNotFoundError:
        folder = os.path.dirname(path) or "."
        beside = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        hint = nearest(
            os.path.basename(path), (f for f in beside if f.endswith(".onnx") and f != os.path.basename(path))
        )
        raise BadModel("no such file", where=path, hint=hint) from None
    except OSError as error:
        raise BadModel(f"cannot be read: {error.strerror or error}", where=path) from None
    if not source.size:
        raise BadModel("the file is empty", where=path)
    refusal = not_onnx(source.map[:1])
    if refusal is not None:
        raise BadModel(refusal.what, where=path, hint=refusal.hint)
    reader = _Reader(source)
    try:
        with gc_pause():
            return reader.model()
    except BadModel as error:
        raise BadModel(error.what, where=error.where or path, hint=error.hint) from None
    except RecursionError:
        raise BadModel("its graphs are nested too deeply", where=path) from None
    finally:
        reader.forget_nodes()
        reader.names.clear()
        source.forget()


_Kind = tuple[str, str, str, bytes | None, Callable[[], Mapping[str, Any]] | None]
"""Operator, domain, overload, key of equal attributes, and their decoder."""


class _Reader(TensorReader):
    """Reads everything of one file except its tensors."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.decoders: dict[bytes, tuple[bytes, Callable[[], Mapping[str, Any]]]] = {}
        self.kinds: dict[bytes, _Kind] = {}

    def forget_nodes(self) -> None:
        """Drops the attribute decoders, which refer to the reader: the cycle would keep the file mapped."""
        self.decoders.clear()
        self.kinds.clear()

    def model(self) -> Model:
        graph: tuple[int, int] | None = None
        ir_version, producer, producer_version = 0, "", ""
        opsets: dict[str, int] = {}
        functions: dict[tuple[str, str, str], Function] = {}
        metadata: dict[str, str] = {}
        extra: list[FileSpan] = []
        for number, wire, begin, at, end in fields(self.data, 0, self.source.size):
            if number == 7 and wire == 2:
                graph = at, end
            elif number == 1 and wire == 0:
                ir_version = at
            elif number == 2 and wire == 2:
                producer = self.text(at, end)
            elif number == 3 and wire == 2:
                producer_version = self.text(at, end)
            elif number == 8 and wire == 2:
                domain, version = messages.opset(self.data, at, end)
                opsets[domain] = version
            elif number == 14 and wire == 2:
                key, value = self.pair(at, end)
                metadata[key] = value
            elif number == 25 and wire == 2:
                function = self.function(at, end)
                if function.key in functions:
                    raise BadModel(f"function '{function.name}' is defined twice")
                functions[function.key] = function
            else:
                extra.append(self.span(begin, end))
        if graph is None:
            raise BadModel("this is not an ONNX model", hint="it holds no graph")
        if not opsets:
            # before IR version 3 there were no imports: the default operator set has version 1
            opsets[""] = 1
        return Model(
            graph=self.graph(*graph, depth=0),
            opsets=opsets,
            ir_version=ir_version,
            functions=functions,
            producer=producer,
            producer_version=producer_version,
            path=self.source.path,
            metadata=metadata,
            extra=tuple(extra),
            source=self.source,
            externals=self.externals,
        )

    def graph(self, start: int, stop: int, *, depth: int) -> Graph:
        if depth > MAX_DEPTH:
            raise BadModel(f"graphs are nested more than {MAX_DEPTH} deep")
        name = ""
        nodes: list[Node] = []
        inputs: list[Value] = []
        outputs: list[Value] = []
        values: list[Value] = []
        tensors: dict[str, Tensor] = {}
        extra: list[FileSpan] = []
        buffer, end, swept = self.data, start, start
        while end < stop:
            begin, tag = end, buffer[end]
            if tag in _GRAPH_TAGS and begin + 4 < stop:
                # read without a call: most of a graph is such fields
                size, at = buffer[begin + 1], begin + 2
                if size > 127:
                    more = buffer[at]
                    if more > 127:
                        size, at = varint_at(buffer, begin + 1, stop)
                    else:
                        size, at = size + (more << 7) - 128, at + 1
                end = at + size
            if end == begin or end > stop:
                number, wire, at, end = self.field(begin, stop)
                tag = number << 3 | wire
            if begin - swept > _SWEPT:
                self.source.forget()
                swept = begin
            if tag == _NODE:
                nodes.append(self.node(at, end, depth))
            elif tag == _STORED:
                tensor = self.tensor(at, end)
                if tensor.name in tensors:
                    raise BadModel(f"initializer '{tensor.name}' is defined twice")
                tensors[tensor.name] = tensor
            elif tag == _VALUE:
                values.append(self.value(at, end))
            elif tag == _FEED:
                inputs.append(self.value(at, end))
            elif tag == _RESULT:
                outputs.append(self.value(at, end))
            elif tag == _GRAPH_NAME:
                name = self.text(at, end)
            else:
                extra.append(self.span(begin, end))
        return Graph(name, tuple(nodes), tuple(inputs), tuple(outputs), tensors, tuple(values), tuple(extra))

    def node(self, start: int, stop: int, depth: int) -> Node:
        # copies all bytes and reads one-byte tags and lengths without a call: most of a graph is nodes
        encoded = self.data[start:stop]
        inputs: list[str] = []
        outputs: list[str] = []
        # a value is made once and read many times: equal names share one string
        same = self.names.setdefault
        name, rest = "", b""
        at, end = 0, stop - start
        try:
            # writers put names first: the rest is equal in all nodes of a kind
            while at < end:
                tag, size, first = encoded[at], encoded[at + 1], at + 2
                if size > 127:
                    break
                if tag == _INPUT:
                    at = first + size
                    value = encoded[first:at].decode()
                    inputs.append(same(value, value))
                elif tag == _OUTPUT:
                    at = first + size
                    value = encoded[first:at].decode()
                    outputs.append(same(value, value))
                elif tag == _NAME:
                    at = first + size
                    name = encoded[first:at].decode()
                else:
                    if tag == _OP and end - at <= _MOST_REST:
                        rest = encoded[at:]
                        kind = self.kinds.get(rest)
                        if kind is not None:
                            op, domain, overload, alike, decode = kind
                            record = FileSpan(self.source, start, end)
                            return Node(
                                op, inputs, outputs, name, domain, overload, None, None, record, decode, alike
                            )
                    break
        except UnicodeDecodeError:
            return self.other_node(encoded, start, depth, 0, [], [], "", b"")
        except IndexError:
            pass  # the node is damaged; `other_node` goes on from here
        return self.other_node(encoded, start, depth, at, inputs, outputs, name, rest)

    def other_node(
        self,
        encoded: bytes,
        start: int,
        depth: int,
        at: int,
        inputs: list[str],
        outputs: list[str],
        name: str,
        rest: bytes,
    ) -> Node:
        """The first node of a kind, read up to `at`; `rest` identifies the kind."""
        op = domain = overload = ""
        attributes: list[tuple[int, int]] = []
        metadata: dict[str, str] = {}
        end, stop = len(encoded), start + len(encoded)
        try:
            while at < end:
                tag, size, first = encoded[at], encoded[at + 1], at + 2
                at = first + size
                if size > 127 or tag not in _NODE_TAGS:
                    number, wire, begin, stop_ = self.field(start + first - 2, stop)
                    first, at = begin - start, stop_ - start
                    if wire != 2:
                        continue
                    tag = number << 3 | 2
                if tag in _OWN_TAGS:
                    rest = b""
                if tag == _INPUT:
                    inputs.append(decoded(encoded[first:at]))
                elif tag == _OUTPUT:
                    outputs.append(decoded(encoded[first:at]))
                elif tag == _NAME:
                    name = decoded(encoded[first:at])
                elif tag == _OP:
                    op = decoded(encoded[first:at])
                elif tag == _ATTRIBUTE:
                    attributes.append((first, at))
                elif tag == _DOMAIN:
                    domain = decoded(encoded[first:at])
                elif tag == _OVERLOAD:
                    overload = decoded(encoded[first:at])
                elif tag == _METADATA:
                    key, value = self.pair(start + first, start + at)
                    metadata[key] = value
        except IndexError:
            at = end + 1
        if at > end:
            for _ in fields(self.data, start, stop):
                pass  # raises the error for the length that does not fit
        alike, decode = self.attributes(encoded, start, attributes, depth) if attributes else (b"", None)
        if rest:
            self.kinds[rest] = op, domain, overload, alike, decode
        record = FileSpan(self.source, start, end)
        return Node(op, inputs, outputs, name, domain, overload, None, metadata, record, decode, alike)

    def attributes(
        self, encoded: bytes, start: int, places: Sequence[tuple[int, int]], depth: int
    ) -> tuple[bytes | None, Callable[[], Mapping[str, Any]]]:
        """Key that is equal for nodes with equal attributes, and their common decoder."""
        raw = b"".join([encoded[first:last] for first, last in places])
        decoder = self.decoders.get(raw)
        if decoder is None:
            spans = [(start + first, start + last) for first, last in places]
            if len(raw) > _MOST_ALIKE:
                return None, lambda: dict(self.attribute(a, b, depth) for a, b in spans)
            attributes: dict[str, Any] = {}

            def decode() -> Mapping[str, Any]:
                if not attributes:
                    attributes.update(self.attribute(a, b, depth) for a, b in spans)
                    self.forget_nodes()  # of graphs among them
                return attributes

            decoder = self.decoders[raw] = raw, decode
        return decoder

    def field(self, at: int, stop: int) -> tuple[int, int, int, int]:
        """The field at `at`: number, wire type, begin of its payload (or its value), end.

        Raises:
            BadModel: It does not fit in its message.
        """
        number, wire, _, first, end = next(fields(self.data, at, stop))
        return number, wire, first, end

    def attribute(self, start: int, stop: int, depth: int) -> tuple[str, Any]:
        """Name and value of an AttributeProto."""
        buffer = self.data
        name, kind, reference = "", 0, ""
        single: dict[int, Any] = {}
        repeated: dict[int, list[Any]] = {}
        for number, wire, _, at, end in fields(buffer, start, stop):
            if number == 1 and wire == 2:
                name = self.text(at, end)
            elif number == 20 and wire == 0:
                kind = at
            elif number == 21 and wire == 2:
                reference = self.text(at, end)
            elif number == 2 and wire == 5:
                single[1] = struct.unpack_from("<f", buffer, at)[0]
            elif number == 3 and wire == 0:
                single[2] = signed(at)
            elif number == 4 and wire == 2:
                single[3] = _text_or_bytes(buffer[at:end])
            elif number == 5 and wire == 2:
                single[4] = self.tensor(at, end)
            elif number == 6 and wire == 2:
                single[5] = self.graph(at, end, depth=depth + 1)
            elif number == 7 and wire in (2, 5):
                if (end - at) % 4:
                    raise BadModel(f"attribute '{name}' holds a broken list of floats")
                repeated.setdefault(6, []).extend(struct.unpack(f"<{(end - at) // 4}f", buffer[at:end]))
            elif number == 8 and wire == 0:
                repeated.setdefault(7, []).append(signed(at))
            elif number == 8 and wire == 2:
                repeated.setdefault(7, []).extend(map(signed, packed_varints(buffer, at, end)))
            elif number == 9 and wire == 2:
                repeated.setdefault(8, []).append(_text_or_bytes(buffer[at:end]))
            elif number == 10 and wire == 2:
                repeated.setdefault(9, []).append(self.tensor(at, end))
            elif number == 11 and wire == 2:
                repeated.setdefault(10, []).append(self.graph(at, end, depth=depth + 1))
            elif number in (14, 22) and wire == 2:
                single[{14: 13, 22: 11}[number]] = self.span(at, end)
            elif number in (15, 23) and wire == 2:
                repeated.setdefault({15: 14, 23: 12}[number], []).append(self.span(at, end))
        if reference:
            return name, AttributeRef(reference, kind)
        if not kind:  # IR version 1 had no type field
            kind = next(iter(single), 0) or next(iter(repeated), 0)
        if kind in (6, 7, 8, 9, 10, 12, 14):
            return name, tuple(repeated.get(kind, ()))
        # proto3 writers leave out zeros and empty strings
        value = single.get(kind, {1: 0.0, 2: 0, 3: ""}.get(kind))
        if value is None:
            raise BadModel(f"attribute '{name}' does not have the value that its type {kind} announces")
        return name, value

    def function(self, start: int, stop: int) -> Function:
        texts: dict[int, list[str]] = {number: [] for number in (1, 4, 5, 6, 10, 13)}
        defaults: dict[str, Any] = {}
        nodes: list[Node] = []
        opsets: dict[str, int] = {}
        metadata: dict[str, str] = {}
        for number, wire, _, at, end in fields(self.data, start, stop):
            if wire != 2:
                continue
            if number in texts:
                texts[number].append(self.text(at, end))
            elif number == 7:
                nodes.append(self.node(at, end, 1))
            elif number == 9:
                key, version = messages.opset(self.data, at, end)
                opsets[key] = version
            elif number == 11:
                attribute, value = self.attribute(at, end, 1)
                defaults[attribute] = value
            elif number == 14:
                key_, value_ = self.pair(at, end)
                metadata[key_] = value_
        name, domain, overload = (texts[number][-1] if texts[number] else "" for number in (1, 10, 13))
        inputs, outputs, attributes = (tuple(texts[number]) for number in (4, 5, 6))
        record = self.span(start, stop)
        return Function(
            domain,
            name,
            inputs,
            outputs,
            tuple(nodes),
            opsets,
            attributes,
            defaults,
            overload,
            metadata,
            record,
        )

    def value(self, start: int, stop: int) -> Value:
        """A ValueInfoProto; only tensor types have a shape here."""
        name, dtype, shape = "", None, None
        for number, wire, _, at, end in fields(self.data, start, stop):
            if number == 1 and wire == 2:
                name = self.text(at, end)
            elif number == 2 and wire == 2:
                for kind, wire_, _, at_, end_ in fields(self.data, at, end):
                    if kind == 1 and wire_ == 2:
                        code, sizes = messages.tensor_type(self.data, at_, end_)
                        dtype = DTYPES[code].name if code in DTYPES else None
                        shape = None if sizes is None else self.dims(sizes, name)
        return Value(name, dtype, shape, self.span(start, stop))

    def dims(self, sizes: Sequence[int | str | None], name: str) -> tuple[Dim, ...]:
        for size in sizes:
            if isinstance(size, int) and size < -1:
                raise BadModel(f"value '{name}' has a dimension of {size}")
        return tuple([None if size == -1 else size for size in sizes])


def _text_or_bytes(encoded: bytes) -> str | bytes:
    try:
        return encoded.decode("utf-8")
    except UnicodeDecodeError:
        return bytes(encoded)
