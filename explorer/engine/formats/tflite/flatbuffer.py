"""FlatBuffers: reads a memory map and checks every offset before it follows it.

The flatbuffers package has no verifier for Python. Its accessors follow any offset, accept a vector of four
billion elements, and let a thousand tables share one vector of a megabyte. Here a table is checked when it is
entered and a field when it is read. A `ReadBudget` limits the elements read to the bytes of the file.

`CheckedTable` puts these checks under the accessors that flatc generates, so a schema package can read tables
that are unknown here.

Source of the format: the FlatBuffers internals guide (table, vtable, vector, string).
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
"""Numbers by their letter for `struct`."""

_SMALL = 1 << 16
"""Read budget of the smallest file."""


class ReadBudget:
    """Remaining elements and characters that may be read of a file; it starts with the file's bytes."""

    __slots__ = ("left", "texts")

    def __init__(self, size: int) -> None:
        self.left = max(size, _SMALL)
        self.texts: dict[int, str] = {}

    def spend(self, count: int) -> None:
        """Spends `count` elements.

        Raises:
            BadModel: There are not as many left.
        """
        self.left -= count
        if self.left < 0:
            raise BadModel("not a sound flatbuffer: its parts overlap, all together they are larger than it")


class FlatTable:
    """A table in a file.

    Args:
        data: The file.
        at: First byte of the table.
        budget: Budget for reading.

    Raises:
        BadModel: Table or vtable leave the file.
    """

    __slots__ = ("_first", "_slots", "at", "budget", "data", "size")

    def __init__(self, buffer: Buffer, at: int, budget: ReadBudget) -> None:
        end = len(buffer)
        if not 0 <= at <= end - 4:
            raise _outside("a table", at)
        first = at - _I32.unpack_from(buffer, at)[0]
        if not 0 <= first <= end - 4:
            raise _outside("a vtable", first)
        length, size = _U16S.unpack_from(buffer, first)
        if length < 4 or length & 1 or first + length > end:
            raise _outside("a vtable", first)
        if size < 4 or at + size > end:
            raise _outside("a table", at)
        self.data = buffer
        self.at = at
        self.budget = budget
        self.size = size
        self._first = first + 4
        self._slots = (length - 4) >> 1

    @property
    def raw(self) -> bytes:
        """Its layout and inline bytes: equal for tables with equal numbers and without offsets."""
        first = self._first - 4
        return bytes(self.data[first : self._first + 2 * self._slots]) + bytes(
            self.data[self.at + 4 : self.at + self.size]
        )

    def place(self, slot: int, width: int) -> int:
        """Place of the field in `slot`; 0 if the file leaves it out.

        Raises:
            BadModel: It does not fit in the table.
        """
        if slot >= self._slots:
            return 0
        offset: int = _U16.unpack_from(self.data, self._first + 2 * slot)[0]
        if not offset:
            return 0
        if offset < 4 or offset + width > self.size:
            raise _outside("a field", self.at + offset)
        return self.at + offset

    def number(self, slot: int, form: str, default: int = 0) -> int:
        """A number field; `form` is its letter for `struct`."""
        kind = _NUMBERS[form]
        at = self.place(slot, kind.size)
        return kind.unpack_from(self.data, at)[0] if at else default

    def _target(self, slot: int) -> int:
        at = self.place(slot, 4)
        if not at:
            return 0
        target: int = at + _U32.unpack_from(self.data, at)[0]
        if target == at or target > len(self.data) - 4:
            raise _outside("what an offset points to", target)
        return target

    def table(self, slot: int) -> FlatTable | None:
        """A table field; None if the file leaves it out."""
        at = self._target(slot)
        return FlatTable(self.data, at, self.budget) if at else None

    def inner(self, at: int) -> FlatTable:
        """The table that the offset at `at`, an element of a vector, points to."""
        return FlatTable(self.data, at + _U32.unpack_from(self.data, at)[0], self.budget)

    def vector(self, slot: int, width: int) -> tuple[int, int]:
        """Place of a vector's elements of `width` bytes each, and their number.

        Raises:
            BadModel: It leaves the file.
        """
        at = self._target(slot)
        return _vector(self.data, at, width) if at else (0, 0)

    def tables(self, slot: int) -> list[FlatTable]:
        """A vector of tables, each checked."""
        at, count = self.vector(slot, 4)
        # a table takes about a hundred times the memory of a number
        self.budget.spend(8 * count)
        buffer, budget = self.data, self.budget
        places = struct.unpack_from(f"<{count}I", buffer, at) if count else ()
        return [FlatTable(buffer, at + 4 * i + offset, budget) for i, offset in enumerate(places)]

    def numbers(self, slot: int, form: str) -> tuple[Any, ...]:
        """A vector of numbers; empty if the file leaves it out. `form` is the letter of one for `struct`."""
        at, count = self.vector(slot, _NUMBERS[form].size)
        if not count:
            return ()
        self.budget.spend(count)
        return struct.unpack_from(f"<{count}{form}", self.data, at)

    def first(self, slot: int, form: str) -> Any:
        """The first number of a vector; 0 if there is none."""
        kind = _NUMBERS[form]
        at, count = self.vector(slot, kind.size)
        return kind.unpack_from(self.data, at)[0] if count else 0

    def text(self, slot: int) -> str:
        """A string; bytes that are no UTF-8 stay readable. Empty if the file leaves it out."""
        at = self._target(slot)
        return _text(self.data, at, self.budget) if at else ""


