"""ONNX reader: reads a file into a `Model` and leaves the weights in the file.

The reader maps the file into memory and follows its length prefixes. Each weight becomes a `FileSpan`, the
byte range of its data. Files are not trusted. This module checks lengths and nesting, and `tensors` checks
sizes and external paths, so all other modules can trust a model.

Field numbers are those of onnx.proto (IR version 13).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from explorer.base.errors import BadModel, suggest_name
from explorer.engine.formats.onnx import messages
from explorer.engine.formats.onnx.messages import build_start_error, decode_text
from explorer.engine.formats.onnx.protobuf_wire import (
    decode_varint,
    iterate_fields,
    read_packed_varints,
    reinterpret_signed,
)
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
from explorer.host.gc_pause import pause_garbage_collector

MAX_DEPTH = 32
"""Maximum depth of nested subgraphs; real models stay below 5."""

_MAX_SHARED_ATTRIBUTES = 256
"""Maximum bytes of encoded attributes for which nodes share a decoder."""

_MAX_KIND_BYTES = 320
"""Maximum bytes of a node, from its operator to its end, that serve as the key of its kind."""

_RELEASE_INTERVAL = 1 << 24
"""Bytes of a file that are read before its mapped pages are released."""

_NODE, _GRAPH_NAME, _INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT, _VALUE = (
    number << 3 | 2 for number in (1, 2, 5, 11, 12, 13)
)
"""Tags of GraphProto's length-delimited fields."""
_GRAPH_TAGS = frozenset((_NODE, _GRAPH_NAME, _INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT, _VALUE))
_INPUT, _OUTPUT, _NAME, _OP, _ATTRIBUTE, _DOMAIN, _OVERLOAD, _METADATA = (
    number << 3 | 2 for number in (1, 2, 3, 4, 5, 7, 8, 9)
)
"""Tags of NodeProto's length-delimited fields."""
_NODE_TAGS = frozenset((_INPUT, _OUTPUT, _NAME, _OP, _ATTRIBUTE, _DOMAIN, _OVERLOAD, _METADATA))
_NAME_TAGS = frozenset((_INPUT, _OUTPUT, _NAME, _METADATA))
"""The tags in `_NODE_TAGS` whose content differs from node to node."""


