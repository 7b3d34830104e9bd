"""Tensors of an ONNX file: reads the type, shape and data location of each TensorProto.

The data of a tensor is raw, in a typed field (packed, or one element per field), in an external file, or
sparse. This module does not read the data. Data that must be decoded is decoded when its values are read.

Field numbers are those of onnx.proto (IR version 13).
"""

from __future__ import annotations

import errno
import math
import os
import stat
from collections.abc import Iterator, Mapping

from explorer.base.errors import BadModel
from explorer.engine.formats.files import resolve_inside
from explorer.engine.formats.onnx import messages
from explorer.engine.formats.onnx.protobuf_wire import (
    Buffer,
    iterate_fields,
    read_packed_varints,
    reinterpret_signed,
)
from explorer.engine.graph.model import (
    DTYPES,
    ComputedPayload,
    FileSpan,
    Graph,
    Inline,
    Payload,
    Source,
    Tensor,
    get_dtype_code,
)

MAX_RANK = 64
_MAX_ELEMENTS = 1 << 48

_TYPED_WIRES = {4: (2, 5), 5: (2, 0), 7: (2, 0), 10: (2, 1), 11: (2, 0)}
"""TensorProto's typed data fields and their encodings: packed, or one element per field."""

_TYPED_FIELDS = {
    "float32": 4, "complex64": 4, "int64": 7, "float64": 10, "complex128": 10, "uint32": 11, "uint64": 11,
}  # fmt: skip
"""Number of the typed data field by element type; all other types use int32_data (5)."""


def read_sparse(span: FileSpan) -> tuple[Tensor, tuple[int, ...], int]:
    """Reads an encoded SparseTensorProto.

    Returns:
        The tensor of stored values, which has the name of the sparse tensor; the dense shape; and the bytes
        of the indices.

    Raises:
        BadModel: The message contradicts itself.
    """
    reader = TensorReader(span.source)
    values: Tensor | None = None
    indices: Tensor | None = None
    dims: list[int] = []
    for number, wire, _, content, end in iterate_fields(reader.data, span.offset, span.offset + span.size):
        if number == 1 and wire == 2:
            values = reader.read_tensor(content, end)
        elif number == 2 and wire == 2:
            indices = reader.read_tensor(content, end)
        elif number == 3:
            dims.extend(read_packed_varints(reader.data, content, end) if wire == 2 else [content])
    shape = tuple(reinterpret_signed(d) for d in dims)
    if values is None or any(d < 0 for d in shape) or math.prod(shape) > _MAX_ELEMENTS:
        raise BadModel("a sparse tensor has no values or impossible dimensions", where=span.source.path)
    count = values.elements
    if indices is None or indices.dtype != "int64" or indices.shape not in ((count,), (count, len(shape))):
        problem = f"sparse tensor '{values.name}' holds {count:,} values, but another number of indices"
        raise BadModel(problem, where=span.source.path)
    return values, shape, indices.nbytes


def list_sparse_spans(graph: Graph) -> Iterator[FileSpan]:
    """Yields the bytes of a graph's sparse initializers (GraphProto field 15), which stay encoded."""
    for part in graph.extra:
        for number, wire, _, content, end in iterate_fields(
            part.source.map, part.offset, part.offset + part.size
        ):
            if number == 15 and wire == 2:
                yield FileSpan(part.source, content, end - content)


def read_sparse_initializers(graph: Graph) -> dict[str, tuple[Tensor, tuple[int, ...], int]]:
    """Returns the sparse initializers of a graph by name, each as `read_sparse` returns it."""
    return {entry[0].name: entry for entry in map(read_sparse, list_sparse_spans(graph))}


def _map_file(path: str) -> Source:
    """Maps a file into memory.

    Raises:
        OSError: The file cannot be opened, or is not a regular file. Opening a pipe would wait forever.
    """
    if not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path):
        raise OSError(errno.EINVAL, "not a regular file")
    return Source(path)


