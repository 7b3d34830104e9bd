"""Outline of an ONNX file: yields one row for each node, initializer, input and output.

The reader (`reader`) builds a full `Model` for analysis. This module yields a row and forgets it, so a file
of any size needs the memory of one row. It also checks less: of the attributes it reads only constants and
subgraphs, and a contradiction in a tensor becomes a note in its row instead of an error.

Field numbers are those of onnx.proto (IR version 13).
"""

from __future__ import annotations

import mmap

from explorer.base.errors import BadModel
from explorer.base.outline import Outline, OutlineRow
from explorer.engine.formats.files import map_file
from explorer.engine.formats.onnx.messages import (
    build_start_error,
    decode_text,
    read_opset,
    read_pair,
    read_string,
    read_tensor_type,
)
from explorer.engine.formats.onnx.protobuf_wire import (
    decode_varint,
    iterate_fields,
    read_packed_varints,
    reinterpret_signed,
)
from explorer.engine.graph.dtypes import ELEMENT_TYPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from explorer.engine.formats.onnx.protobuf_wire import Buffer

MAX_DEPTH = 32
"""Maximum depth of nested subgraphs; real models stay below 5."""

MAX_RANK = 64
_MAX_ELEMENTS = 1 << 48
_MAX_TEXT = 16_384
"""Maximum bytes read of a name: in a hostile file, a name may be as long as the file."""
_MAX_FACTS = 32
"""Maximum number of opsets, of metadata entries, and of external-data entries that are read."""
_DIGITS = 19
"""Maximum number of digits of an offset or a length in a file."""
_MAX_LISTED_VALUES = 3
"""Maximum number of inputs, and of outputs, that the row of a node lists."""
_COPIED_BYTES = 1 << 15
"""Bytes of nodes that are copied from the memory map at once."""
_RELEASE_INTERVAL = 1 << 24
"""Bytes read before the mapped pages are released; until then they count as memory of this process."""
_MAX_ATTRIBUTES = 4096
"""Maximum number of attributes of a node that are read."""

_ELEMENTS = {code: (name, bits) for code, name, bits in ELEMENT_TYPES}
"""(name, bits) of each element type, by number."""
_BODIES = (b"If", b"Loop", b"Scan", b"SequenceMap")
_ATTRIBUTE_OPERATORS = (b"Constant", *_BODIES)
"""Operators whose attributes are read: a Constant holds a tensor, the others hold subgraphs."""
_NODE_TEXTS = (1, 2, 3, 4, 7)
"""Field numbers of NodeProto's inputs, outputs, name, operator and domain."""
_STRING = 8
"""Number of the element type of texts."""


def outline(source: str) -> Outline:
    """Returns the outline of the ONNX file `source`.

    Raises:
        BadModel: The file is not an ONNX model. The error of a truncated file is raised after its rows.
    """
    buffer = map_file(source)
    try:
        top = _TopLevel(buffer)
        facts, graph, ir = _read_model_facts(buffer, top)
        if graph is None:
            raise top.broken or BadModel("this is not an ONNX model", hint="it holds no graph")
    except BadModel as error:
        problem = build_start_error(buffer[:1]) or error
        raise BadModel(problem.what, where=source, hint=problem.hint) from None
    return Outline("onnx", source, len(buffer), facts, _list_rows(source, buffer, graph, ir, top))


