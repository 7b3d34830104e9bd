"""Intermediate representation (IR): the engine's form of an ONNX model, with structure but without weights.

onnx's ModelProto copies every weight into memory, and onnx-ir reads initializers through it. Here a weight is
a `Payload`: the location of its bytes, or a function that computes them. A model of 550 MB takes a few
hundred kilobytes of these objects. A transformed model shares unchanged payloads with its source, and the
writer streams both (`formats.onnx.writer`).

Models are immutable once built: a transform creates a new model.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.engine.graph.dtypes import ELEMENT_TYPES, get_numpy_type, unpack_numbers
from explorer.facts import Dim
from explorer.host import input_files

if TYPE_CHECKING:
    import numpy as np


class DType(Struct, frozen=True):
    """A tensor element type.

    Attributes:
        code: Code of TensorProto.DataType.
        name: Name in numpy or ml_dtypes.
        bits: Width in bits, or 0 for strings.
    """

    code: int
    name: str
    bits: int


DTYPES: Mapping[int, DType] = {code: DType(code, name, bits) for code, name, bits in ELEMENT_TYPES}
"""Element types by their code."""

_CODE_BY_NAME = {d.name: d.code for d in DTYPES.values()}
_BITS = {d.name: d.bits for d in DTYPES.values()}


def get_dtype_code(name: str) -> int:
    """Returns ONNX's code of an element type with this name in numpy.

    Raises:
        KeyError: ONNX has no such type.
    """
    return _CODE_BY_NAME[name]


def count_dense_bytes(shape: Sequence[Dim] | None, dtype: str | None) -> int | None:
    """Returns the bytes of a dense tensor, or None if its shape or type is unknown or it holds strings."""
    bits = _BITS.get(dtype or "")
    if not bits or shape is None:
        return None
    for size in shape:
        if not isinstance(size, int):
            return None
        bits *= size
    return (bits + 7) // 8


class Source:
    """A file that is mapped read-only and stays mapped while a payload refers to it.

    Attributes:
        path: Path of the file.
        size: Size of the file in bytes.
        map: Mapped bytes, or b'' for an empty file.
        spans_read: Offset and size in bytes of every span that was read.
    """

    __slots__ = ("map", "path", "size", "spans_read")

    def __init__(self, path: str) -> None:
        self.path = path
        self.spans_read: set[tuple[int, int]] = set()
        descriptor, self.size = input_files.open_descriptor(path)
        try:
            # an empty file cannot be mapped, but an empty buffer behaves the same for readers
            self.map: mmap.mmap | bytes = b""
            if self.size:
                self.map = input_files.map_into_memory(descriptor, self.size)
                input_files.prevent_read_ahead(self.map)
        finally:
            os.close(descriptor)

    def release(self) -> None:
        """Releases the mapped pages that were read, which count as memory of the process until then."""
        if isinstance(self.map, mmap.mmap):
            self.map.madvise(mmap.MADV_DONTNEED)


class FileSpan(Struct, frozen=True, gc=False):
    """`size` bytes of the file `source` from `offset` on."""

    source: Source
    offset: int
    size: int

    def view(self) -> memoryview:
        """Returns the mapped bytes, without a copy."""
        self.source.spans_read.add((self.offset, self.size))
        return memoryview(self.source.map)[self.offset : self.offset + self.size]

    def read_pieces(self) -> Iterator[memoryview]:
        """Yields the bytes in pieces of at most 16 MiB, and releases the pages of each piece after it."""
        view = self.view()
        for start in range(0, self.size, 1 << 24):
            yield view[start : start + (1 << 24)]
            self.release(start, start + (1 << 24))

    def release(self, start: int, stop: int) -> None:
        """Releases the mapped pages between two offsets of this span.

        Mapped pages count as memory of the process until then. They can still be read again.
        """
        page = mmap.PAGESIZE
        first = -(-(self.offset + start) // page) * page
        last = (self.offset + min(stop, self.size)) // page * page
        if last > first and isinstance(self.source.map, mmap.mmap):
            self.source.map.madvise(mmap.MADV_DONTNEED, first, last - first)


class Inline(Struct, frozen=True):
    """Bytes in memory, for small constants."""

    data: bytes

    @property
    def size(self) -> int:
        """Length in bytes."""
        return len(self.data)

    def view(self) -> memoryview:
        """Returns the bytes without a copy."""
        return memoryview(self.data)

    def read_pieces(self) -> Iterator[memoryview]:
        """Yields the bytes as one piece."""
        yield memoryview(self.data)


class ComputedPayload(Struct, frozen=True):
    """Bytes that are computed slab by slab while they are written, such as the tiles of a weight.

    Attributes:
        size: Number of bytes.
        make: Function that yields buffers whose sizes add up to `size`.
        parts: The same bytes in pieces that can be computed in any order, or () if they are not divided.
        is_independent: Whether this piece can be computed in parallel with others.
    """

    size: int
    make: Callable[[], Iterator[memoryview]]
    parts: tuple[ComputedPayload, ...] = ()
    is_independent: bool = False

    def view(self) -> memoryview:
        """Computes all bytes, and returns them as a copy."""
        return memoryview(b"".join(self.make()))

    def read_pieces(self) -> Iterator[memoryview]:
        """Yields the slabs as they are computed."""
        return self.make()


class DerivedPayload(Struct, frozen=True):
    """Bytes that are computed from another tensor when they are read.

    Only the bytes of the payload that was read last are cached.

    Attributes:
        size: Number of bytes.
        make: Function that computes the bytes.
    """

    size: int
    make: Callable[[], bytes]

    def view(self) -> memoryview:
        """Returns all bytes, computed unless they are the most recent ones."""
        # read once, because another thread may replace the entry at any time
        latest = _LATEST.entry
        if latest is None or latest[0] is not self:
            latest = _LATEST.entry = None  # free the old bytes before the new bytes are allocated
            latest = _LATEST.entry = self, self.make()
        return memoryview(latest[1])

    def read_pieces(self) -> Iterator[memoryview]:
        """Yields the bytes as one piece."""
        yield self.view()


class _LatestBytes:
    """The most recent payload that was computed, with its bytes."""

    entry: tuple[DerivedPayload, bytes] | None = None


_LATEST = _LatestBytes()

Payload = FileSpan | Inline | ComputedPayload | DerivedPayload


class Tensor(Struct, frozen=True):
    """An initializer or constant.

    Attributes:
        name: Name of the value.
        dtype: Element type in numpy's or ml_dtypes' spelling.
        shape: Shape of the tensor.
        payload: Little-endian raw data (packed for types below 8 bits), or None for missing data, strings and
            sparse tensors.
        record: Encoded TensorProto in the file, from which an unchanged tensor is copied.
        external: File next to the model with the data, or '' if the model holds it.
        beside: Bytes of scales and zero points that the format stores separately.
        stored_elements: Number of stored elements of a tensor that is stored without its zeros, else None.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    payload: Payload | None
    record: FileSpan | Inline | None = None
    external: str = ""
    beside: int = 0
    stored_elements: int | None = None

    @property
    def elements(self) -> int:
        """Number of stored elements."""
        return math.prod(self.shape) if self.stored_elements is None else self.stored_elements

    @property
    def nbytes(self) -> int:
        """Stored bytes: packed bytes for packed types, bytes in the file for strings."""
        return self.extent[1]

    @property
    def extent(self) -> tuple[int, int]:
        """The number of stored elements, and the stored bytes."""
        count = math.prod(self.shape) if self.stored_elements is None else self.stored_elements
        bits = _BITS[self.dtype]
        if bits:
            return count, (count * bits + 7) // 8
        return count, self.payload.size if self.payload is not None else 0

    def array(self) -> np.ndarray[Any, Any]:
        """Returns the values as a read-only array, mapped if they are in a file.

        Integers below 8 bits are unpacked to int8, other types below 8 bits to one byte per number.

        Raises:
            BadModel: There is no data, its size is wrong, or the tensor holds strings or omits its zeros.
        """
        import numpy as np

        if self.payload is None:
            raise BadModel(f"tensor '{self.name}' carries no data")
        bits = _BITS[self.dtype]
        if bits == 0:
            raise BadModel(f"tensor '{self.name}' holds strings, not numbers")
        if self.stored_elements is not None:
            raise BadModel(f"tensor '{self.name}' is stored without its zeros")
        if self.payload.size != self.nbytes:
            raise BadModel(f"tensor '{self.name}' of {self.nbytes:,} bytes comes with {self.payload.size:,}")
        if bits < 8:
            flat = unpack_numbers(self.payload.view(), bits, self.dtype)[: self.elements].reshape(self.shape)
            return flat.view(np.int8) if flat.dtype == np.uint8 else flat
        return np.frombuffer(self.payload.view(), get_numpy_type(self.dtype)).reshape(self.shape)


