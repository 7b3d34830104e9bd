"""FlatBuffers: reads tables from a memory-mapped file, and checks every offset before following it.

The flatbuffers package has no verifier for Python. Its accessors follow any offset, accept a vector of four
billion elements, and let a thousand tables share one vector of a megabyte. This module checks a table when it
is opened, and a field when it is read. A `ReadBudget` limits the number of elements read from a file.

flatc generates accessor classes from a schema. `CheckedTable` adds the same checks below these accessors.

Terms: a table is a record of optional fields. Its vtable holds the offset of each field. The number of a
field in the vtable is its slot. Source: the FlatBuffers internals guide (table, vtable, vector, string).
"""

from __future__ import annotations

import struct

from explorer.base.errors import BadModel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from explorer.engine.formats.onnx.protobuf_wire import Buffer

_U16 = struct.Struct("<H")
_U16S = struct.Struct("<HH")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")

_NUMBERS = {form: struct.Struct(f"<{form}") for form in "bBhHiIqQfd"}
"""Decoders of numbers by format letter of `struct`."""

_MIN_BUDGET = 1 << 16
"""Read budget of a file below this size in bytes."""


class ReadBudget:
    """Number of elements and characters that may still be read from a file.

    The initial budget is the size of the file in bytes, or `_MIN_BUDGET` for a small file. Thus a hostile
    file cannot repeat its parts endlessly.

    Attributes:
        left: Remaining budget.
        texts: Strings read so far, by offset; reading one again costs nothing.
    """

    __slots__ = ("left", "texts")

    def __init__(self, size: int) -> None:
        self.left = max(size, _MIN_BUDGET)
        self.texts: dict[int, str] = {}

    def spend(self, count: int) -> None:
        """Subtracts `count` elements from the budget.

        Raises:
            BadModel: The budget is exhausted.
        """
        self.left -= count
        if self.left < 0:
            raise BadModel(
                "not a valid flatbuffer: its parts overlap: together they are larger than the file"
            )


class FlatTable:
    """A table in a file.

    Args:
        buffer: Bytes of the file.
        start: Offset of the table in the file.
        budget: Read budget of the file.

    Raises:
        BadModel: The table or its vtable leaves the file.
    """

    __slots__ = ("_first", "_slots", "budget", "data", "size", "start")

    def __init__(self, buffer: Buffer, start: int, budget: ReadBudget) -> None:
        end = len(buffer)
        if not 0 <= start <= end - 4:
            raise _build_bounds_error("a table", start)
        first = start - _I32.unpack_from(buffer, start)[0]
        if not 0 <= first <= end - 4:
            raise _build_bounds_error("a vtable", first)
        length, size = _U16S.unpack_from(buffer, first)
        if length < 4 or length & 1 or first + length > end:
            raise _build_bounds_error("a vtable", first)
        if size < 4 or start + size > end:
            raise _build_bounds_error("a table", start)
        self.data = buffer
        self.start = start
        self.budget = budget
        self.size = size
        self._first = first + 4
        self._slots = (length - 4) >> 1

    @property
    def raw(self) -> bytes:
        """The vtable and the inline bytes of the table.

        They are equal for tables with equal numbers, provided that no field is an offset.
        """
        first = self._first - 4
        return bytes(self.data[first : self._first + 2 * self._slots]) + bytes(
            self.data[self.start + 4 : self.start + self.size]
        )

    def has_field(self, slot: int) -> bool:
        """Whether the file sets the field with this number in the vtable."""
        return bool(self.locate_field(slot, 1))

    def locate_field(self, slot: int, width: int) -> int:
        """Returns the file offset of a field, or 0 if the table omits it.

        Args:
            slot: Number of the field in the vtable.
            width: Bytes of the field.

        Raises:
            BadModel: The field does not fit in the table.
        """
        if slot >= self._slots:
            return 0
        offset: int = _U16.unpack_from(self.data, self._first + 2 * slot)[0]
        if not offset:
            return 0
        if offset < 4 or offset + width > self.size:
            raise _build_bounds_error("a field", self.start + offset)
        return self.start + offset

    def read_number(self, slot: int, letter: str, default: int = 0) -> int:
        """Returns the value of a number field; `letter` is its format letter of `struct`."""
        decoder = _NUMBERS[letter]
        start = self.locate_field(slot, decoder.size)
        return decoder.unpack_from(self.data, start)[0] if start else default

    def _follow_offset(self, slot: int) -> int:
        """Returns the file offset that an offset field points to, or 0 if the table omits the field."""
        start = self.locate_field(slot, 4)
        if not start:
            return 0
        target: int = start + _U32.unpack_from(self.data, start)[0]
        if target == start or target > len(self.data) - 4:
            raise _build_bounds_error("the target of an offset", target)
        return target

    def read_table(self, slot: int) -> FlatTable | None:
        """Returns the table in a field, or None if the table omits the field."""
        start = self._follow_offset(slot)
        return FlatTable(self.data, start, self.budget) if start else None

    def read_element_table(self, start: int) -> FlatTable:
        """Reads the table that an element of a vector points to; `start` is the offset of the element."""
        return FlatTable(self.data, start + _U32.unpack_from(self.data, start)[0], self.budget)

    def locate_vector(self, slot: int, width: int) -> tuple[int, int]:
        """Returns the file offset of the first element of a vector field, and the number of elements.

        Both are 0 if the table omits the field. `width` is the number of bytes of an element.

        Raises:
            BadModel: The vector leaves the file.
        """
        start = self._follow_offset(slot)
        return _locate_vector(self.data, start, width) if start else (0, 0)

    def read_tables(self, slot: int) -> list[FlatTable]:
        """Returns the tables in a vector field."""
        start, count = self.locate_vector(slot, 4)
        # an opened table takes much more memory than a number: it costs as much as eight elements
        self.budget.spend(8 * count)
        buffer, budget = self.data, self.budget
        offsets = struct.unpack_from(f"<{count}I", buffer, start) if count else ()
        return [FlatTable(buffer, start + 4 * i + offset, budget) for i, offset in enumerate(offsets)]

    def read_numbers(self, slot: int, letter: str) -> tuple[Any, ...]:
        """Reads the numbers in a vector field, empty if omitted; `letter` is their letter of `struct`."""
        start, count = self.locate_vector(slot, _NUMBERS[letter].size)
        if not count:
            return ()
        self.budget.spend(count)
        return struct.unpack_from(f"<{count}{letter}", self.data, start)

    def read_first_number(self, slot: int, letter: str) -> Any:
        """Returns the first number in a vector field, or 0 for an empty or omitted vector."""
        decoder = _NUMBERS[letter]
        start, count = self.locate_vector(slot, decoder.size)
        return decoder.unpack_from(self.data, start)[0] if count else 0

    def decode_text(self, slot: int) -> str:
        """Returns the text in a string field, empty if the table omits it; invalid UTF-8 is escaped."""
        start = self._follow_offset(slot)
        return _read_text(self.data, start, self.budget) if start else ""