class TensorReader:
    """Reads the tensors of one file, and the small messages that its subclass needs.

    Args:
        source: The mapped file.

    Attributes:
        data: Memory map of the file.
        folder: Absolute path of the folder with the file. `resolve_inside` finds external data from it.
        externals: Mapped files of external data, by path.
        names: Value names in nodes, each mapped to itself, so that equal names share one string.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.data = source.map
        self.folder = os.path.dirname(os.path.abspath(source.path))
        self.externals: dict[str, Source] = {}
        self.names: dict[str, str] = {}

    def decode_text(self, start: int, stop: int) -> str:
        """Decodes a byte range as text."""
        return messages.read_string(self.data, start, stop)

    def create_span(self, start: int, stop: int) -> FileSpan:
        """Returns the `FileSpan` of a byte range."""
        return FileSpan(self.source, start, stop - start)

    def read_pair(self, start: int, stop: int) -> tuple[str, str]:
        """Returns the key and value of a StringStringEntryProto."""
        return messages.read_pair(self.data, start, stop)

    def read_tensor(self, start: int, stop: int) -> Tensor:
        """Reads a TensorProto.

        Raises:
            BadModel: The element type is unknown, the shape is impossible, the data has another size than the
                shape, or `locate_external_data` refuses its file.
        """
        name, code, data_location = "", 0, 0
        dims: list[int] = []
        typed: list[tuple[int, int, int, int]] = []
        raw: FileSpan | None = None
        external: dict[str, str] = {}
        strings = 0
        for number, wire, _, content, end in iterate_fields(self.data, start, stop):
            if number == 9 and wire == 2:
                raw = self.create_span(content, end)
            elif number == 1:
                dims.extend(read_packed_varints(self.data, content, end) if wire == 2 else [content])
            elif number == 2 and wire == 0:
                code = content
            elif number == 8 and wire == 2:
                name = self.decode_text(content, end)
            elif wire in _TYPED_WIRES.get(number, ()):
                typed.append((number, wire, content, end))
            elif number == 6 and wire == 2:
                strings += end - content
            elif number == 13 and wire == 2:
                key, text = self.read_pair(content, end)
                external[key] = text
            elif number == 14 and wire == 0:
                data_location = content
        kind = DTYPES.get(code)
        if kind is None:
            raise BadModel(f"tensor '{name}' has the unknown element type {code}")
        dtype, bits = kind.name, kind.bits
        shape = (
            tuple(dims) if not dims or max(dims) < 1 << 63 else tuple([reinterpret_signed(d) for d in dims])
        )
        if len(shape) > MAX_RANK or (shape and min(shape) < 0):
            raise BadModel(f"tensor '{name}' has impossible dimensions {list(shape)[:8]}")
        count = math.prod(shape)
        # a tensor with a dimension of 0 may have other dimensions that are too large for an array
        claimed_elements = count or math.prod([d for d in shape if d])
        if claimed_elements > _MAX_ELEMENTS:
            raise BadModel(f"tensor '{name}' claims {claimed_elements:,} elements")
        nbytes = (count * bits + 7) // 8
        record = FileSpan(self.source, start, stop - start)
        payload: Payload | None = raw
        location = ""
        if data_location == 1:
            payload, location = self.locate_external_data(name, external, nbytes)
        elif payload is None and typed:
            payload = self.read_typed_field(dtype, typed)
        elif strings:
            payload = Inline(
                b"\0" * strings
            )  # only the size is used: the values of a text tensor are not read
        elif payload is None and nbytes == 0:
            payload = Inline(b"")
        if payload is not None and code != 8 and payload.size != nbytes:
            raise BadModel(
                f"tensor '{name}' of shape {list(shape)} and type {dtype} needs {nbytes:,} bytes"
                f" and has {payload.size:,}"
            )
        return Tensor(self.names.get(name, name), dtype, shape, payload, record, location)

    def read_typed_field(self, dtype: str, parts: list[tuple[int, int, int, int]]) -> Payload:
        """Returns the data of a tensor in a typed field, in the layout of raw_data.

        Packed float_data and double_data are already little-endian. Varints are decoded when the values are
        read.

        Args:
            dtype: Element type of the tensor.
            parts: (field number, wire type, content, end) of each field, as in `iterate_fields`.

        Raises:
            BadModel: A field does not match the element type.
        """
        number, wire, first, end = parts[0]
        if any(part[0] != _TYPED_FIELDS.get(dtype, 5) for part in parts):
            raise BadModel(f"a tensor of type {dtype} has its numbers in the field of another type")
        if len(parts) == 1 and wire == 2 and number in (4, 10):
            return self.create_span(first, end)
        if number in (4, 10):
            return Inline(b"".join(bytes(self.data[begin:stop]) for _, _, begin, stop in parts))
        width = DTYPES[get_dtype_code(dtype)].bits
        unit_bytes = max(width // 8, 1)
        mask = (1 << (8 * unit_bytes)) - 1

        def decode() -> Iterator[memoryview]:
            for _, part_wire, content, stop in parts:
                if part_wire == 2:
                    yield from _decode_varints(self.data, content, stop, unit_bytes)
                else:
                    yield memoryview((content & mask).to_bytes(unit_bytes, "little"))

        count = 0
        for _, part_wire, content, stop in parts:
            # a varint ends at the first byte below 128
            count += _count_varints(self.data, content, stop) if part_wire == 2 else 1
        if width == 6:  # a varint holds one element, but raw data holds four elements in three bytes
            return ComputedPayload((count * width + 7) // 8, lambda: _pack_bits(decode(), width))
        return ComputedPayload(count * unit_bytes, decode)

    def locate_external_data(self, name: str, entries: Mapping[str, str], nbytes: int) -> tuple[Payload, str]:
        """Locates the external data of a tensor. Returns its payload and the file name in the model.

        Args:
            name: Name of the tensor.
            entries: External data entries of the TensorProto: location, offset, length.
            nbytes: Bytes of the tensor, used if the entries have no length.

        Raises:
            BadModel: The path is absolute or leads out of the model's folder (also through a link), the file
                is missing, or the byte range does not fit in the file.
        """
        location = entries.get("location", "")
        where = f"{self.source.path}: tensor '{name}'"
        target = resolve_inside(location, self.folder, self.source.path)
        if not target:
            raise BadModel(f"its external data '{location}' points outside the model's folder", where=where)
        try:
            offset = int(entries.get("offset", "0") or "0")
            length = int(entries.get("length", "-1") or "-1")
        except ValueError:
            raise BadModel("offset or length of its external data is not a number", where=where) from None
        path = os.path.join(self.folder, location)
        if path not in self.externals:
            try:
                self.externals[path] = _map_file(target)
            except OSError as error:
                message = f"its external data file '{location}' cannot be read: {error.strerror}"
                raise BadModel(message, where=where, hint="put it beside the model") from None
        source = self.externals[path]
        length = nbytes if length < 0 else length
        if offset < 0 or offset + length > source.size:
            raise BadModel(
                f"its external data ({length:,} bytes at {offset:,}) does not fit in '{location}'"
                f" of {source.size:,} bytes",
                where=where,
            )
        return FileSpan(source, offset, length), location


_LONG_BYTES = bytes(range(128, 256))
"""Bytes that another byte of the same varint follows."""


def _count_varints(buffer: Buffer, start: int, end: int) -> int:
    """Counts the varints in a packed field without decoding them: one field may be most of a file."""
    step = 1 << 20
    return sum(
        len(bytes(buffer[offset : min(offset + step, end)]).translate(None, _LONG_BYTES))
        for offset in range(start, end, step)
    )


def _pack_bits(pieces: Iterator[memoryview], bits: int) -> Iterator[memoryview]:
    """Packs numbers of fewer than 8 bits, stored one per byte, into a stream of bits."""
    import numpy as np

    flat = np.frombuffer(b"".join(pieces), np.uint8)
    yield np.packbits(np.unpackbits(flat[:, None], 1, bits, "little"), bitorder="little").data


_DECODE_BYTES = 1 << 16
"""Bytes of packed varints that are decoded at once."""


def _decode_varints(buffer: Buffer, start: int, end: int, unit_bytes: int) -> Iterator[memoryview]:
    """Decodes a packed varint field in chunks, each integer as `unit_bytes` little-endian bytes."""
    import numpy as np

    offset = start
    while offset < end:
        encoded = np.frombuffer(buffer, np.uint8, min(_DECODE_BYTES, end - offset), offset)
        last = np.flatnonzero(encoded < 128)
        if not last.size:
            raise BadModel(f"not a valid protobuf: a varint exceeds its field at byte {offset:,}")
        first = np.concatenate(([0], last[:-1] + 1))
        length = last - first + 1
        longest = int(np.max(length))
        if longest > _MAX_VARINT_BYTES:
            raise BadModel(f"not a valid protobuf: a varint exceeds its field at byte {offset:,}")
        values = np.zeros(last.size, np.uint64)
        for index in range(longest):
            longer = length > index
            part = (encoded[first[longer] + index] & 127).astype(np.uint64)
            values[longer] |= part << np.uint64(7 * index)
        offset += int(last[-1]) + 1
        yield values.astype(f"<u{unit_bytes}").view(np.uint8).data


_MAX_VARINT_BYTES = 10
"""Maximum bytes of a varint: each byte holds 7 of its 64 bits."""
