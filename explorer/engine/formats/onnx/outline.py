"""Outline of an ONNX file: reads the headers of its nodes and initializers, one at a time.

The reader (`reader`) builds everything that an analysis needs of a node. This module makes one row at a time
and drops it, so a file of any size takes the memory of one row. It checks less: the meaning of a node is
ignored, and a contradiction becomes a note on the row instead of an error.

Field numbers are those of onnx.proto (IR version 13).
"""

from __future__ import annotations

import mmap

from explorer.base.errors import BadModel
from explorer.base.outline import Outline, OutlineRow
from explorer.engine.formats.files import mapped
from explorer.engine.formats.onnx.messages import decoded, not_onnx, opset, pair, tensor_type, text
from explorer.engine.formats.onnx.protobuf_wire import fields, packed_varints, signed, varint_at
from explorer.engine.graph.dtypes import ELEMENT_TYPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from explorer.engine.formats.onnx.protobuf_wire import Buffer

MAX_DEPTH = 32
"""Most levels of nested subgraphs; real models stay below 5."""

MAX_RANK = 64
_MAX_ELEMENTS = 1 << 48
_MAX_TEXT = 16_384
"""Most bytes read of a name: a hostile name may be as long as its file."""
_MAX_FACTS = 32
_DIGITS = 19
"""Most digits of an offset or a length in a file."""
_SHOWN = 3
"""Most inputs and outputs of a node that its row names."""
_WINDOW = 1 << 15
"""Bytes of nodes that are copied from the map at once."""
_FORGET = 1 << 24
"""Bytes after which pages that were read are released; they count as this process's memory."""
_MAX_ATTRIBUTES = 4096

_ELEMENTS = {code: (name, bits) for code, name, bits in ELEMENT_TYPES}
_BODIES = (b"If", b"Loop", b"Scan", b"SequenceMap")
_LOOKED_INTO = (b"Constant", *_BODIES)
"""Operators whose attributes have rows, or belong to one."""
_NODE_TEXTS = (1, 2, 3, 4, 7)
"""Field numbers of NodeProto's inputs, outputs, name, operator and domain."""
_STRING = 8


def outline(source: str) -> Outline:
    """The outline of the ONNX file `source`.

    Raises:
        BadModel: It is not an ONNX model; or, after its rows, the file is truncated.
    """
    buffer = mapped(source)
    try:
        top = _TopLevel(buffer)
        facts, graph, ir = _model(buffer, top)
        if graph is None:
            raise top.broken or BadModel("this is not an ONNX model", hint="it holds no graph")
    except BadModel as error:
        problem = not_onnx(buffer[:1]) or error
        raise BadModel(problem.what, where=source, hint=problem.hint) from None
    return Outline("onnx", source, len(buffer), facts, _rows(source, buffer, graph, ir, top))


class _TopLevel:
    """The fields of a ModelProto, also of a truncated file, whose graph then ends with the file.

    Args:
        data: The file.

    Attributes:
        broken: The error in the file, known once its fields were read.
    """

    def __init__(self, buffer: Buffer) -> None:
        self.broken: BadModel | None = None
        self._data = buffer

    def __iter__(self) -> Iterator[tuple[int, int, int, int, int]]:
        buffer, size, read = self._data, len(self._data), 0
        try:
            for field in fields(buffer, 0, size):
                read = field[-1]
                yield field
        except BadModel as error:
            self.broken = error
        if self.broken is not None and buffer[read : read + 1] == _GRAPH:
            _, at = varint_at(buffer, read + 1, size)
            if at < size:
                yield 7, 2, read, at, size


_GRAPH = b"\x3a"
"""The tag of a ModelProto's graph."""