def root(buffer: Buffer, budget: ReadBudget) -> FlatTable:
    """The root table of a file.

    Raises:
        BadModel: There is none.
    """
    if len(buffer) < 8:
        raise BadModel("not a flatbuffer: it is cut off")
    return FlatTable(buffer, _U32.unpack_from(buffer, 0)[0], budget)


def _vector(buffer: Buffer, at: int, width: int) -> tuple[int, int]:
    if not 0 <= at <= len(buffer) - 4:
        raise _outside("a vector", at)
    count: int = _U32.unpack_from(buffer, at)[0]
    if count * width > len(buffer) - at - 4:
        raise _outside("a vector", at)
    return at + 4, count


def _text(buffer: Buffer, at: int, budget: ReadBudget) -> str:
    decoded = budget.texts.get(at)
    if decoded is None:
        first, count = _vector(buffer, at, 1)
        budget.spend(count)
        decoded = budget.texts[at] = str(buffer[first : first + count], "utf-8", "backslashreplace")
    return decoded


def _outside(what: str, at: int) -> BadModel:
    return BadModel(f"not a sound flatbuffer: {what} at byte {at:,} leaves its place")


class CheckedTable:
    """A checked stand-in for `flatbuffers.table.Table` in flatc's accessors: `_tab = CheckedTable(table)`.

    An accessor reads the length of a vector first, which charges the budget for all its elements.
    """

    __slots__ = ("Bytes", "Pos", "_table")

    def __init__(self, table: FlatTable) -> None:
        self._table = table
        self.Bytes = table.data
        self.Pos = table.at

    def Offset(self, at: int) -> int:  # noqa: N802 - flatbuffers' name
        """Place of a field relative to the table; 0 if the file leaves it out."""
        place = self._table.place((at - 4) >> 1, 1)
        return place - self.Pos if place else 0

    def Get(self, flags: Any, at: int) -> Any:  # noqa: N802
        """A number of the type that `flags` describe."""
        if not 0 <= at <= len(self.Bytes) - flags.bytewidth:
            raise _outside("a number", at)
        return flags.py_type(flags.packer_type.unpack_from(self.Bytes, at)[0])

    def Indirect(self, at: int) -> int:  # noqa: N802
        """What the offset at `at` points to."""
        if not 0 <= at <= len(self.Bytes) - 4:
            raise _outside("an offset", at)
        target: int = at + _U32.unpack_from(self.Bytes, at)[0]
        if target > len(self.Bytes) - 4:
            raise _outside("what an offset points to", target)
        return target

    def VectorLen(self, offset: int) -> int:  # noqa: N802
        """Number of elements in the vector of a field."""
        _, count = _vector(self.Bytes, self.Indirect(self.Pos + offset), 1)
        self._table.budget.spend(count)
        return count

    def Vector(self, offset: int) -> int:  # noqa: N802
        """Place of the first element in the vector of a field."""
        return self.Indirect(self.Pos + offset) + 4

    def String(self, at: int) -> bytes:  # noqa: N802
        """The string that the offset at `at` points to."""
        return _text(self.Bytes, self.Indirect(at), self._table.budget).encode()
