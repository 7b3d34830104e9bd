"""The outline of an ONNX file: its nodes and initializers by their headers, one at a time.

The reader (`onnx_reader`) makes everything that an analysis needs of every node; this one makes a row and
forgets it, so that a file of any size is looked at in the memory of one row. It knows less and checks less:
what a node means is not asked, and what cannot be is said in the row's note instead of refusing the file.

Field numbers are those of onnx.proto (IR version 13).
"""

from __future__ import annotations

import mmap
import os

from explorer.engine.dtypes import ELEMENT_TYPES
from explorer.engine.formats.outline import Outline, OutlineRow
from explorer.engine.wire import fields, packed_varints, signed
from explorer.errors import BadModel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from explorer.engine.wire import Buffer

__all__ = ["outline"]

MAX_DEPTH = 32
"""Subgraphs within subgraphs; real models stay below 5."""

MAX_RANK = 64
_MAX_ELEMENTS = 1 << 48
_MAX_TEXT = 4096
"""Bytes of a name that are read: nobody looks at more, and a hostile one may be as long as its file."""
_MAX_FACTS = 32
_SHOWN = 3
"""Inputs and outputs of a node that its row names."""
_WHOLE = 1 << 16
"""A node of up to this many bytes is taken out of the map at once; above are weights within attributes."""
_FORGET = 1 << 24
"""Bytes after which the kernel may forget the mapped pages behind us, which count as our memory."""
_HEADER = 512
_MAX_ATTRIBUTES = 4096

_ELEMENTS = {code: (name, bits) for code, name, bits in ELEMENT_TYPES}
_BODIES = (b"If", b"Loop", b"Scan", b"SequenceMap")
_DATA = (4, 5, 7, 10, 11)
"""TensorProto's typed data fields."""