def _model(buffer: Buffer, top: _TopLevel) -> tuple[list[tuple[str, str]], tuple[int, int] | None, int]:
    """The facts of a ModelProto, the place of its graph, and its IR version."""
    texts: dict[int, str] = {}
    opsets: list[str] = []
    more: list[tuple[str, str]] = []
    graph: tuple[int, int] | None = None
    ir = functions = training = devices = 0
    for number, wire, _, at, end in top:
        if wire == 2:
            if number == 7:
                graph = (at, end)
            elif number in (2, 3, 4):
                texts[number] = text(buffer, at, end, _MAX_TEXT)
            elif number == 8 and len(opsets) < _MAX_FACTS:
                set_of, version = opset(buffer, at, end, _MAX_TEXT)
                opsets.append(f"{set_of} {version}".strip())
            elif number == 14 and len(more) < _MAX_FACTS:
                more.append(pair(buffer, at, end, _MAX_TEXT))
            functions += number == 25
            training += number == 20
            devices += number == 26
        elif number == 1 and wire == 0:
            ir = at
    facts = [("IR version", str(ir)), ("opset", ", ".join(opsets))]
    facts.append(("producer", " ".join(filter(None, (texts.get(2), texts.get(3))))))
    facts.append(("domain", texts.get(4, "")))
    counted = (("functions", functions), ("training graphs", training), ("device configurations", devices))
    facts += [(name, str(count)) for name, count in counted if count]
    return [(key, text) for key, text in (*facts, *more) if text], graph, ir


def _rows(
    source: str, buffer: mmap.mmap, graph: tuple[int, int], ir: int, top: _TopLevel
) -> Iterator[OutlineRow]:
    broken = top.broken
    try:
        yield from _graph(buffer, *graph, "", 0, ir < 4)
        for number, wire, _, at, end in top:
            if number == 25 and wire == 2:
                yield from _function(buffer, at, end)
    except BadModel as error:
        broken = broken or error
    if broken is not None:
        raise BadModel(broken.what, where=source, hint=broken.hint)


def _graph(
    buffer: mmap.mmap, start: int, stop: int, prefix: str, depth: int, doubled: bool
) -> Iterator[OutlineRow]:
    """The rows of a GraphProto in file order; `doubled`: initializers are also listed as inputs."""
    if depth > MAX_DEPTH:
        raise BadModel(f"graphs are nested more than {MAX_DEPTH} deep")
    initializer_names: set[str] = set()
    forgotten = at = base = start
    window = b""
    while at < stop:
        if at - forgotten > _FORGET:
            forgotten = _forget(buffer, forgotten, at)
        if buffer[at] == 0x0A:
            # nodes are contiguous: a window is copied from the map, and most nodes are read without a call
            # per field
            here = at - base
            if here >= len(window):
                window, base, here = buffer[at : min(stop, at + _WINDOW)], at, 0
            last, fits = len(window) - 4, False
            while here < last and window[here] == 0x0A:
                size, begin = window[here + 1], here + 2
                if size > 127:
                    if window[begin] > 127:
                        break
                    size, begin = size & 127 | window[begin] << 7, begin + 1
                end = begin + size
                fits = end <= last
                row = _plain_node(window, begin, end, prefix) if fits else None
                if row is None:
                    break
                yield row
                here = end
            if not fits and here:
                window = b""  # the node ends in the next window
            if base + here > at:
                at = base + here
                continue
        number, wire, _, value, end = next(fields(buffer, at, stop))
        at = end
        if wire != 2:
            continue
        if number == 1:
            yield from _node(buffer, value, end, prefix, depth)
        elif number == 5:
            row = _tensor(buffer, value, end, prefix)
            if doubled:
                initializer_names.add(row.path)
            yield row
        elif number == 11 or number == 12:
            row = _value(buffer, value, end, "input" if number == 11 else "output", prefix)
            if row.path not in initializer_names:
                yield row
        elif number == 15:
            yield _sparse(buffer, value, end, prefix)


def _plain_node(window: bytes, at: int, end: int, prefix: str) -> OutlineRow | None:
    """The row of a NodeProto with short fields only, in window[at:end]; None if it has others."""
    inputs: list[bytes] = []
    outputs: list[bytes] = []
    name = op = domain = b""
    more = 0
    last = end - 1
    while at < last:
        tag, size = window[at], window[at + 1]
        at += 2
        if size > 127:
            if window[at] > 127:
                return None
            size, at = size & 127 | window[at] << 7, at + 1
        stop = at + size
        if stop > end:
            return None
        if tag == 0x0A:
            if len(inputs) < _SHOWN:
                inputs.append(window[at:stop])
            else:
                more += 1
        elif tag == 0x12:
            if len(outputs) < _SHOWN:
                outputs.append(window[at:stop])
        elif tag == 0x1A:
            name = window[at:stop]
        elif tag == 0x22:
            op = window[at:stop]
        elif tag == 0x3A:
            domain = window[at:stop]
        elif tag != 0x2A and tag != 0x32 and tag != 0x4A:
            return None
        at = stop
    if at != end or op in _LOOKED_INTO:
        return None
    return _node_row(inputs, more, outputs, name, op, domain, prefix)