def read_root(buffer: Buffer, budget: ReadBudget) -> FlatTable:
    """Returns the root table of a file.

    Raises:
        BadModel: The file is truncated, or its root table leaves the file.
    """
    if len(buffer) < 8:
        raise BadModel("not a flatbuffer: it is cut off")
    return FlatTable(buffer, _U32.unpack_from(buffer, 0)[0], budget)


def _locate_vector(buffer: Buffer, start: int, width: int) -> tuple[int, int]:
    """Returns the offset of the first element, and the number of elements, of the vector at `start`."""
    if not 0 <= start <= len(buffer) - 4:
        raise _build_bounds_error("a vector", start)
    count: int = _U32.unpack_from(buffer, start)[0]
    if count * width > len(buffer) - start - 4:
        raise _build_bounds_error("a vector", start)
    return start + 4, count


def _read_text(buffer: Buffer, start: int, budget: ReadBudget) -> str:
    decoded = budget.texts.get(start)
    if decoded is None:
        first, count = _locate_vector(buffer, start, 1)
        budget.spend(count)
        decoded = budget.texts[start] = str(buffer[first : first + count], "utf-8", "backslashreplace")
    return decoded


def _build_bounds_error(part: str, offset: int) -> BadModel:
    return BadModel(f"not a valid flatbuffer: {part} at byte {offset:,} is outside the file")


class CheckedTable:
    """Replaces `flatbuffers.table.Table` in accessors of flatc (`accessor._tab = CheckedTable(table)`).

    It checks every offset. An accessor reads the length of a vector first, which spends the read budget of
    all its elements.
    """

    __slots__ = ("Bytes", "Pos", "_table")

    def __init__(self, table: FlatTable) -> None:
        self._table = table
        self.Bytes = table.data
        self.Pos = table.start

    def Offset(self, at: int) -> int:  # noqa: N802 - flatbuffers' name
        """Returns a field's offset in the table, or 0 if omitted; `at` is its offset in the vtable."""
        offset = self._table.locate_field((at - 4) >> 1, 1)
        return offset - self.Pos if offset else 0

    def Get(self, flags: Any, at: int) -> Any:  # noqa: N802
        """Returns the number at file offset `at`, of the type that `flags` describe."""
        if not 0 <= at <= len(self.Bytes) - flags.bytewidth:
            raise _build_bounds_error("a number", at)
        return flags.py_type(flags.packer_type.unpack_from(self.Bytes, at)[0])

    def Indirect(self, at: int) -> int:  # noqa: N802
        """Returns the file offset that the offset stored at `at` points to."""
        if not 0 <= at <= len(self.Bytes) - 4:
            raise _build_bounds_error("an offset", at)
        target: int = at + _U32.unpack_from(self.Bytes, at)[0]
        if target > len(self.Bytes) - 4:
            raise _build_bounds_error("the target of an offset", target)
        return target

    def VectorLen(self, offset: int) -> int:  # noqa: N802
        """Returns the number of elements in a vector field; `offset` is relative to the table."""
        _, count = _locate_vector(self.Bytes, self.Indirect(self.Pos + offset), 1)
        self._table.budget.spend(count)
        return count

    def Vector(self, offset: int) -> int:  # noqa: N802
        """Returns the file offset of the first element in a vector field."""
        return self.Indirect(self.Pos + offset) + 4

    def String(self, at: int) -> bytes:  # noqa: N802
        """Returns the string that the offset stored at `at` points to."""
        return _read_text(self.Bytes, self.Indirect(at), self._table.budget).encode()