def outline(source: str) -> Outline:
    """What the headers of the ONNX file `source` say.

    Raises:
        BadModel: It is not an ONNX model, or ends where it should not.
    """
    try:
        with open(source, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                raise BadModel("the file is empty", where=source)
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise BadModel(f"cannot be read: {error.strerror or error}", where=source) from None
    # read-ahead would pull in weights around every header that we hop to
    data.madvise(mmap.MADV_RANDOM)
    try:
        facts, graph, ir = _model(data, size)
    except BadModel as error:
        raise BadModel(error.what, where=source, hint=error.hint) from None
    if graph is None:
        raise BadModel("this is not an ONNX model", where=source, hint="it holds no graph")
    return Outline("onnx", source, size, facts, _rows(source, data, graph, ir))


def _model(data: Buffer, size: int) -> tuple[list[tuple[str, str]], tuple[int, int] | None, int]:
    """The facts of a ModelProto, where its graph lies, and its IR version."""
    said: dict[int, str] = {}
    opsets: list[str] = []
    more: list[tuple[str, str]] = []
    graph: tuple[int, int] | None = None
    ir = functions = training = devices = 0
    for number, wire, _, at, end in fields(data, 0, size):
        if wire == 2:
            if number == 7:
                graph = (at, end)
            elif number in (2, 3, 4):
                said[number] = _text(data, at, end)
            elif number == 8 and len(opsets) < _MAX_FACTS:
                opsets.append(_opset(data, at, end))
            elif number == 14 and len(more) < _MAX_FACTS:
                more.append(_pair(data, at, end))
            functions += number == 25
            training += number == 20
            devices += number == 26
        elif number == 1 and wire == 0:
            ir = at
    facts = [("IR version", str(ir)), ("opset", ", ".join(opsets))]
    facts.append(("producer", " ".join(filter(None, (said.get(2), said.get(3))))))
    facts.append(("domain", said.get(4, "")))
    counted = (
        ("functions", functions),
        ("training graphs", training),
        ("device configurations", devices),
    )
    facts += [(name, str(count)) for name, count in counted if count]
    return [(key, text) for key, text in (*facts, *more) if text], graph, ir


def _rows(source: str, data: mmap.mmap, graph: tuple[int, int], ir: int) -> Iterator[OutlineRow]:
    try:
        yield from _graph(data, *graph, "", 0, ir < 4)
        for number, wire, _, at, end in fields(data, 0, len(data)):
            if number == 25 and wire == 2:
                yield from _function(data, at, end)
    except BadModel as error:
        raise BadModel(error.what, where=source, hint=error.hint) from None


def _graph(
    data: mmap.mmap, start: int, stop: int, prefix: str, depth: int, doubled: bool
) -> Iterator[OutlineRow]:
    """The rows of a GraphProto in its own order; `doubled`: initializers are listed as inputs, too."""
    if depth > MAX_DEPTH:
        raise BadModel(f"graphs are nested more than {MAX_DEPTH} deep")
    stored: set[str] = set()
    forgotten = start
    for number, wire, _, at, end in fields(data, start, stop):
        if wire != 2:
            continue
        if number == 1:
            yield from _node(data, at, end, prefix, depth)
        elif number == 5:
            row = _tensor(data, at, end, prefix)
            if doubled:
                stored.add(row.path)
            yield row
        elif number == 11 or number == 12:
            row = _value(data, at, end, "input" if number == 11 else "output", prefix)
            if row.path not in stored:
                yield row
        elif number == 15:
            yield _sparse(data, at, end, prefix)
        if end - forgotten > _FORGET:
            forgotten = _forget(data, forgotten, end)


def _forget(data: mmap.mmap, start: int, stop: int) -> int:
    page = mmap.PAGESIZE
    first, last = start // page * page, stop // page * page
    if last > first:
        data.madvise(mmap.MADV_DONTNEED, first, last - first)
    return stop


def _function(data: mmap.mmap, start: int, stop: int) -> Iterator[OutlineRow]:
    """A FunctionProto and its nodes: what it stands for, not what it unfolds to where it is called."""
    name = domain = ""
    nodes = 0
    for number, wire, _, at, end in fields(data, start, stop):
        if wire == 2 and number == 1:
            name = _text(data, at, end)
        elif wire == 2 and number == 10:
            domain = _text(data, at, end)
        nodes += number == 7
    path = f"{domain}.{name}" if domain else name
    yield OutlineRow(path, "function", "", None, None, f"{nodes:,} node{'s' * (nodes != 1)}")
    for number, wire, _, at, end in fields(data, start, stop):
        if number == 7 and wire == 2:
            yield from _node(data, at, end, f"{path}/", 1)


def _node(data: mmap.mmap, start: int, stop: int, prefix: str, depth: int) -> Iterator[OutlineRow]:
    inputs: list[bytes] = []
    outputs: list[bytes] = []
    name = op = domain = b""
    attributes: list[tuple[int, int]] = []
    many = 0
    at = 0
    whole = stop - start <= _WHOLE
    if whole:
        # one message without a call for a field: nearly every node is a few short names
        chunk = data[start:stop]
        last = len(chunk) - 1
        while at < last:
            tag, size = chunk[at], chunk[at + 1]
            end = at + 2 + size
            if size > 127 or end > last + 1:
                break
            if tag == 0x0A:
                many += 1
                if len(inputs) < _SHOWN:
                    inputs.append(chunk[at + 2 : end])
            elif tag == 0x12:
                if len(outputs) < _SHOWN:
                    outputs.append(chunk[at + 2 : end])
            elif tag == 0x1A:
                name = chunk[at + 2 : end]
            elif tag == 0x22:
                op = chunk[at + 2 : end]
            elif tag == 0x2A:
                attributes.append((start + at + 2, start + end))
            elif tag == 0x3A:
                domain = chunk[at + 2 : end]
            elif tag & 7 != 2 or tag > 127:
                break
            at = end
    for number, wire, _, here, end in fields(data, start + at, stop):
        if wire != 2:
            continue
        if number == 1:
            many += 1
            if len(inputs) < _SHOWN:
                inputs.append(data[here : min(end, here + _MAX_TEXT)])
        elif number == 2:
            if len(outputs) < _SHOWN:
                outputs.append(data[here : min(end, here + _MAX_TEXT)])
        elif number == 3:
            name = data[here : min(end, here + _MAX_TEXT)]
        elif number == 4:
            op = data[here : min(end, here + _MAX_TEXT)]
        elif number == 5 and len(attributes) < _MAX_ATTRIBUTES:
            attributes.append((here, end))
        elif number == 7:
            domain = data[here : min(end, here + _MAX_TEXT)]
    if many > _SHOWN:
        inputs.append(f"+{many - _SHOWN:,}".encode())
    note = b", ".join(inputs) + b" -> " + b", ".join(outputs)
    path = prefix + _decoded(name or (outputs[0] if outputs else b""))
    kind = _decoded(domain + b"." + op if domain not in (b"", b"ai.onnx") else op)
    constant = _constant(data, attributes) if op == b"Constant" else None
    if constant is None:
        yield OutlineRow(path, "operator", kind, None, None, _decoded(note))
    else:
        held = f"{constant.dtype} -> {_decoded(b', '.join(outputs))}"
        yield OutlineRow(path, "operator", kind, constant.shape, constant.nbytes, held)
    if op in _BODIES:
        for begin, end in attributes:
            yield from _bodies(data, begin, end, path, depth)


def _constant(data: mmap.mmap, attributes: list[tuple[int, int]]) -> OutlineRow | None:
    """The tensor that a Constant node holds."""
    for start, stop in attributes:
        for number, wire, _, at, end in fields(data, start, stop):
            if number == 5 and wire == 2:
                return _tensor(data, at, end, "")
    return None


def _bodies(data: mmap.mmap, start: int, stop: int, path: str, depth: int) -> Iterator[OutlineRow]:
    """The graphs in an attribute of a control-flow node."""
    name = ""
    for number, wire, _, at, end in fields(data, start, stop):
        if number == 1 and wire == 2:
            name = _text(data, at, end)
        elif number in (6, 11) and wire == 2:
            yield from _graph(data, at, end, f"{path}/{name}/", depth + 1, False)


def _tensor(data: mmap.mmap, start: int, stop: int, prefix: str) -> OutlineRow:
    """A TensorProto, its values untouched."""
    name, code, rank, held = b"", 0, 0, -1
    dims: list[int] = []
    external: dict[str, str] = {}
    located = False
    # what stands in front of the data, for most tensors all of it, without a call for a field
    head = data[start : min(stop, start + _HEADER)]
    at, last = 0, len(head) - 2
    while at < last:
        tag, value = head[at], head[at + 1]
        if value > 127:
            break
        if tag == 8 and rank < MAX_RANK:
            dims.append(value)
            rank += 1
            at += 2
        elif tag == 16:
            code = value
            at += 2
        elif tag == 66 and at + 2 + value <= last:
            name = head[at + 2 : at + 2 + value]
            at += 2 + value
        else:
            break
    for number, wire, _, here, end in fields(data, start + at, stop):
        if number == 9 and wire == 2:
            held = end - here
        elif number == 1:
            if wire == 2 and end - here <= 10 * MAX_RANK:
                dims += packed_varints(data, here, end)
                rank = len(dims)
            else:
                rank = rank + 1 if wire == 0 else MAX_RANK + 1
                if rank <= MAX_RANK:
                    dims.append(here)
        elif number == 2 and wire == 0:
            code = here
        elif number == 8 and wire == 2:
            name = data[here : min(end, here + _MAX_TEXT)]
        elif number == 6 and wire == 2:
            held = max(held, 0) + end - here
        elif number == 13 and wire == 2 and len(external) < _MAX_FACTS:
            key, text = _pair(data, here, end)
            external[key] = text
        elif number == 14 and wire == 0:
            located = here == 1
    dtype, bits = _ELEMENTS.get(code, (f"type {code}", None))
    shape = [signed(d) for d in dims]
    notes = [f"in {external.get('location', '?')}"] if located else []
    count = 1
    for dim in shape:
        count *= dim
    nbytes: int | None
    if rank > MAX_RANK or any(d < 0 for d in shape) or abs(count) > _MAX_ELEMENTS:
        nbytes = None
        shape = shape[:MAX_RANK]
        notes.append("impossible dimensions")
    elif code == 8:
        nbytes = max(held, 0)
    elif bits is None:
        nbytes = held if held >= 0 else None
        notes.append("unknown element type")
    else:
        nbytes = (count * bits + 7) // 8
        if held >= 0 and not located and held != nbytes:
            notes.append(f"holds {held:,} bytes of {nbytes:,}")
    return OutlineRow(prefix + _decoded(name), "tensor", dtype, shape, nbytes, "; ".join(notes))


def _sparse(data: mmap.mmap, start: int, stop: int, prefix: str) -> OutlineRow:
    """A SparseTensorProto: the shape is the whole one, the bytes are those of values and indices."""
    path = dtype = ""
    nbytes = 0
    shape: list[int | str | None] = []
    for number, wire, _, at, end in fields(data, start, stop):
        if number in (1, 2) and wire == 2:
            row = _tensor(data, at, end, prefix)
            nbytes += row.nbytes or 0
            if number == 1:
                path, dtype = row.path, row.dtype
        elif number == 3 and len(shape) < MAX_RANK:
            packed = packed_varints(data, at, min(end, at + 10 * MAX_RANK)) if wire == 2 else [at]
            shape += [signed(d) for d in packed]
    return OutlineRow(path, "tensor", dtype, shape[:MAX_RANK], nbytes, "sparse")


def _value(data: mmap.mmap, start: int, stop: int, kind: str, prefix: str) -> OutlineRow:
    """A ValueInfoProto: the name and the type of an input or output."""
    path, dtype = "", ""
    shape: list[int | str | None] | None = None
    for number, wire, _, at, end in fields(data, start, stop):
        if number == 1 and wire == 2:
            path = _text(data, at, end)
        elif number == 2 and wire == 2:
            for sort, wire_, _, at_, end_ in fields(data, at, end):
                if wire_ == 2 and sort in (1, 8):
                    dtype, shape = _tensor_type(data, at_, end_)
                elif wire_ == 2:
                    dtype = _OTHER_TYPES.get(sort, "")
    return OutlineRow(prefix + path, kind, dtype, shape)


_OTHER_TYPES = {4: "sequence", 5: "map", 9: "optional", 7: "opaque"}
"""TypeProto's kinds that are no tensors."""


def _tensor_type(data: mmap.mmap, start: int, stop: int) -> tuple[str, list[int | str | None] | None]:
    dtype = ""
    shape: list[int | str | None] | None = None
    for number, wire, _, at, end in fields(data, start, stop):
        if number == 1 and wire == 0:
            dtype = _ELEMENTS.get(at, (f"type {at}", 0))[0]
        elif number == 2 and wire == 2:
            shape = []
            for kind, wire_, _, at_, end_ in fields(data, at, end):
                if kind == 1 and wire_ == 2 and len(shape) < MAX_RANK:
                    shape.append(_dim(data, at_, end_))
    return dtype, shape


def _dim(data: mmap.mmap, start: int, stop: int) -> int | str | None:
    for number, wire, _, at, end in fields(data, start, stop):
        if number == 1 and wire == 0:
            size = signed(at)
            return None if size < 0 else size
        if number == 2 and wire == 2:
            return _text(data, at, end) or None
    return None


def _opset(data: Buffer, start: int, stop: int) -> str:
    domain, version = "", 0
    for number, wire, _, at, end in fields(data, start, stop):
        if number == 1 and wire == 2:
            domain = _text(data, at, end)
        elif number == 2 and wire == 0:
            version = signed(at)
    return f"{domain} {version}" if domain not in ("", "ai.onnx") else str(version)


def _pair(data: Buffer, start: int, stop: int) -> tuple[str, str]:
    key = text = ""
    for number, wire, _, at, end in fields(data, start, stop):
        if number == 1 and wire == 2:
            key = _text(data, at, end)
        elif number == 2 and wire == 2:
            text = _text(data, at, end)
    return key, text


def _text(data: Buffer, start: int, stop: int) -> str:
    return _decoded(bytes(data[start : min(stop, start + _MAX_TEXT)]))


def _decoded(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