def _node_row(
    inputs: list[bytes], more: int, outputs: list[bytes], name: bytes, op: bytes, domain: bytes, prefix: str
) -> OutlineRow:
    if more:
        inputs.append(b"+%d" % more)
    note = b", ".join(inputs) + b" -> " + b", ".join(outputs)
    path = name or (outputs[0] if outputs else b"")
    kind = domain + b"." + op if domain and domain != b"ai.onnx" else op
    return OutlineRow(prefix + decoded(path), "operator", decoded(kind), None, None, decoded(note))


def _forget(buffer: mmap.mmap, start: int, stop: int) -> int:
    page = mmap.PAGESIZE
    first, last = start // page * page, stop // page * page
    if last > first:
        buffer.madvise(mmap.MADV_DONTNEED, first, last - first)
    return stop


def _function(buffer: mmap.mmap, start: int, stop: int) -> Iterator[OutlineRow]:
    """The rows of a FunctionProto and its nodes, which are listed once and not at each call."""
    name = domain = ""
    nodes = 0
    for number, wire, _, at, end in fields(buffer, start, stop):
        if wire == 2 and number == 1:
            name = text(buffer, at, end, _MAX_TEXT)
        elif wire == 2 and number == 10:
            domain = text(buffer, at, end, _MAX_TEXT)
        nodes += number == 7
    path = f"{domain}.{name}" if domain else name
    yield OutlineRow(path, "function", "", None, None, f"{nodes:,} node{'s' * (nodes != 1)}")
    for number, wire, _, at, end in fields(buffer, start, stop):
        if number == 7 and wire == 2:
            yield from _node(buffer, at, end, f"{path}/", 1)


def _node(buffer: mmap.mmap, start: int, stop: int, prefix: str, depth: int) -> Iterator[OutlineRow]:
    """The row of any NodeProto, and those of the graphs within it."""
    inputs: list[bytes] = []
    outputs: list[bytes] = []
    name = op = domain = b""
    attributes: list[tuple[int, int]] = []
    more = 0
    for number, wire, _, at, end in fields(buffer, start, stop):
        if wire != 2:
            continue
        if number == 5:
            if len(attributes) < _MAX_ATTRIBUTES:
                attributes.append((at, end))
            continue
        text = buffer[at : min(end, at + _MAX_TEXT)] if number in _NODE_TEXTS else b""
        if number == 1:
            if len(inputs) < _SHOWN:
                inputs.append(text)
            else:
                more += 1
        elif number == 2 and len(outputs) < _SHOWN:
            outputs.append(text)
        elif number == 3:
            name = text
        elif number == 4:
            op = text
        elif number == 7:
            domain = text
    row = _node_row(inputs, more, outputs, name, op, domain, prefix)
    constant = _constant(buffer, attributes) if op == b"Constant" else None
    if constant is not None:
        row.shape, row.nbytes = constant.shape, constant.nbytes
        row.constant, row.note = constant.dtype, f"{constant.dtype}{row.note}"
    yield row
    if op in _BODIES:
        for begin, end in attributes:
            yield from _bodies(buffer, begin, end, row.path, depth)


def _constant(buffer: mmap.mmap, attributes: list[tuple[int, int]]) -> OutlineRow | None:
    """The row of the tensor in a Constant node."""
    for start, stop in attributes:
        for number, wire, _, at, end in fields(buffer, start, stop):
            if number == 5 and wire == 2:
                return _tensor(buffer, at, end, "")
    return None


def _bodies(buffer: mmap.mmap, start: int, stop: int, path: str, depth: int) -> Iterator[OutlineRow]:
    """The rows of the graphs in an attribute of a control-flow node."""
    name = ""
    for number, wire, _, at, end in fields(buffer, start, stop):
        if number == 1 and wire == 2:
            name = text(buffer, at, end, _MAX_TEXT)
        elif number in (6, 11) and wire == 2:
            yield from _graph(buffer, at, end, f"{path}/{name}/", depth + 1, False)


