"""TensorFlow Lite reader: tensors, operators and buffers of a file, with every index and offset checked.

The structure is read from the map, and payloads stay in the file: inside the flatbuffer, or after it in files
above 2 GiB. An outline needs only this module; `graph` builds a model from it.

Slots are the field numbers of schema.fbs, in its order; the fields of a flatbuffer never change their
numbers.
"""

from __future__ import annotations

import mmap

from explorer.base.errors import BadModel
from explorer.engine.formats.tflite import IDENTIFIER, schema
from explorer.engine.formats.tflite.flatbuffer import FlatTable, ReadBudget, root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from explorer.engine.formats.onnx.protobuf_wire import Buffer

MAX_RANK = 64

_FORGOTTEN = 16
"""Number of buffers after which mapped pages are released; they count as this process's memory."""

_CUSTOM = 32
"""The schema's number of a custom operator."""


class TfliteQuantization:
    """Quantization of a tensor: number = scale x (integer - zero point).

    Attributes:
        scales: Number of scales: one for the tensor, or one for each index of `axis`.
        zero_points: Number of zero points.
        scale: The first scale.
        zero_point: The first zero point.
        axis: Axis along which the scales change; relevant only if there are several.
        block: Elements that share a scale, if scales are tensors of the file; else 0.
        beside: Numbers of the tensors of scales and zero points.
    """

    __slots__ = ("_table", "axis", "beside", "block", "scale", "scales", "zero_point", "zero_points")

    def __init__(self, table: FlatTable) -> None:
        self._table = table
        self.scales = table.vector(2, 4)[1]
        self.zero_points = table.vector(3, 8)[1]
        self.scale: float = table.first(2, "f")
        self.zero_point = int(table.first(3, "q"))
        self.axis = table.number(6, "i")
        self.block = 0
        self.beside: tuple[int, ...] = ()
        details = table.table(5) if table.number(4, "B") == 2 else None
        if details is not None:
            # LiteRT's blocks: scales and zero points are tensors, and 0 means none
            self.block = max(details.number(2, "i"), 1)
            self.beside = tuple([n for n in (details.number(0, "i"), details.number(1, "i")) if n > 0])

    def numbers(self) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """All scales and all zero points; no zero points means that they are 0."""
        return self._table.numbers(2, "f"), self._table.numbers(3, "q")

    @property
    def nbytes(self) -> int:
        """Bytes of the scales (float32) and zero points (int64) in the file's structure."""
        return 4 * self.scales + 8 * self.zero_points

    def text(self) -> str:
        """Description for a person."""
        if self.block:
            return f"a scale for every {self.block:,} elements"
        if self.scales > 1:
            return f"{self.scales:,} scales along axis {self.axis}"
        return f"scale {self.scale:.6g}, zero point {self.zero_point}"


class TfliteTensor:
    """A tensor of a subgraph.

    Attributes:
        name: Its name in the file; may be empty or not unique.
        dtype: Its element type in our spelling; None for a handle, a list, or an unknown type.
        type: The type's name in the schema.
        shape: Its shape unless it is resized; None if its rank is unknown.
        signature: The shape with -1 for resizable sizes; empty if there are none.
        data: Offset and size of its bytes in the file; None if they are not in the file.
        external: Whether its bytes are in another file.
        variable: Whether it keeps its values between runs.
        sparse: Whether it is stored sparsely.
        indices: Bytes of the sparse indices.
        values: Number of stored elements of a sparse tensor, from its indices; None if unknown.
        quantization: Its quantization; None if there is none.
    """

    __slots__ = (
        "data",
        "dtype",
        "external",
        "indices",
        "name",
        "quantization",
        "shape",
        "signature",
        "sparse",
        "type",
        "values",
        "variable",
    )

    def __init__(self, table: FlatTable, buffer: tuple[int, int] | None) -> None:
        self.name = name = table.text(3)
        shape: tuple[int, ...] = table.numbers(0, "i")
        signature: tuple[int, ...] = table.numbers(7, "i")
        if len(shape) > MAX_RANK or min(shape, default=0) < -1 or min(signature, default=0) < -1:
            raise BadModel(f"tensor '{name}' has impossible dimensions {list(shape or signature)[:8]}")
        if signature and len(signature) != len(shape):
            raise BadModel(f"tensor '{name}' has {len(shape)} dimensions and a signature of {len(signature)}")
        if -1 in shape and -1 not in signature:
            signature = shape
        self.shape: tuple[int, ...] | None = shape
        self.signature = signature if -1 in signature else ()
        number = table.number(1, "b")
        self.dtype = schema.DTYPES.get(number)
        self.type = schema.names("TensorType").get(number, f"TYPE_{number}")
        self.data = buffer
        self.external = bool(table.number(10, "I"))
        self.variable = bool(table.number(5, "B"))
        sparsity = table.table(6)
        self.sparse = sparsity is not None
        dimensions = [] if sparsity is None else sparsity.tables(2)
        self.indices = sum(map(_indices, dimensions))
        self.values = _values(dimensions)
        quantization = table.table(4)
        record = TfliteQuantization(quantization) if quantization is not None else None
        # converters leave an empty record, or one with the smallest and largest values only
        self.quantization = record if record is not None and (record.scales or record.block) else None

    @property
    def dims(self) -> tuple[int, ...] | None:
        """The shape with -1 for every resizable size."""
        return self.signature or self.shape

    @property
    def stored(self) -> bool:
        """Whether it is a constant."""
        return self.data is not None or self.external


