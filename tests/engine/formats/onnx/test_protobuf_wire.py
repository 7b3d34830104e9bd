"""The wire format is read exactly, and no length in a file is believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.base.errors import BadModel
from explorer.engine.formats.onnx.protobuf_wire import (
    encode_length_delimited,
    encode_tagged_varint,
    encode_varint,
    iterate_fields,
    read_packed_varints,
    reinterpret_signed,
)

int64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(int64)
def test_every_int64_survives_a_round_trip(number: int) -> None:
    (read,) = read_packed_varints(encode_varint(number), 0, len(encode_varint(number)))
    assert reinterpret_signed(read) == number


@pytest.mark.parametrize(
    ("number", "encoded"),
    [(0, b"\0"), (1, b"\1"), (127, b"\x7f"), (128, b"\x80\1"), (300, b"\xac\2"), (-1, b"\xff" * 9 + b"\1")],
)
def test_varints_are_those_of_the_encoding_guide(number: int, encoded: bytes) -> None:
    assert encode_varint(number) == encoded


@given(st.lists(int64, max_size=20))
def test_a_packed_field_holds_its_numbers_in_order(numbers: list[int]) -> None:
    data = b"".join(map(encode_varint, numbers))
    assert [reinterpret_signed(n) for n in read_packed_varints(data, 0, len(data))] == numbers


@given(st.lists(st.tuples(st.integers(1, 31), st.one_of(int64, st.binary(max_size=300))), max_size=12))
def test_fields_come_back_as_they_were_written(written: list[tuple[int, int | bytes]]) -> None:
    data = b"".join(
        encode_length_delimited(number, value)
        if isinstance(value, bytes)
        else encode_tagged_varint(number, value)
        for number, value in written
    )
    found: list[tuple[int, int | bytes]] = []
    last = 0
    for number, wire, begin, at, end in iterate_fields(data, 0, len(data)):
        assert begin == last, "fields lie one behind the other"
        found.append((number, data[at:end] if wire == 2 else reinterpret_signed(at)))
        last = end
    assert found == written
    assert last == len(data)


def test_field_numbers_beyond_those_of_onnx_are_read() -> None:
    data = encode_varint(70_000 << 3 | 2) + b"\2ab"
    assert [(n, data[a:e]) for n, _, _, a, e in iterate_fields(data, 0, len(data))] == [(70_000, b"ab")]


def test_fixed_width_fields_are_hopped_over() -> None:
    data = b"\x0d\1\2\3\4" + b"\x11\1\2\3\4\5\6\7\10" + b"\x18\5"
    assert [(n, w, data[a:e] if w != 0 else a) for n, w, _, a, e in iterate_fields(data, 0, len(data))] == [
        (1, 5, b"\1\2\3\4"),
        (2, 1, b"\1\2\3\4\5\6\7\10"),
        (3, 0, 5),
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",  # a length is missing
        b"\x0a\x05abc",  # longer than what is left
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # 2^64 - 1 bytes
        b"\x08",  # a number is missing
        b"\x08\x80\x80",  # a number that does not end
        b"\x80" * 12,  # a tag that does not end
        b"\x08" + b"\x80" * 12 + b"\x01",  # a number of more than 64 bits
        b"\x0d\1\2",  # four bytes promised
        b"\x09\1\2\3",  # eight bytes promised
        b"\x0b",  # a group: no writer of ONNX makes one
        b"\x0f",  # no such wire type
    ],
)
def test_what_does_not_fit_is_refused(data: bytes) -> None:
    with pytest.raises(BadModel, match="not a valid protobuf"):
        list(iterate_fields(data, 0, len(data)))


def test_a_field_may_not_leave_its_message_though_the_file_goes_on() -> None:
    inner = b"\x0a\x04ab"  # says four, has two
    data = inner + b"cdefgh"
    with pytest.raises(BadModel):
        list(iterate_fields(data, 0, len(inner)))


@given(st.binary(max_size=200))
def test_any_bytes_are_fields_or_refused(data: bytes) -> None:
    try:
        for _, wire, begin, at, end in iterate_fields(data, 0, len(data)):
            assert 0 <= begin < end <= len(data)
            assert wire == 0 or begin < at <= end
    except BadModel:
        pass