def _tensor(buffer: mmap.mmap, start: int, stop: int, prefix: str) -> OutlineRow:
    """The row of a TensorProto; its values are not read."""
    name, code, rank, data_bytes = b"", 0, 0, -1
    dims: list[int] = []
    external: dict[str, str] = {}
    located = False
    for number, wire, _, here, end in fields(buffer, start, stop):
        if number == 9 and wire == 2:
            data_bytes = end - here
        elif number == 1:
            if rank > MAX_RANK or (wire == 2 and end - here > 10 * MAX_RANK):
                rank = MAX_RANK + 1
                continue
            dims += packed_varints(buffer, here, end) if wire == 2 else [here]
            rank = len(dims)
        elif number == 2 and wire == 0:
            code = here
        elif number == 8 and wire == 2:
            name = buffer[here : min(end, here + _MAX_TEXT)]
        elif number == 6 and wire == 2:
            data_bytes = max(data_bytes, 0) + end - here
        elif number == 13 and wire == 2 and len(external) < _MAX_FACTS:
            key, text = pair(buffer, here, end, _MAX_TEXT)
            external[key] = text
        elif number == 14 and wire == 0:
            located = here == 1
    location = external.get("location", "?") if located else None
    row = _tensor_row(prefix + decoded(name), code, dims, rank, data_bytes, location)
    if location is not None:
        row.span = _span(location, external, row.nbytes)
    return row


def _span(location: str, external: dict[str, str], nbytes: int | None) -> tuple[str, int, int] | None:
    """The place of bytes in another file; None if the entry is broken."""
    offset, length = external.get("offset", "0"), external.get("length", "")
    if not offset.isdecimal() or len(offset) > _DIGITS or not nbytes:
        return None
    return location, int(offset), int(length) if length.isdecimal() and len(length) <= _DIGITS else nbytes


def _tensor_row(
    name: str, code: int, dims: list[int], rank: int, data_bytes: int, location: str | None
) -> OutlineRow:
    """The row of a tensor: type and bytes from its code and sizes, and notes.

    Args:
        name: Name of the row.
        code: Code of the element type.
        dims: Dimensions, as many as are read.
        rank: Number of dimensions; above `MAX_RANK` the tensor is impossible.
        data_bytes: Bytes of data in the file; negative if there are none, or not in one piece.
        location: The other file that holds the data, if any.
    """
    dims = [signed(d) for d in dims[:MAX_RANK]]
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


def _sparse(buffer: mmap.mmap, start: int, stop: int, prefix: str) -> OutlineRow:
    """The row of a SparseTensorProto: the dense shape, and the bytes of values and indices."""
    path = dtype = ""
    nbytes = 0
    shape: list[int | str | None] = []
    for number, wire, _, at, end in fields(buffer, start, stop):
        if number in (1, 2) and wire == 2:
            row = _tensor(buffer, at, end, prefix)
            nbytes += row.nbytes or 0
            if number == 1:
                path, dtype = row.path, row.dtype
        elif number == 3 and len(shape) < MAX_RANK:
            packed = packed_varints(buffer, at, min(end, at + 10 * MAX_RANK)) if wire == 2 else [at]
            shape += [signed(d) for d in packed]
    return OutlineRow(path, "tensor", dtype, shape[:MAX_RANK], nbytes, "sparse")


def _value(buffer: mmap.mmap, start: int, stop: int, kind: str, prefix: str) -> OutlineRow:
    """The row of a ValueInfoProto: name and type of an input or output."""
    path, dtype = "", ""
    shape: list[int | str | None] | None = None
    for number, wire, _, at, end in fields(buffer, start, stop):
        if number == 1 and wire == 2:
            path = text(buffer, at, end, _MAX_TEXT)
        elif number == 2 and wire == 2:
            for sort, wire_, _, at_, end_ in fields(buffer, at, end):
                if wire_ == 2 and sort in (1, 8):
                    code, sizes = tensor_type(buffer, at_, end_, _MAX_TEXT)
                    dtype = _ELEMENTS.get(code, (f"type {code}" if code else "", 0))[0]
                    shape = sizes and [
                        None if isinstance(size, int) and size < 0 else size for size in sizes[:MAX_RANK]
                    ]
                elif wire_ == 2:
                    dtype = _OTHER_TYPES.get(sort, "")
    return OutlineRow(prefix + path, kind, dtype, shape)


_OTHER_TYPES = {4: "sequence", 5: "map", 9: "optional", 7: "opaque"}
"""Kinds of TypeProto that are no tensors."""