class TfliteOperator:
    """An operator of a subgraph.

    Attributes:
        op: Its name in the schema, or the name of a custom operator.
        custom: Whether it is a custom operator.
        version: Version of its definition.
        inputs: Numbers of its input tensors; -1 for an omitted one.
        outputs: Numbers of its output tensors; -1 for an omitted one.
        kind: Kind of its options; None if it has none, or unknown ones.
        options: Table of its options.
        own: Offset and size of a custom operator's options.
    """

    __slots__ = ("custom", "inputs", "kind", "op", "options", "outputs", "own", "version")

    def __init__(self, table: FlatTable, code: tuple[str, bool, int], count: int, size: int) -> None:
        self.op, self.custom, self.version = code
        self.inputs: tuple[int, ...] = table.numbers(1, "i")
        self.outputs: tuple[int, ...] = table.numbers(2, "i")
        for number in (*self.inputs, *self.outputs):
            if not -1 <= number < count:
                raise BadModel(f"an operator {self.op} names tensor {number:,}, and there are {count:,}")
        self.kind: tuple[str, int] | None = None
        self.options: FlatTable | None = None
        for union, slot in (("BuiltinOptions", 3), ("BuiltinOptions2", 11)):
            kind = table.number(slot, "B")
            if kind and self.kind is None:
                self.kind = union, kind
                self.options = table.table(slot + 1)
        self.own = table.vector(5, 1)
        offset = table.number(9, "Q")
        if offset > 1:
            self.own = _inside(offset, table.number(10, "Q"), size, f"the options of an operator {self.op}")


class Subgraph:
    """A subgraph: tensors, and operators in execution order.

    Attributes:
        name: May be empty.
        tensors: All of them.
        inputs: Numbers of tensors.
        outputs: Numbers of tensors.
        operators: In order.
    """

    __slots__ = ("inputs", "name", "operators", "outputs", "tensors")

    def __init__(self, table: FlatTable, file: TfliteFile) -> None:
        self.name = table.text(4)
        tables = table.tables(0)
        self.tensors = [TfliteTensor(t, file.buffer(t.number(2, "I"))) for t in tables]
        ranked = [bool(t.number(8, "B")) for t in tables]
        if any(ranked):
            # writers that set this field distinguish scalars from tensors of unknown rank
            for tensor, has_rank in zip(self.tensors, ranked, strict=True):
                if not has_rank and not tensor.shape and not tensor.stored:
                    tensor.shape = None
        count, size = len(tables), len(file.data)
        codes = file.codes
        self.operators: list[TfliteOperator] = []
        for entry in table.tables(3):
            at = entry.number(0, "I")
            if at >= len(codes):
                raise BadModel(f"an operator names operator code {at:,}, and there are {len(codes):,}")
            self.operators.append(TfliteOperator(entry, codes[at], count, size))
        self.inputs: tuple[int, ...] = table.numbers(1, "i")
        self.outputs: tuple[int, ...] = table.numbers(2, "i")
        computed = {*self.inputs, *[n for operator in self.operators for n in operator.outputs]}
        for number, tensor in enumerate(self.tensors):
            if (
                tensor.shape is not None
                and 0 in tensor.shape
                and number not in computed
                and not tensor.stored
            ):
                # a constant without elements has no bytes that identify it as a constant
                tensor.data = 0, 0
        for number in (*self.inputs, *self.outputs):
            if not 0 <= number < count:
                raise BadModel(f"subgraph '{self.name}' names tensor {number:,}, and there are {count:,}")