def list_sources(tensors: Iterable[Tensor]) -> list[Source]:
    """Returns the files that hold the tensors."""
    return list({id(p.source): p.source for t in tensors if isinstance(p := t.payload, FileSpan)}.values())


class Value(Struct, frozen=True):
    """A declared graph input, output or intermediate value.

    `dtype` is None if no tensor type is declared (sequences, optionals), and `shape` is None if no shape is
    declared. `record` is the encoded ValueInfoProto.
    """

    name: str
    dtype: str | None
    shape: tuple[Dim, ...] | None
    record: FileSpan | Inline | None = None


_NONE: Mapping[str, Any] = {}


class Node:
    """One operator. Attributes of a node from a file are decoded at first access.

    Of a node from a file, `record` is the encoded NodeProto and `decode` returns the attributes. Nodes with
    the same bytes in `alike` have equal attributes; None if unknown.
    """

    __slots__ = (
        "_attributes",
        "alike",
        "domain",
        "inputs",
        "metadata",
        "name",
        "op",
        "outputs",
        "overload",
        "record",
    )

    def __init__(
        self,
        op: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        name: str = "",
        domain: str = "",
        overload: str = "",
        attributes: Mapping[str, Any] | None = None,
        metadata: Mapping[str, str] | None = None,
        record: FileSpan | None = None,
        decode: Callable[[], Mapping[str, Any]] | None = None,
        alike: bytes | None = None,
    ) -> None:
        self.op = op
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.name = name
        self.domain = "" if domain == "ai.onnx" else domain
        self.overload = overload
        self.metadata: Mapping[str, str] = metadata or _NONE
        self.record = record
        self._attributes: Mapping[str, Any] | Callable[[], Mapping[str, Any]] = decode or attributes or _NONE
        self.alike = b"" if alike is None and not (decode or attributes) else alike

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Values by name: int, float, str, bytes, `Tensor`, `Graph`, or tuples of them.

        A string attribute is a str if it is UTF-8, else bytes. In a function body, a reference to an
        attribute of the function is an `AttributeRef`.
        """
        if callable(self._attributes):
            self._attributes = self._attributes()
        return self._attributes

    @property
    def key(self) -> tuple[str, str, str]:
        """(domain, op, overload): the key of a local function."""
        return self.domain, self.op, self.overload

    @property
    def label(self) -> str:
        """The name for display and matching: the node's own name, or the name of its first output."""
        return self.name or next((o for o in self.outputs if o), "") or self.op

    def replace_attributes(self, attributes: Mapping[str, Any]) -> Node:
        """Returns the same node with other attributes."""
        return self._copy_with(attributes=attributes)

    def replace_values(self, inputs: Sequence[str], outputs: Sequence[str], name: str | None = None) -> Node:
        """Returns the same node with other inputs and outputs, and with another name if given."""
        return self._copy_with(inputs=inputs, outputs=outputs, **({} if name is None else {"name": name}))

    def _copy_with(self, **changes: Any) -> Node:
        names = ("op", "inputs", "outputs", "name", "domain", "overload", "attributes", "metadata")
        return Node(**{name: getattr(self, name) for name in names if name not in changes}, **changes)

    def __repr__(self) -> str:
        return f"Node({self.op}, {list(self.inputs)} -> {list(self.outputs)}, name={self.name!r})"


