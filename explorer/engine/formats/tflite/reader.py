"""TensorFlow Lite reader: reads tensors, operators and buffers of a file, and checks every index and offset.

The structure is read from the memory map. The data of buffers stays in the file: inside the flatbuffer, or
after it in files above 2 GiB. An outline needs only this module; `graph` builds a model from it.

The slot numbers in calls such as `table.read_number(4, "B")` are the positions of the fields in schema.fbs.
They never change between versions of the schema.
"""

from __future__ import annotations

import mmap

from explorer.base.errors import BadModel
from explorer.engine.formats.tflite import IDENTIFIER, schema
from explorer.engine.formats.tflite.flatbuffer import FlatTable, ReadBudget, read_root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from explorer.engine.formats.onnx.protobuf_wire import Buffer

MAX_RANK = 64

_RELEASE_INTERVAL = 16
"""Number of buffers read before mapped pages are released; until then they count as this process's memory."""

_CUSTOM = 32
"""Value of the schema's enumeration BuiltinOperator that marks a custom operator."""


class TfliteQuantization:
    """Quantization of a tensor: number = scale x (integer - zero point).

    Attributes:
        scales: Number of scales: one for the tensor, or one for each index of `axis`.
        zero_points: Number of zero points.
        scale: First scale, or 0 if the record has no scales.
        zero_point: First zero point, or 0 if the record has no zero points.
        axis: Axis along which the scales change; relevant only with several scales.
        block: Number of elements that share a scale in blockwise quantization, or 0 for other kinds.
        scale_tensors: Tensor numbers of the scales and zero points in blockwise quantization.
    """

    __slots__ = ("_table", "axis", "block", "scale", "scale_tensors", "scales", "zero_point", "zero_points")

    def __init__(self, table: FlatTable) -> None:
        self._table = table
        self.scales = table.locate_vector(2, 4)[1]
        self.zero_points = table.locate_vector(3, 8)[1]
        self.scale: float = table.read_first_number(2, "f")
        self.zero_point = int(table.read_first_number(3, "q"))
        self.axis = table.read_number(6, "i")
        self.block = 0
        self.scale_tensors: tuple[int, ...] = ()
        details = table.read_table(5) if table.read_number(4, "B") == 2 else None
        if details is not None:
            # blockwise quantization of LiteRT: scales and zero points are tensors, and 0 means no tensor
            self.block = max(details.read_number(2, "i"), 1)
            numbers = details.read_number(0, "i"), details.read_number(1, "i")
            self.scale_tensors = tuple([number for number in numbers if number > 0])

    def read_parameters(self) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Returns all scales and all zero points; an empty list of zero points means 0."""
        return self._table.read_numbers(2, "f"), self._table.read_numbers(3, "q")

    @property
    def nbytes(self) -> int:
        """Bytes of the scales (float32) and zero points (int64) in the quantization record."""
        return 4 * self.scales + 8 * self.zero_points

    def describe(self) -> str:
        """Returns the description of the quantization, shown to users."""
        if self.block:
            return f"a scale for every {self.block:,} elements"
        if self.scales > 1:
            return f"{self.scales:,} scales along axis {self.axis}"
        return f"scale {self.scale:.6g}, zero point {self.zero_point}"


class TfliteTensor:
    """A tensor of a subgraph.

    Attributes:
        name: Name in the file; may be empty or not unique.
        dtype: Element type in this program's spelling, or None for a resource, a variant or an unknown type.
        type: Name of the element type in the schema.
        shape: Shape before any resizing, or None if the rank is unknown.
        signature: Shape with -1 for resizable sizes; empty if no size is resizable.
        data: Offset and size of the data in the file, or None if the file has no data for the tensor.
        is_external: Whether the data is in another file.
        is_variable: Whether the tensor keeps its values between runs.
        is_sparse: Whether the data is sparse.
        index_bytes: Bytes of the sparse indices.
        value_count: Number of stored elements of a sparse tensor, by its indices, or None if unknown.
        quantization: Quantization, or None for a tensor without scales.
    """

    __slots__ = (
        "data",
        "dtype",
        "index_bytes",
        "is_external",
        "is_sparse",
        "is_variable",
        "name",
        "quantization",
        "shape",
        "signature",
        "type",
        "value_count",
    )

    def __init__(self, table: FlatTable, buffer: tuple[int, int] | None) -> None:
        self.name = name = table.decode_text(3)
        shape: tuple[int, ...] = table.read_numbers(0, "i")
        signature: tuple[int, ...] = table.read_numbers(7, "i")
        if len(shape) > MAX_RANK or min(shape, default=0) < -1 or min(signature, default=0) < -1:
            raise BadModel(f"tensor '{name}' has impossible dimensions {list(shape or signature)[:8]}")
        if signature and len(signature) != len(shape):
            raise BadModel(f"tensor '{name}' has {len(shape)} dimensions and a signature of {len(signature)}")
        if -1 in shape and -1 not in signature:
            signature = shape
        self.shape: tuple[int, ...] | None = shape
        self.signature = signature if -1 in signature else ()
        number = table.read_number(1, "b")
        self.dtype = schema.DTYPES.get(number)
        self.type = schema.load_names("TensorType").get(number, f"TYPE_{number}")
        self.data = buffer
        self.is_external = bool(table.read_number(10, "I"))
        self.is_variable = bool(table.read_number(5, "B"))
        sparsity = table.read_table(6)
        self.is_sparse = sparsity is not None
        dimensions = [] if sparsity is None else sparsity.read_tables(2)
        self.index_bytes = sum(map(_count_index_bytes, dimensions))
        self.value_count = _count_values(dimensions)
        quantization = table.read_table(4)
        record = TfliteQuantization(quantization) if quantization is not None else None
        # converters also write an empty record, or a record with only minima and maxima
        self.quantization = record if record is not None and (record.scales or record.block) else None

    @property
    def dims(self) -> tuple[int, ...] | None:
        """The shape with -1 for resizable sizes, or None if the rank is unknown."""
        return self.signature or self.shape

    @property
    def is_stored(self) -> bool:
        """Whether the tensor is a constant."""
        return self.data is not None or self.is_external


class TfliteOperator:
    """An operator of a subgraph.

    Attributes:
        op: Name in the schema, or name of a custom operator.
        is_custom: Whether the operator is custom.
        version: Version of the operator's definition.
        inputs: Numbers of the input tensors; -1 for an omitted input.
        outputs: Numbers of the output tensors; -1 for an omitted output.
        kind: Name of the options union, and number of the options table in it; None without options.
        options: Options of a builtin operator, or None.
        custom_options: Offset and size of the options of a custom operator.
    """

    __slots__ = ("custom_options", "inputs", "is_custom", "kind", "op", "options", "outputs", "version")

    def __init__(self, table: FlatTable, code: tuple[str, bool, int], count: int, size: int) -> None:
        self.op, self.is_custom, self.version = code
        self.inputs: tuple[int, ...] = table.read_numbers(1, "i")
        self.outputs: tuple[int, ...] = table.read_numbers(2, "i")
        for number in (*self.inputs, *self.outputs):
            if not -1 <= number < count:
                raise BadModel(f"an operator {self.op} names tensor {number:,}, but there are {count:,}")
        self.kind: tuple[str, int] | None = None
        self.options: FlatTable | None = None
        for union, slot in (("BuiltinOptions", 3), ("BuiltinOptions2", 11)):
            kind = table.read_number(slot, "B")
            if kind and self.kind is None:
                self.kind = union, kind
                self.options = table.read_table(slot + 1)
        self.custom_options = table.locate_vector(5, 1)
        offset = table.read_number(9, "Q")
        if offset > 1:
            self.custom_options = _check_bounds(
                offset, table.read_number(10, "Q"), size, f"the options of an operator {self.op}"
            )


class Subgraph:
    """A subgraph of the file.

    Attributes:
        name: Name in the file; may be empty.
        tensors: Tensors by number.
        inputs: Numbers of the input tensors.
        outputs: Numbers of the output tensors.
        operators: Operators in execution order.
    """

    __slots__ = ("inputs", "name", "operators", "outputs", "tensors")

    def __init__(self, table: FlatTable, file: TfliteFile) -> None:
        self.name = table.decode_text(4)
        tables = table.read_tables(0)
        self.tensors = [TfliteTensor(t, file.locate_buffer(t.read_number(2, "I"))) for t in tables]
        ranked = [bool(t.read_number(8, "B")) for t in tables]
        if any(ranked):
            # a writer that sets has_rank distinguishes scalars from tensors of unknown rank
            for tensor, has_rank in zip(self.tensors, ranked, strict=True):
                if not has_rank and not tensor.shape and not tensor.is_stored:
                    tensor.shape = None
        count, size = len(tables), len(file.data)
        codes = file.codes
        self.operators: list[TfliteOperator] = []
        for entry in table.read_tables(3):
            code_index = entry.read_number(0, "I")
            if code_index >= len(codes):
                raise BadModel(
                    f"an operator names operator code {code_index:,}, but there are {len(codes):,}"
                )
            self.operators.append(TfliteOperator(entry, codes[code_index], count, size))
        self.inputs: tuple[int, ...] = table.read_numbers(1, "i")
        self.outputs: tuple[int, ...] = table.read_numbers(2, "i")
        computed = {*self.inputs, *[n for operator in self.operators for n in operator.outputs]}
        for number, tensor in enumerate(self.tensors):
            if (
                tensor.shape is not None
                and 0 in tensor.shape
                and number not in computed
                and not tensor.is_stored
            ):
                # an empty constant has no data, so only its missing producer identifies it
                tensor.data = 0, 0
        for number in (*self.inputs, *self.outputs):
            if not 0 <= number < count:
                raise BadModel(f"subgraph '{self.name}' names tensor {number:,}, but there are {count:,}")


class TfliteFile:
    """The structure of a TensorFlow Lite file.

    Args:
        buffer: Bytes of the file.

    Attributes:
        data: Bytes of the file.
        budget: Read budget of the file.
        version: Version of the schema.
        description: Description by the writer of the file.
        codes: (name, whether it is custom, version) of each operator kind in the file.
        metadata: Offset and size of each metadata entry, by name.
        signatures: (name, subgraph number) of each signature.

    Raises:
        BadModel: The file is not a TensorFlow Lite model, is truncated, or contradicts itself.
        MissingExtra: The package `tflite` is not installed.
    """

    def __init__(self, buffer: Buffer) -> None:
        if buffer[4:8] != IDENTIFIER:
            raise BadModel("this is not a TensorFlow Lite model", hint="its bytes 4 to 7 are not 'TFL3'")
        self.data = buffer
        self.budget = ReadBudget(len(buffer))
        model = read_root(buffer, self.budget)
        self.version = model.read_number(0, "I")
        self.description = model.decode_text(3)
        self.codes = [_read_operator_code(t) for t in model.read_tables(1)]
        # the table of a buffer is next to its data: `locate_buffer` reads each table only when it is needed
        self._model = model
        self._buffers_start, self._buffer_count = model.locate_vector(4, 4)
        model.budget.spend(8 * self._buffer_count)
        self._buffer_ranges: dict[int, tuple[int, int] | None] = {0: None}
        self._subgraph_tables = model.read_tables(2)
        if not self._subgraph_tables:
            raise BadModel("it holds no subgraph, so nothing that can run")
        self.metadata: dict[str, tuple[int, int]] = {}
        for entry in model.read_tables(6):
            data_range = self.locate_buffer(entry.read_number(1, "I"))
            if data_range is not None:
                self.metadata[entry.decode_text(0)] = data_range
        self.signatures = tuple([(t.decode_text(2), t.read_number(4, "I")) for t in model.read_tables(7)])

    @property
    def count(self) -> int:
        """Number of subgraphs."""
        return len(self._subgraph_tables)

    def read_subgraph(self, number: int) -> Subgraph:
        """Reads a subgraph, without a cache; subgraph 0 is the main graph.

        Raises:
            BadModel: The subgraph does not exist, or contradicts itself.
        """
        if not 0 <= number < self.count:
            raise BadModel(f"it names subgraph {number:,}, but there are {self.count:,}")
        return Subgraph(self._subgraph_tables[number], self)

    def locate_buffer(self, number: int) -> tuple[int, int] | None:
        """Returns offset and size of the data of a buffer, or None if it is empty.

        Raises:
            BadModel: The buffer does not exist, or its data leaves the file.
        """
        if number not in self._buffer_ranges:
            if number >= self._buffer_count:
                raise BadModel(f"it names buffer {number:,}, but there are {self._buffer_count:,}")
            if not len(self._buffer_ranges) % _RELEASE_INTERVAL and isinstance(self.data, mmap.mmap):
                self.data.madvise(mmap.MADV_DONTNEED)
            table = self._model.read_element_table(self._buffers_start + 4 * number)
            start, size = table.locate_vector(0, 1)
            offset = table.read_number(1, "Q")
            if offset > 1:
                # the data follows the flatbuffer, whose own offsets cannot exceed 2 GiB
                start, size = _check_bounds(
                    offset, table.read_number(2, "Q"), len(self.data), f"buffer {number:,}"
                )
            self._buffer_ranges[number] = (start, size) if size else None
        return self._buffer_ranges[number]


_INDEX_BYTES = (0, 4, 2, 1)
"""Bytes of a sparse index by the number of its type in the union SparseIndexVector."""


def _count_index_bytes(dimension: FlatTable) -> int:
    """Returns the bytes of the segments and indices of one dimension of a sparse tensor."""
    total = 0
    for kind, slot in ((2, 3), (4, 5)):
        number = dimension.read_number(kind, "B")
        vector = dimension.read_table(slot) if 0 < number < len(_INDEX_BYTES) else None
        if vector is not None:
            total += vector.locate_vector(0, _INDEX_BYTES[number])[1] * _INDEX_BYTES[number]
    return total


def _count_values(dimensions: Sequence[FlatTable]) -> int | None:
    """Returns the number of values that a sparse tensor stores, or None if it describes no dimensions.

    The dimensions are processed from the outermost to the innermost. A dense dimension multiplies the number
    by its size. A sparse dimension sets the number to the count of its indices.
    """
    count = 1
    for dimension in dimensions:
        if not dimension.read_number(0, "b"):
            count *= max(dimension.read_number(1, "i"), 0)
            continue
        number = dimension.read_number(4, "B")
        vector = dimension.read_table(5) if 0 < number < len(_INDEX_BYTES) else None
        count = vector.locate_vector(0, _INDEX_BYTES[number])[1] if vector is not None else 0
    return count if dimensions else None


def _check_bounds(offset: int, count: int, size: int, part: str) -> tuple[int, int]:
    """Checks that `count` bytes at `offset` are in a file of `size` bytes; returns offset and count."""
    if offset + count > size:
        raise BadModel(f"{part} ({count:,} bytes at {offset:,}) does not fit in the file of {size:,} bytes")
    return offset, count


def _read_operator_code(table: FlatTable) -> tuple[str, bool, int]:
    """Returns the name of an operator code, whether the operator is custom, and its version."""
    # the first field holds numbers up to 127; a later version of the schema added the second
    number = max(table.read_number(0, "b"), table.read_number(3, "i"))
    version = table.read_number(2, "i", 1)
    if number == _CUSTOM:
        return table.decode_text(1) or "CUSTOM", True, version
    return schema.load_names("BuiltinOperator").get(number, f"BUILTIN_{number}"), False, version