class _TopLevel:
    """Iterates over the fields of a ModelProto, even if the file is truncated.

    The graph of a truncated file ends where the file ends.

    Args:
        buffer: The mapped file.

    Attributes:
        broken: The error that ended the iteration, or None.
    """

    def __init__(self, buffer: Buffer) -> None:
        self.broken: BadModel | None = None
        self._data = buffer

    def __iter__(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yields the fields in the form of `iterate_fields`."""
        buffer, size, parsed = self._data, len(self._data), 0
        try:
            for field in iterate_fields(buffer, 0, size):
                parsed = field[-1]
                yield field
        except BadModel as error:
            self.broken = error
        if self.broken is not None and buffer[parsed : parsed + 1] == _GRAPH:
            _, start = decode_varint(buffer, parsed + 1, size)
            if start < size:
                yield 7, 2, parsed, start, size


_GRAPH = b"\x3a"
"""Tag byte of the field `graph` in ModelProto."""


def _read_model_facts(
    buffer: Buffer, top: _TopLevel
) -> tuple[list[tuple[str, str]], tuple[int, int] | None, int]:
    """Returns the facts of a ModelProto, the byte range of its graph, and its IR version."""
    texts: dict[int, str] = {}
    opsets: list[str] = []
    metadata: list[tuple[str, str]] = []
    graph: tuple[int, int] | None = None
    ir = functions = training = devices = 0
    for number, wire, _, content, end in top:
        if wire == 2:
            if number == 7:
                graph = (content, end)
            elif number in (2, 3, 4):
                texts[number] = read_string(buffer, content, end, _MAX_TEXT)
            elif number == 8 and len(opsets) < _MAX_FACTS:
                opset_domain, version = read_opset(buffer, content, end, _MAX_TEXT)
                opsets.append(f"{opset_domain} {version}".strip())
            elif number == 14 and len(metadata) < _MAX_FACTS:
                metadata.append(read_pair(buffer, content, end, _MAX_TEXT))
            functions += number == 25
            training += number == 20
            devices += number == 26
        elif number == 1 and wire == 0:
            ir = content
    facts = [("IR version", str(ir)), ("opset", ", ".join(opsets))]
    facts.append(("producer", " ".join(filter(None, (texts.get(2), texts.get(3))))))
    facts.append(("domain", texts.get(4, "")))
    counters = (("functions", functions), ("training graphs", training), ("device configurations", devices))
    facts += [(name, str(count)) for name, count in counters if count]
    return [(key, text) for key, text in (*facts, *metadata) if text], graph, ir


def _list_rows(
    source: str, buffer: mmap.mmap, graph: tuple[int, int], ir: int, top: _TopLevel
) -> Iterator[OutlineRow]:
    """Yields the rows of graph and local functions; raises the error of a truncated file at the end."""
    broken = top.broken
    try:
        yield from _list_graph_rows(buffer, *graph, "", 0, ir < 4)
        for number, wire, _, content, end in top:
            if number == 25 and wire == 2:
                yield from _list_function_rows(buffer, content, end)
    except BadModel as error:
        broken = broken or error
    if broken is not None:
        raise BadModel(broken.what, where=source, hint=broken.hint)


def _list_graph_rows(
    buffer: mmap.mmap, start: int, stop: int, prefix: str, depth: int, inputs_repeat_initializers: bool
) -> Iterator[OutlineRow]:
    """Yields the rows of a GraphProto in file order.

    Args:
        buffer: The mapped file.
        start: First byte of the GraphProto.
        stop: End of the GraphProto.
        prefix: Prefix of the paths in the rows.
        depth: Nesting depth of the graph.
        inputs_repeat_initializers: Whether inputs repeat the initializers, as IR versions before 4 require.
    """
    if depth > MAX_DEPTH:
        raise BadModel(f"graphs are nested more than {MAX_DEPTH} deep")
    initializer_names: set[str] = set()
    released = offset = base = start
    window = b""
    while offset < stop:
        if offset - released > _RELEASE_INTERVAL:
            released = _release_pages(buffer, released, offset)
        if buffer[offset] == 0x0A:
            # nodes are contiguous: copy a window of the map, and parse most nodes without a call per field
            position = offset - base
            if position >= len(window):
                window, base, position = buffer[offset : min(stop, offset + _COPIED_BYTES)], offset, 0
            last, is_complete = len(window) - 4, False
            while position < last and window[position] == 0x0A:
                size, begin = window[position + 1], position + 2
                if size > 127:
                    if window[begin] > 127:
                        break
                    size, begin = size & 127 | window[begin] << 7, begin + 1
                end = begin + size
                is_complete = end <= last
                row = _read_plain_node(window, begin, end, prefix) if is_complete else None
                if row is None:
                    break
                yield row
                position = end
            if not is_complete and position:
                window = b""  # the node ends in the next window
            if base + position > offset:
                offset = base + position
                continue
        number, wire, _, value, end = next(iterate_fields(buffer, offset, stop))
        offset = end
        if wire != 2:
            continue
        if number == 1:
            yield from _list_node_rows(buffer, value, end, prefix, depth)
        elif number == 5:
            row = _read_tensor(buffer, value, end, prefix)
            if inputs_repeat_initializers:
                initializer_names.add(row.path)
            yield row
        elif number == 11 or number == 12:
            row = _read_value(buffer, value, end, "input" if number == 11 else "output", prefix)
            if row.path not in initializer_names:
                yield row
        elif number == 15:
            yield _read_sparse(buffer, value, end, prefix)


def _read_plain_node(window: bytes, offset: int, end: int, prefix: str) -> OutlineRow | None:
    """Returns the row of the NodeProto in window[offset:end], or None if `_list_node_rows` must parse it.

    This fast path supports fields with one or two bytes of length, and operators whose attributes are not
    read.
    """
    inputs: list[bytes] = []
    outputs: list[bytes] = []
    name = op = domain = b""
    unlisted_count = 0
    last = end - 1
    while offset < last:
        tag, size = window[offset], window[offset + 1]
        offset += 2
        if size > 127:
            if window[offset] > 127:
                return None
            size, offset = size & 127 | window[offset] << 7, offset + 1
        end_of_field = offset + size
        if end_of_field > end:
            return None
        # tags: 0x0A input, 0x12 output, 0x1A name, 0x22 operator, 0x3A domain; attribute (0x2A), doc_string
        # (0x32) and metadata (0x4A) are skipped
        if tag == 0x0A:
            if len(inputs) < _MAX_LISTED_VALUES:
                inputs.append(window[offset:end_of_field])
            else:
                unlisted_count += 1
        elif tag == 0x12:
            if len(outputs) < _MAX_LISTED_VALUES:
                outputs.append(window[offset:end_of_field])
        elif tag == 0x1A:
            name = window[offset:end_of_field]
        elif tag == 0x22:
            op = window[offset:end_of_field]
        elif tag == 0x3A:
            domain = window[offset:end_of_field]
        elif tag != 0x2A and tag != 0x32 and tag != 0x4A:
            return None
        offset = end_of_field
    if offset != end or op in _ATTRIBUTE_OPERATORS:
        return None
    return _build_node_row(inputs, unlisted_count, outputs, name, op, domain, prefix)


def _build_node_row(
    inputs: list[bytes],
    unlisted_count: int,
    outputs: list[bytes],
    name: bytes,
    op: bytes,
    domain: bytes,
    prefix: str,
) -> OutlineRow:
    """Builds the row of a node. `unlisted_count` is the number of its inputs that are not in `inputs`."""
    if unlisted_count:
        inputs.append(b"+%d" % unlisted_count)
    note = b", ".join(inputs) + b" -> " + b", ".join(outputs)
    path = name or (outputs[0] if outputs else b"")
    kind = domain + b"." + op if domain and domain != b"ai.onnx" else op
    return OutlineRow(
        prefix + decode_text(path), "operator", decode_text(kind), None, None, decode_text(note)
    )


def _release_pages(buffer: mmap.mmap, start: int, stop: int) -> int:
    """Releases the mapped pages before `stop` that begin at `start` or later; returns `stop`."""
    page = mmap.PAGESIZE
    first, last = start // page * page, stop // page * page
    if last > first:
        buffer.madvise(mmap.MADV_DONTNEED, first, last - first)
    return stop


def _list_function_rows(buffer: mmap.mmap, start: int, stop: int) -> Iterator[OutlineRow]:
    """Yields the rows of a FunctionProto and its nodes: once, not for each call of the function."""
    name = domain = ""
    nodes = 0
    for number, wire, _, content, end in iterate_fields(buffer, start, stop):
        if wire == 2 and number == 1:
            name = read_string(buffer, content, end, _MAX_TEXT)
        elif wire == 2 and number == 10:
            domain = read_string(buffer, content, end, _MAX_TEXT)
        nodes += number == 7
    path = f"{domain}.{name}" if domain else name
    yield OutlineRow(path, "function", "", None, None, f"{nodes:,} node{'s' * (nodes != 1)}")
    for number, wire, _, content, end in iterate_fields(buffer, start, stop):
        if number == 7 and wire == 2:
            yield from _list_node_rows(buffer, content, end, f"{path}/", 1)


def _list_node_rows(
    buffer: mmap.mmap, start: int, stop: int, prefix: str, depth: int
) -> Iterator[OutlineRow]:
    """Yields the row of a NodeProto, followed by the rows of its subgraphs."""
    inputs: list[bytes] = []
    outputs: list[bytes] = []
    name = op = domain = b""
    attributes: list[tuple[int, int]] = []
    unlisted_count = 0
    for number, wire, _, content, end in iterate_fields(buffer, start, stop):
        if wire != 2:
            continue
        if number == 5:
            if len(attributes) < _MAX_ATTRIBUTES:
                attributes.append((content, end))
            continue
        text = buffer[content : min(end, content + _MAX_TEXT)] if number in _NODE_TEXTS else b""
        if number == 1:
            if len(inputs) < _MAX_LISTED_VALUES:
                inputs.append(text)
            else:
                unlisted_count += 1
        elif number == 2 and len(outputs) < _MAX_LISTED_VALUES:
            outputs.append(text)
        elif number == 3:
            name = text
        elif number == 4:
            op = text
        elif number == 7:
            domain = text
    row = _build_node_row(inputs, unlisted_count, outputs, name, op, domain, prefix)
    constant = _read_constant(buffer, attributes) if op == b"Constant" else None
    if constant is not None:
        row.shape, row.nbytes = constant.shape, constant.nbytes
        row.constant, row.note = constant.dtype, f"{constant.dtype}{row.note}"
    yield row
    if op in _BODIES:
        for begin, end in attributes:
            yield from _list_body_rows(buffer, begin, end, row.path, depth)


def _read_constant(buffer: mmap.mmap, attributes: list[tuple[int, int]]) -> OutlineRow | None:
    """Returns the row of the tensor in a Constant node, or None if the node has no tensor attribute."""
    for start, stop in attributes:
        for number, wire, _, content, end in iterate_fields(buffer, start, stop):
            if number == 5 and wire == 2:
                return _read_tensor(buffer, content, end, "")
    return None


def _list_body_rows(buffer: mmap.mmap, start: int, stop: int, path: str, depth: int) -> Iterator[OutlineRow]:
    """Yields the rows of the subgraphs in one attribute of a control-flow node."""
    name = ""
    for number, wire, _, content, end in iterate_fields(buffer, start, stop):
        if number == 1 and wire == 2:
            name = read_string(buffer, content, end, _MAX_TEXT)
        elif number in (6, 11) and wire == 2:
            yield from _list_graph_rows(buffer, content, end, f"{path}/{name}/", depth + 1, False)


def _read_tensor(buffer: mmap.mmap, start: int, stop: int, prefix: str) -> OutlineRow:
    """Returns the row of a TensorProto, without reading its values."""
    name, code, rank, data_bytes = b"", 0, 0, -1
    dims: list[int] = []
    external: dict[str, str] = {}
    is_external = False
    for number, wire, _, content, end in iterate_fields(buffer, start, stop):
        if number == 9 and wire == 2:
            data_bytes = end - content
        elif number == 1:
            if rank > MAX_RANK or (wire == 2 and end - content > 10 * MAX_RANK):
                rank = MAX_RANK + 1
                continue
            dims += read_packed_varints(buffer, content, end) if wire == 2 else [content]
            rank = len(dims)
        elif number == 2 and wire == 0:
            code = content
        elif number == 8 and wire == 2:
            name = buffer[content : min(end, content + _MAX_TEXT)]
        elif number == 6 and wire == 2:
            data_bytes = max(data_bytes, 0) + end - content
        elif number == 13 and wire == 2 and len(external) < _MAX_FACTS:
            key, text = read_pair(buffer, content, end, _MAX_TEXT)
            external[key] = text
        elif number == 14 and wire == 0:
            is_external = content == 1
    location = external.get("location", "?") if is_external else None
    row = _build_tensor_row(prefix + decode_text(name), code, dims, rank, data_bytes, location)
    if location is not None:
        row.span = _locate_external_data(location, external, row.nbytes)
    return row


def _locate_external_data(
    location: str, external: dict[str, str], nbytes: int | None
) -> tuple[str, int, int] | None:
    """Returns (file, offset, length) of external data.

    Returns None for an invalid offset, and for a tensor that is empty or of unknown size.
    """
    offset, length = external.get("offset", "0"), external.get("length", "")
    if not offset.isdecimal() or len(offset) > _DIGITS or not nbytes:
        return None
    return location, int(offset), int(length) if length.isdecimal() and len(length) <= _DIGITS else nbytes


def _build_tensor_row(
    name: str, code: int, dims: list[int], rank: int, data_bytes: int, location: str | None
) -> OutlineRow:
    """Returns the row of a tensor, with its type, its size in bytes, and notes on contradictions.

    Args:
        name: Path of the row.
        code: Element type code of TensorProto.
        dims: Dimensions as unsigned varints; the list may be cut off above `MAX_RANK`.
        rank: Number of dimensions. A tensor with a rank above `MAX_RANK` is impossible.
        data_bytes: Bytes of raw or string data in the file, or -1 without such data.
        location: Name of the file with the external data, or None for data in the model.
    """
    dims = [reinterpret_signed(d) for d in dims[:MAX_RANK]]
    dtype, bits = _ELEMENTS.get(code, (f"type {code}", None))
    notes = [f"in {location}"] if location else []
    count = 1
    for dim in dims:
        count *= dim
    nbytes: int | None
    if rank > MAX_RANK or min(dims, default=0) < 0 or count > _MAX_ELEMENTS:
        nbytes = None
        notes.append("impossible dimensions")
    elif code == _STRING:
        nbytes = max(data_bytes, 0)
    elif bits is None:
        nbytes = data_bytes if data_bytes >= 0 else None
        notes.append("unknown element type")
    else:
        nbytes = (count * bits + 7) // 8
        if data_bytes >= 0 and not location and data_bytes != nbytes:
            notes.append(f"holds {data_bytes:,} bytes of {nbytes:,}")
    return OutlineRow(name, "tensor", dtype, dims, nbytes, "; ".join(notes))


def _read_sparse(buffer: mmap.mmap, start: int, stop: int, prefix: str) -> OutlineRow:
    """Returns the row of a SparseTensorProto: its dense shape, and the total bytes of values and indices."""
    path = dtype = ""
    nbytes = 0
    shape: list[int | str | None] = []
    for number, wire, _, content, end in iterate_fields(buffer, start, stop):
        if number in (1, 2) and wire == 2:
            row = _read_tensor(buffer, content, end, prefix)
            nbytes += row.nbytes or 0
            if number == 1:
                path, dtype = row.path, row.dtype
        elif number == 3 and len(shape) < MAX_RANK:
            packed = (
                read_packed_varints(buffer, content, min(end, content + 10 * MAX_RANK))
                if wire == 2
                else [content]
            )
            shape += [reinterpret_signed(d) for d in packed]
    return OutlineRow(path, "tensor", dtype, shape[:MAX_RANK], nbytes, "sparse")


def _read_value(buffer: mmap.mmap, start: int, stop: int, kind: str, prefix: str) -> OutlineRow:
    """Returns the row of a ValueInfoProto: name and type of an input or output."""
    path, dtype = "", ""
    shape: list[int | str | None] | None = None
    for number, wire, _, content, end in iterate_fields(buffer, start, stop):
        if number == 1 and wire == 2:
            path = read_string(buffer, content, end, _MAX_TEXT)
        elif number == 2 and wire == 2:
            for type_number, type_wire, _, type_start, type_end in iterate_fields(buffer, content, end):
                if type_wire == 2 and type_number in (1, 8):
                    code, sizes = read_tensor_type(buffer, type_start, type_end, _MAX_TEXT)
                    dtype = _ELEMENTS.get(code, (f"type {code}" if code else "", 0))[0]
                    shape = sizes and [
                        None if isinstance(size, int) and size < 0 else size for size in sizes[:MAX_RANK]
                    ]
                elif type_wire == 2:
                    dtype = _OTHER_TYPES.get(type_number, "")
    return OutlineRow(prefix + path, kind, dtype, shape)


_OTHER_TYPES = {4: "sequence", 5: "map", 9: "optional", 7: "opaque"}
"""Names of the non-tensor types by field number of TypeProto."""