class AttributeRef(Struct, frozen=True):
    """A reference in a function body to an attribute of the calling node.

    `kind` is the AttributeProto.AttributeType that the reference must carry.
    """

    name: str
    kind: int = 0


class Graph(Struct, frozen=True):
    """Nodes in topological order, with the declared inputs, outputs and values.

    Attributes:
        name: Name of the graph.
        nodes: Nodes.
        inputs: Declared inputs; an input with an initializer of the same name has this default value.
        outputs: Declared outputs.
        initializers: Stored tensors, by name.
        values: Declared intermediate values.
    """

    name: str
    nodes: Sequence[Node]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    initializers: Mapping[str, Tensor]
    values: tuple[Value, ...] = ()
    extra: tuple[FileSpan, ...] = ()
    """Uninterpreted fields (doc string, sparse initializers, quantization, metadata)."""

    @property
    def required_inputs(self) -> tuple[Value, ...]:
        """The inputs that a caller must pass: those without an initializer of the same name."""
        return tuple(v for v in self.inputs if v.name not in self.initializers)


class Function(Struct, frozen=True):
    """A model-local function: an operator that is defined by a body of nodes.

    Attributes:
        domain: Domain of the operator.
        name: Name of the operator.
        inputs: Names of the inputs in the body.
        outputs: Names of the outputs in the body.
        nodes: Nodes of the body, in topological order.
        opsets: Version of each operator set in the body, by domain.
        attributes: Names of the attributes that a call must set.
        defaults: Default values of the other attributes, by name.
        overload: Name that distinguishes functions of the same domain and name.
        metadata: Metadata, by key.
        record: Encoded FunctionProto, or None for a new or changed function.
        values: Declared values of the body.
    """

    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: Sequence[Node]
    opsets: Mapping[str, int]
    attributes: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    overload: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    record: FileSpan | None = None
    values: tuple[Value, ...] = ()
    extra: tuple[FileSpan, ...] = ()
    """Uninterpreted fields (doc string)."""

    @property
    def key(self) -> tuple[str, str, str]:
        """(domain, name, overload)."""
        return ("" if self.domain == "ai.onnx" else self.domain), self.name, self.overload