class TfliteFile:
    """A file's structure.

    Args:
        data: The file.

    Attributes:
        data: The same.
        budget: Budget for reading.
        version: Version of the schema.
        description: The writer's description.
        codes: Operators that it uses: name, whether it is custom, and version.
        subgraphs: Numbers that `subgraph` takes; the first subgraph is the main one.
        buffers: Number of buffers.
        metadata: Offset and size of each metadata entry, by name.
        signatures: Names of signatures, with the number of the subgraph.

    Raises:
        BadModel: It is no TensorFlow Lite model, is cut off, or contradicts itself.
        MissingExtra: The schema's package is not installed.
    """

    def __init__(self, buffer: Buffer) -> None:
        if buffer[4:8] != IDENTIFIER:
            raise BadModel("this is not a TensorFlow Lite model", hint="its bytes 4 to 8 are not 'TFL3'")
        self.data = buffer
        self.budget = ReadBudget(len(buffer))
        model = root(buffer, self.budget)
        self.version = model.number(0, "I")
        self.description = model.text(3)
        self.codes = [_code(t) for t in model.tables(1)]
        # a buffer's table lies beside its payload: read only those that are needed
        self._model = model
        self._places, self._count = model.vector(4, 4)
        model.budget.spend(8 * self._count)
        self._known: dict[int, tuple[int, int] | None] = {0: None}
        self._tables = model.tables(2)
        if not self._tables:
            raise BadModel("it holds no subgraph, so nothing that can run")
        self.metadata: dict[str, tuple[int, int]] = {}
        for entry in model.tables(6):
            place = self.buffer(entry.number(1, "I"))
            if place is not None:
                self.metadata[entry.text(0)] = place
        self.signatures = tuple([(t.text(2), t.number(4, "I")) for t in model.tables(7)])

    @property
    def count(self) -> int:
        """Number of subgraphs."""
        return len(self._tables)

    def subgraph(self, at: int) -> Subgraph:
        """The subgraph of this number, read anew at every call.

        Raises:
            BadModel: There is none, or it contradicts itself.
        """
        if not 0 <= at < self.count:
            raise BadModel(f"subgraph {at:,} is named, and there are {self.count:,}")
        return Subgraph(self._tables[at], self)

    def buffer(self, at: int) -> tuple[int, int] | None:
        """Offset and size of the bytes of the buffer with this number; None if it has none.

        Raises:
            BadModel: There is no such buffer, or it does not lie in the file.
        """
        if at not in self._known:
            if at >= self._count:
                raise BadModel(f"buffer {at:,} is named, and there are {self._count:,}")
            if not len(self._known) % _FORGOTTEN and isinstance(self.data, mmap.mmap):
                self.data.madvise(mmap.MADV_DONTNEED)
            table = self._model.inner(self._places + 4 * at)
            place, size = table.vector(0, 1)
            offset = table.number(1, "Q")
            if offset > 1:
                # after the flatbuffer, whose own offsets end at 2 GiB
                place, size = _inside(offset, table.number(2, "Q"), len(self.data), f"buffer {at:,}")
            self._known[at] = (place, size) if size else None
        return self._known[at]


_INDEX_BYTES = (0, 4, 2, 1)
"""Bytes of an index by the number of its vector's type in the union SparseIndexVector."""


def _indices(dimension: FlatTable) -> int:
    """Bytes of the segments and indices of one dimension of a sparse tensor."""
    total = 0
    for kind, slot in ((2, 3), (4, 5)):
        number = dimension.number(kind, "B")
        vector = dimension.table(slot) if 0 < number < len(_INDEX_BYTES) else None
        if vector is not None:
            total += vector.vector(0, _INDEX_BYTES[number])[1] * _INDEX_BYTES[number]
    return total


def _values(dimensions: Sequence[FlatTable]) -> int | None:
    """Number of values that a sparse tensor stores, from its dimensions; None if unknown.

    From the outermost to the innermost dimension, a dense one multiplies the number by its size, and a sparse
    one sets it to the number of its indices.
    """
    count = 1
    for dimension in dimensions:
        if not dimension.number(0, "b"):
            count *= max(dimension.number(1, "i"), 0)
            continue
        number = dimension.number(4, "B")
        vector = dimension.table(5) if 0 < number < len(_INDEX_BYTES) else None
        count = vector.vector(0, _INDEX_BYTES[number])[1] if vector is not None else 0
    return count if dimensions else None


def _inside(offset: int, count: int, size: int, what: str) -> tuple[int, int]:
    if offset + count > size:
        raise BadModel(f"{what} ({count:,} bytes at {offset:,}) does not fit in the file of {size:,} bytes")
    return offset, count


def _code(table: FlatTable) -> tuple[str, bool, int]:
    """Name, whether it is custom, and version of an operator code."""
    # numbers from 127 on are in a field that was added later
    number = max(table.number(0, "b"), table.number(3, "i"))
    version = table.number(2, "i", 1)
    if number == _CUSTOM:
        return table.text(1) or "CUSTOM", True, version
    return schema.names("BuiltinOperator").get(number, f"BUILTIN_{number}"), False, version
