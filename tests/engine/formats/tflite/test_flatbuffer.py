"""A flatbuffer is followed only where it leads inside itself, and costs no more than it is long."""

from __future__ import annotations

import struct

import flatbuffers
import pytest

from explorer.base.errors import BadModel
from explorer.engine.formats.tflite.flatbuffer import CheckedTable, FlatTable, ReadBudget, read_root


def written() -> bytes:
    """A table with a number, a string, a vector of three integers and a vector of one table."""
    builder = flatbuffers.Builder(0)
    text = builder.CreateString("naïve")
    builder.StartVector(4, 3, 4)
    for value in (3, 2, 1):
        builder.PrependInt32(value)
    numbers = builder.EndVector()
    builder.StartObject(1)
    builder.PrependInt32Slot(0, 7, 0)
    inner = builder.EndObject()
    builder.StartVector(4, 1, 4)
    builder.PrependUOffsetTRelative(inner)
    tables = builder.EndVector()
    builder.StartObject(5)
    builder.PrependInt16Slot(0, -5, 0)
    builder.PrependUOffsetTRelativeSlot(1, text, 0)
    builder.PrependUOffsetTRelativeSlot(2, numbers, 0)
    builder.PrependUOffsetTRelativeSlot(3, tables, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def opened(data: bytes) -> FlatTable:
    return read_root(data, ReadBudget(len(data)))


def test_what_the_official_builder_wrote_is_read_back() -> None:
    table = opened(written())
    assert table.read_number(0, "h") == -5
    assert table.decode_text(1) == "naïve"
    assert table.read_numbers(2, "i") == (1, 2, 3)
    assert [t.read_number(0, "i") for t in table.read_tables(3)] == [7]
    assert table.read_first_number(2, "i") == 1


def test_what_the_file_leaves_out_has_its_default() -> None:
    table = opened(written())
    assert table.read_number(4, "i", 9) == 9
    assert table.read_number(40, "i", 9) == 9
    assert table.read_numbers(4, "i") == ()
    assert table.decode_text(4) == ""
    assert table.read_table(4) is None


def every_answer(data: bytes) -> None:
    table = opened(data)
    table.read_number(0, "h")
    table.decode_text(1)
    table.read_numbers(2, "i")
    for inner in table.read_tables(3):
        inner.read_number(0, "i")


def test_a_file_that_is_cut_off_anywhere_is_refused_and_never_read_past_its_end() -> None:
    data = written()
    # behind the last letter there is only padding
    for end in range(len(data.rstrip(b"\0"))):
        with pytest.raises(BadModel):
            every_answer(data[:end])


def test_no_offset_length_or_size_in_a_file_leads_out_of_it() -> None:
    data = written()
    for at in range(len(data) - 3):
        for value in (0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, len(data), 0):
            broken = bytearray(data)
            broken[at : at + 4] = struct.pack("<I", value)
            try:
                every_answer(bytes(broken))
            except BadModel:
                continue


def test_a_vector_longer_than_its_file_is_refused_before_memory_is_taken() -> None:
    data = bytearray(written())
    at = data.index(struct.pack("<IIII", 3, 1, 2, 3))
    data[at : at + 4] = struct.pack("<I", 0xFFFFFFFF)
    with pytest.raises(BadModel, match="is outside the file"):
        opened(bytes(data)).read_numbers(2, "i")


def test_a_thousand_tables_that_share_one_long_vector_are_refused() -> None:
    """Read one by one they would be 64 KiB times a thousand."""
    builder = flatbuffers.Builder(0)
    shared = builder.CreateByteVector(bytes(1 << 16))
    inner = []
    for _ in range(1000):
        builder.StartObject(1)
        builder.PrependUOffsetTRelativeSlot(0, shared, 0)
        inner.append(builder.EndObject())
    builder.StartVector(4, len(inner), 4)
    for table in inner:
        builder.PrependUOffsetTRelative(table)
    tables = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, tables, 0)
    builder.Finish(builder.EndObject())
    found = opened(bytes(builder.Output())).read_tables(0)
    with pytest.raises(BadModel, match="overlap"):
        sum(len(table.read_numbers(0, "B")) for table in found)


def test_a_shared_string_is_read_and_paid_for_once() -> None:
    data = written()
    budget = ReadBudget(len(data))
    left = budget.left
    for _ in range(5):
        assert read_root(data, budget).decode_text(1) == "naïve"
    assert left - budget.left == len("naïve".encode())


def test_a_name_that_is_no_text_stays_readable() -> None:
    data = written().replace("naïve".encode(), b"na\xff\xfeve")
    assert opened(data).decode_text(1) == "na\\xff\\xfeve"


def test_the_accessors_of_a_schema_package_read_over_the_checks() -> None:
    from flatbuffers import number_types

    data = written()
    fields = CheckedTable(opened(data))
    place = fields.Offset(4)
    assert fields.Get(number_types.Int16Flags, place + fields.Pos) == -5
    assert fields.String(fields.Offset(6) + fields.Pos) == "naïve".encode()
    assert fields.VectorLen(fields.Offset(8)) == 3
    first = fields.Vector(fields.Offset(8))
    assert [fields.Get(number_types.Int32Flags, first + 4 * at) for at in range(3)] == [1, 2, 3]
    assert fields.Offset(12) == 0
    with pytest.raises(BadModel):
        fields.Get(number_types.Int32Flags, len(data))