class Model(Struct, frozen=True):
    """A graph with its operator sets and functions.

    Attributes:
        graph: Main graph.
        opsets: Version of each operator set, by domain.
        ir_version: Version of the ONNX format.
        functions: Model-local functions by (domain, name, overload).
        producer: Name of the program that wrote the model, or ''.
        producer_version: Version of this program, or ''.
        path: Path of the model's file, or ''.
        metadata: Metadata of the model, by key.
    """

    graph: Graph
    opsets: Mapping[str, int]
    ir_version: int
    functions: Mapping[tuple[str, str, str], Function] = field(default_factory=dict)
    producer: str = ""
    producer_version: str = ""
    path: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    extra: tuple[FileSpan, ...] = ()
    """Uninterpreted top-level fields (domain, doc string, training info)."""
    source: Source | None = None
    """The file that the model was read from, if any."""
    externals: Mapping[str, Source] = field(default_factory=dict)
    """External data files by their paths in the model; decoding attributes may add more."""

    @property
    def opset(self) -> int:
        """Version of the default operator set; 0 if the model imports none."""
        return self.opsets.get("", 0)

    @property
    def defaults(self) -> frozenset[str]:
        """Initializers that a caller may replace, because they are also listed as inputs.

        Before IR version 4 every initializer had to be listed among the inputs, so these are constants.
        """
        if self.ir_version < 4:
            return frozenset()
        return frozenset(v.name for v in self.graph.inputs if v.name in self.graph.initializers)


def rename_file(model: Model, path: str) -> Model | None:
    """Returns the model after its file was renamed to `path`, or None if the model has external files.

    The file stays mapped. The old model object must not be used afterwards, because its source now has the
    new path.
    """
    if model.source is None or model.externals:
        return None
    model.source.path = path
    return replace(model, path=path)


CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Operators of the default domain that contain graphs."""


def list_bodies(node: Node) -> tuple[tuple[str, Graph], ...]:
    """Returns the graphs in a node's attributes (branches of If, bodies of loops), each after its name.

    The name is that of the attribute; for an attribute with several graphs, it is followed by '[index]'.

    Of the default domain, only the operators in `CONTROL_FLOW` are examined, because decoding the attributes
    of every Conv would take longer than reading the file.
    """
    if not node.domain and node.op not in CONTROL_FLOW:
        return ()
    bodies: list[tuple[str, Graph]] = []
    for name, value in node.attributes.items():
        if isinstance(value, Graph):
            bodies.append((name, value))
        elif isinstance(value, tuple):
            bodies += [(f"{name}[{i}]", g) for i, g in enumerate(value) if isinstance(g, Graph)]
    return tuple(bodies)


def replace_bodies(node: Node, changed: Mapping[str, Any]) -> Node:
    """Returns a node with the bodies in `changed`, by the names that `list_bodies` returns; others stay."""
    attributes: dict[str, Any] = {}
    for name, value in node.attributes.items():
        if isinstance(value, tuple):
            value = tuple(changed.get(f"{name}[{index}]", element) for index, element in enumerate(value))
        attributes[name] = changed.get(name, value)
    return node.replace_attributes(attributes)


def list_graphs(graph: Graph) -> Iterator[Graph]:
    """Yields a graph and all graphs in it, outer before inner."""
    yield graph
    for node in graph.nodes:
        for _, body in list_bodies(node):
            yield from list_graphs(body)


def build_tensor(name: str, array: np.ndarray[Any, Any]) -> Tensor:
    """Builds a tensor with a copy of the bytes of a small array."""
    return Tensor(name, str(array.dtype), tuple(array.shape), Inline(array.tobytes()))


def build_int64_tensor(name: str, values: Sequence[int]) -> Tensor:
    """Builds a one-dimensional int64 tensor, without numpy."""
    return Tensor(name, "int64", (len(values),), Inline(struct.pack(f"<{len(values)}q", *values)))
