"""FlatBuffers, read over a memory map with every offset checked before it is followed.

The flatbuffers package has no verifier for Python: its accessors follow whatever offsets a file holds, a
vector of four billion elements is as good to them as one of four, and a thousand tables may share one
vector of a megabyte. Here a table is checked when it is entered, a field when it is read, and a `ReadBudget`
pays for every element: a file cannot make more of itself than it has bytes.

`CheckedTable` puts these checks under the accessors that flatc generates, so that a schema package can read
tables of which nothing is known here.

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
"""What may be read of the smallest file."""


class ReadBudget:
    """What may still be read of a file: as many elements and letters as it has bytes."""

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
    """A table at a place of a file.

    Args:
        data: The file.
        at: Where the table begins.
        budget: Pays for what is read.

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
        """Its layout and what it holds itself: the same for tables of equal numbers, none of them offsets."""
        first = self._first - 4
        return bytes(self.data[first : self._first + 2 * self._slots]) + bytes(
            self.data[self.at + 4 : self.at + self.size]
        )

    def place(self, slot: int, width: int) -> int:
        """Where the field in `slot` lies; 0 if the file leaves it out.

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
        """A field of one number; `form` is its letter for `struct`."""
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
        """A field that is a table; None if the file leaves it out."""
        at = self._target(slot)
        return FlatTable(self.data, at, self.budget) if at else None

    def inner(self, at: int) -> FlatTable:
        """The table that the offset at `at`, an element of a vector, points to."""
        return FlatTable(self.data, at + _U32.unpack_from(self.data, at)[0], self.budget)

    def vector(self, slot: int, width: int) -> tuple[int, int]:
        """Where the elements of a vector of `width` bytes each lie, and how many there are.

        Raises:
            BadModel: It leaves the file.
        """
        at = self._target(slot)
        return _vector(self.data, at, width) if at else (0, 0)

    def tables(self, slot: int) -> list[FlatTable]:
        """A vector of tables, each checked."""
        at, count = self.vector(slot, 4)
        # a table costs some hundred times what a number costs
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
    """The table with which a file begins.

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
    """What flatc's accessors take for a `flatbuffers.table.Table`, checked: `_tab = CheckedTable(table)`.

    Whoever reads a vector asks for its length first, which pays for all of its elements.
    """

    __slots__ = ("Bytes", "Pos", "_table")

    def __init__(self, table: FlatTable) -> None:
        self._table = table
        self.Bytes = table.data
        self.Pos = table.at

    def Offset(self, at: int) -> int:  # noqa: N802 - flatbuffers' name
        """Where a field lies, from the table on; 0 if the file leaves it out."""
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
        """How many elements the vector of a field has."""
        _, count = _vector(self.Bytes, self.Indirect(self.Pos + offset), 1)
        self._table.budget.spend(count)
        return count

    def Vector(self, offset: int) -> int:  # noqa: N802
        """Where the elements of the vector of a field begin."""
        return self.Indirect(self.Pos + offset) + 4

    def String(self, at: int) -> bytes:  # noqa: N802
        """The string that the offset at `at` points to."""
        return _text(self.Bytes, self.Indirect(at), self._table.budget).encode()