def read(path: str) -> Model:
    """Reads the ONNX file at `path`.

    Args:
        path: Path of an .onnx file. `resolve_inside` tells where its external data may be.

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
        siblings = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        hint = suggest_name(
            os.path.basename(path),
            (
                file_name
                for file_name in siblings
                if file_name.endswith(".onnx") and file_name != os.path.basename(path)
            ),
        )
        raise BadModel("no such file", where=path, hint=hint) from None
    except OSError as error:
        raise BadModel(f"cannot be read: {error.strerror or error}", where=path) from None
    if not source.size:
        raise BadModel("the file is empty", where=path)
    refusal = build_start_error(source.map[:1])
    if refusal is not None:
        raise BadModel(refusal.what, where=path, hint=refusal.hint)
    reader = _Reader(source)
    try:
        with pause_garbage_collector():
            return reader.read_model()
    except BadModel as error:
        raise BadModel(error.what, where=error.where or path, hint=error.hint) from None
    except RecursionError:
        raise BadModel("its graphs are nested too deeply", where=path) from None
    finally:
        reader.clear_decoders()
        reader.names.clear()
        source.release()


_Kind = tuple[str, str, str, bytes | None, Callable[[], Mapping[str, Any]] | None]
"""Operator, domain, overload, key that is equal for equal attributes, and decoder of the attributes."""


class _Reader(TensorReader):
    """Reads the model in one file; the base class reads its tensors.

    Attributes:
        decoders: (key, decoder) of node attributes, by the encoded attributes.
        kinds: Nodes of one kind have equal bytes from their operator on. Maps these bytes to the decoded
            kind.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.decoders: dict[bytes, tuple[bytes, Callable[[], Mapping[str, Any]]]] = {}
        self.kinds: dict[bytes, _Kind] = {}

    def clear_decoders(self) -> None:
        """Clears the caches of decoders.

        The decoders refer to the reader, and this cycle would keep the file mapped.
        """
        self.decoders.clear()
        self.kinds.clear()

    def read_model(self) -> Model:
        graph: tuple[int, int] | None = None
        ir_version, producer, producer_version = 0, "", ""
        opsets: dict[str, int] = {}
        functions: dict[tuple[str, str, str], Function] = {}
        metadata: dict[str, str] = {}
        extra: list[FileSpan] = []
        for number, wire, begin, content, end in iterate_fields(self.data, 0, self.source.size):
            if number == 7 and wire == 2:
                graph = content, end
            elif number == 1 and wire == 0:
                ir_version = content
            elif number == 2 and wire == 2:
                producer = self.decode_text(content, end)
            elif number == 3 and wire == 2:
                producer_version = self.decode_text(content, end)
            elif number == 8 and wire == 2:
                domain, version = messages.read_opset(self.data, content, end)
                opsets[domain] = version
            elif number == 14 and wire == 2:
                key, value = self.read_pair(content, end)
                metadata[key] = value
            elif number == 25 and wire == 2:
                function = self.read_function(content, end)
                if function.key in functions:
                    raise BadModel(f"function '{function.name}' is defined twice")
                functions[function.key] = function
            else:
                extra.append(self.create_span(begin, end))
        if graph is None:
            raise BadModel("this is not an ONNX model", hint="it holds no graph")
        if not opsets:
            # models before IR version 3 have no imports: their default operator set has version 1
            opsets[""] = 1
        return Model(
            graph=self.read_graph(*graph, depth=0),
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

    def read_graph(self, start: int, stop: int, *, depth: int) -> Graph:
        if depth > MAX_DEPTH:
            raise BadModel(f"graphs are nested more than {MAX_DEPTH} deep")
        name = ""
        nodes: list[Node] = []
        inputs: list[Value] = []
        outputs: list[Value] = []
        values: list[Value] = []
        tensors: dict[str, Tensor] = {}
        extra: list[FileSpan] = []
        buffer, end, released = self.data, start, start
        while end < stop:
            begin, tag = end, buffer[end]
            if tag in _GRAPH_TAGS and begin + 4 < stop:
                # parse inline, without a call: most of a graph consists of these fields
                size, payload = buffer[begin + 1], begin + 2
                if size > 127:
                    second_byte = buffer[payload]
                    if second_byte > 127:
                        size, payload = decode_varint(buffer, begin + 1, stop)
                    else:
                        size, payload = size + (second_byte << 7) - 128, payload + 1
                end = payload + size
            if end == begin or end > stop:
                number, wire, payload, end = self.read_field(begin, stop)
                tag = number << 3 | wire
            if begin - released > _RELEASE_INTERVAL:
                self.source.release()
                released = begin
            if tag == _NODE:
                nodes.append(self.read_node(payload, end, depth))
            elif tag == _INITIALIZER:
                tensor = self.read_tensor(payload, end)
                if tensor.name in tensors:
                    raise BadModel(f"initializer '{tensor.name}' is defined twice")
                tensors[tensor.name] = tensor
            elif tag == _VALUE:
                values.append(self.read_value(payload, end))
            elif tag == _GRAPH_INPUT:
                inputs.append(self.read_value(payload, end))
            elif tag == _GRAPH_OUTPUT:
                outputs.append(self.read_value(payload, end))
            elif tag == _GRAPH_NAME:
                name = self.decode_text(payload, end)
            else:
                extra.append(self.create_span(begin, end))
        return Graph(name, tuple(nodes), tuple(inputs), tuple(outputs), tensors, tuple(values), tuple(extra))

    def read_node(self, start: int, stop: int, depth: int) -> Node:
        """Reads the node in the bytes `start` to `stop`; `depth` is the level of its graph."""
        # copy the node and parse one-byte tags and lengths inline: most of a graph consists of nodes
        encoded = self.data[start:stop]
        inputs: list[str] = []
        outputs: list[str] = []
        # several nodes name the same value: equal names share one string
        intern_name = self.names.setdefault
        name, kind_key = "", b""
        offset, end = 0, stop - start
        try:
            # writers put the names first: the bytes that follow are equal in all nodes of a kind
            while offset < end:
                tag, size, first = encoded[offset], encoded[offset + 1], offset + 2
                if size > 127:
                    break
                if tag == _INPUT:
                    offset = first + size
                    value = encoded[first:offset].decode()
                    inputs.append(intern_name(value, value))
                elif tag == _OUTPUT:
                    offset = first + size
                    value = encoded[first:offset].decode()
                    outputs.append(intern_name(value, value))
                elif tag == _NAME:
                    offset = first + size
                    name = encoded[first:offset].decode()
                else:
                    if tag == _OP and end - offset <= _MAX_KIND_BYTES:
                        kind_key = encoded[offset:]
                        kind = self.kinds.get(kind_key)
                        if kind is not None:
                            op, domain, overload, alike, decode = kind
                            record = FileSpan(self.source, start, end)
                            return Node(
                                op, inputs, outputs, name, domain, overload, None, None, record, decode, alike
                            )
                    break
        except UnicodeDecodeError:
            return self.read_other_node(encoded, start, depth, 0, [], [], "", b"")
        except IndexError:
            pass  # the node is damaged; `read_other_node` raises the error
        return self.read_other_node(encoded, start, depth, offset, inputs, outputs, name, kind_key)

    def read_other_node(
        self,
        encoded: bytes,
        start: int,
        depth: int,
        offset: int,
        inputs: list[str],
        outputs: list[str],
        name: str,
        kind_key: bytes,
    ) -> Node:
        """Reads a node that `read_node` cannot read alone, such as the first node of a kind.

        Args:
            encoded: Bytes of the NodeProto.
            start: Offset of the NodeProto in the file.
            depth: Nesting depth of the graph.
            offset: Offset in `encoded` up to which `read_node` has read.
            inputs: Input names read so far; extended in place.
            outputs: Output names read so far; extended in place.
            name: Name of the node, as read so far.
            kind_key: Key of the kind in `kinds`, or b'' if the kind is not recorded.
        """
        op = domain = overload = ""
        attributes: list[tuple[int, int]] = []
        metadata: dict[str, str] = {}
        end, stop = len(encoded), start + len(encoded)
        try:
            while offset < end:
                tag, size, first = encoded[offset], encoded[offset + 1], offset + 2
                offset = first + size
                if size > 127 or tag not in _NODE_TAGS:
                    number, wire, begin, field_end = self.read_field(start + first - 2, stop)
                    first, offset = begin - start, field_end - start
                    if wire != 2:
                        continue
                    tag = number << 3 | 2
                if tag in _NAME_TAGS:
                    kind_key = b""
                if tag == _INPUT:
                    inputs.append(decode_text(encoded[first:offset]))
                elif tag == _OUTPUT:
                    outputs.append(decode_text(encoded[first:offset]))
                elif tag == _NAME:
                    name = decode_text(encoded[first:offset])
                elif tag == _OP:
                    op = decode_text(encoded[first:offset])
                elif tag == _ATTRIBUTE:
                    attributes.append((first, offset))
                elif tag == _DOMAIN:
                    domain = decode_text(encoded[first:offset])
                elif tag == _OVERLOAD:
                    overload = decode_text(encoded[first:offset])
                elif tag == _METADATA:
                    key, value = self.read_pair(start + first, start + offset)
                    metadata[key] = value
        except IndexError:
            offset = end + 1
        if offset > end:
            for _ in iterate_fields(self.data, start, stop):
                pass  # `iterate_fields` raises the error for the length that does not fit
        alike, decode = self.read_attributes(encoded, start, attributes, depth) if attributes else (b"", None)
        if kind_key:
            self.kinds[kind_key] = op, domain, overload, alike, decode
        record = FileSpan(self.source, start, end)
        return Node(op, inputs, outputs, name, domain, overload, None, metadata, record, decode, alike)

    def read_attributes(
        self, encoded: bytes, start: int, places: Sequence[tuple[int, int]], depth: int
    ) -> tuple[bytes | None, Callable[[], Mapping[str, Any]]]:
        """Returns a key that is equal for nodes with equal attributes, and the decoder that they share.

        Large attributes have no key (None), and each node has its own decoder.
        """
        raw = b"".join([encoded[first:last] for first, last in places])
        decoder = self.decoders.get(raw)
        if decoder is None:
            spans = [(start + first, start + last) for first, last in places]
            if len(raw) > _MAX_SHARED_ATTRIBUTES:
                return None, lambda: dict(self.read_attribute(a, b, depth) for a, b in spans)
            attributes: dict[str, Any] = {}

            def decode() -> Mapping[str, Any]:
                if not attributes:
                    attributes.update(self.read_attribute(a, b, depth) for a, b in spans)
                    self.clear_decoders()  # reading a subgraph has added decoders
                return attributes

            decoder = self.decoders[raw] = raw, decode
        return decoder

    def read_field(self, offset: int, stop: int) -> tuple[int, int, int, int]:
        """Returns number, wire type, content and end of a field (see `iterate_fields`) from its tag's offset.

        Raises:
            BadModel: The field does not fit in its message.
        """
        number, wire, _, first, end = next(iterate_fields(self.data, offset, stop))
        return number, wire, first, end

    def read_attribute(self, start: int, stop: int, depth: int) -> tuple[str, Any]:
        """Returns name and value of an AttributeProto.

        The keys of `single` and `repeated` are numbers of AttributeProto.AttributeType.
        """
        buffer = self.data
        name, kind, reference = "", 0, ""
        single: dict[int, Any] = {}
        repeated: dict[int, list[Any]] = {}
        for number, wire, _, content, end in iterate_fields(buffer, start, stop):
            if number == 1 and wire == 2:
                name = self.decode_text(content, end)
            elif number == 20 and wire == 0:
                kind = content
            elif number == 21 and wire == 2:
                reference = self.decode_text(content, end)
            elif number == 2 and wire == 5:
                single[1] = struct.unpack_from("<f", buffer, content)[0]
            elif number == 3 and wire == 0:
                single[2] = reinterpret_signed(content)
            elif number == 4 and wire == 2:
                single[3] = _decode_text_or_bytes(buffer[content:end])
            elif number == 5 and wire == 2:
                single[4] = self.read_tensor(content, end)
            elif number == 6 and wire == 2:
                single[5] = self.read_graph(content, end, depth=depth + 1)
            elif number == 7 and wire in (2, 5):
                if (end - content) % 4:
                    raise BadModel(f"attribute '{name}' holds a broken list of floats")
                repeated.setdefault(6, []).extend(
                    struct.unpack(f"<{(end - content) // 4}f", buffer[content:end])
                )
            elif number == 8 and wire == 0:
                repeated.setdefault(7, []).append(reinterpret_signed(content))
            elif number == 8 and wire == 2:
                repeated.setdefault(7, []).extend(
                    map(reinterpret_signed, read_packed_varints(buffer, content, end))
                )
            elif number == 9 and wire == 2:
                repeated.setdefault(8, []).append(_decode_text_or_bytes(buffer[content:end]))
            elif number == 10 and wire == 2:
                repeated.setdefault(9, []).append(self.read_tensor(content, end))
            elif number == 11 and wire == 2:
                repeated.setdefault(10, []).append(self.read_graph(content, end, depth=depth + 1))
            # types and sparse tensors stay encoded
            elif number in (14, 22) and wire == 2:
                single[{14: 13, 22: 11}[number]] = self.create_span(content, end)
            elif number in (15, 23) and wire == 2:
                repeated.setdefault({15: 14, 23: 12}[number], []).append(self.create_span(content, end))
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

    def read_function(self, start: int, stop: int) -> Function:
        """Reads the function in the bytes `start` to `stop`."""
        texts: dict[int, list[str]] = {number: [] for number in (1, 4, 5, 6, 10, 13)}
        defaults: dict[str, Any] = {}
        nodes: list[Node] = []
        opsets: dict[str, int] = {}
        metadata: dict[str, str] = {}
        values: list[Value] = []
        extra: list[FileSpan] = []
        for number, wire, begin, content, end in iterate_fields(self.data, start, stop):
            if wire != 2:
                continue
            if number in texts:
                texts[number].append(self.decode_text(content, end))
            elif number == 7:
                nodes.append(self.read_node(content, end, 1))
            elif number == 9:
                key, version = messages.read_opset(self.data, content, end)
                opsets[key] = version
            elif number == 11:
                attribute, value = self.read_attribute(content, end, 1)
                defaults[attribute] = value
            elif number == 12:
                values.append(self.read_value(content, end))
            elif number == 14:
                metadata_key, metadata_value = self.read_pair(content, end)
                metadata[metadata_key] = metadata_value
            else:
                extra.append(self.create_span(begin, end))
        name, domain, overload = (texts[number][-1] if texts[number] else "" for number in (1, 10, 13))
        inputs, outputs, attributes = (tuple(texts[number]) for number in (4, 5, 6))
        record = self.create_span(start, stop)
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
            tuple(values),
            tuple(extra),
        )

    def read_value(self, start: int, stop: int) -> Value:
        """Reads a ValueInfoProto; the `Value` of a sequence or optional has neither type nor shape."""
        name, dtype, shape = "", None, None
        for number, wire, _, content, end in iterate_fields(self.data, start, stop):
            if number == 1 and wire == 2:
                name = self.decode_text(content, end)
            elif number == 2 and wire == 2:
                for type_number, type_wire, _, type_start, type_end in iterate_fields(
                    self.data, content, end
                ):
                    if type_number == 1 and type_wire == 2:
                        code, sizes = messages.read_tensor_type(self.data, type_start, type_end)
                        dtype = DTYPES[code].name if code in DTYPES else None
                        shape = None if sizes is None else self.read_dims(sizes, name)
        return Value(name, dtype, shape, self.create_span(start, stop))

    def read_dims(self, sizes: Sequence[int | str | None], name: str) -> tuple[Dim, ...]:
        """Returns the sizes of the value `name`, with None for the unknown size -1.

        Raises:
            BadModel: A size is below -1.
        """
        for size in sizes:
            if isinstance(size, int) and size < -1:
                raise BadModel(f"value '{name}' has the negative dimension {size}")
        return tuple([None if size == -1 else size for size in sizes])


def _decode_text_or_bytes(encoded: bytes) -> str | bytes:
    try:
        return encoded.decode("utf-8")
    except UnicodeDecodeError:
        return bytes(encoded)
