"""The protobuf wire format, read from a memory map and written in pieces.

Why not protobuf's own parser: it copies every weight before it can name the first layer, and it refuses
messages above 2 GiB. Skipping by length prefixes touches only the pages with structure. A file may be
hostile, so every length is checked against the end of its parent before use.

Source of the format: the Protocol Buffers encoding guide (varint, LEN, I64, I32).
"""

from __future__ import annotations

import mmap

from explorer.base.errors import BadModel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

Buffer = bytes | memoryview | mmap.mmap

_MAX_SHIFT = 63


def varint_at(buffer: Buffer, at: int, end: int) -> tuple[int, int]:
    """The varint at `at` in a message that ends at `end`, and the place after it.

    Raises:
        BadModel: It does not end there.
    """
    value = shift = 0
    while at < end:
        byte = buffer[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > _MAX_SHIFT:
            break
    raise BadModel(f"not a valid protobuf: a varint runs past its place at byte {at:,}")


def fields(buffer: Buffer, start: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """The fields of the message in buffer[start:end].

    Yields:
        (field number, wire type, start, value, stop): `start` is where the tag begins, `stop` where
        the field ends. `value` is the integer of a varint; for every other wire type it is the offset
        of the payload, which ends at `stop`.

    Raises:
        BadModel: A length or varint leaves the message, or the wire type does not exist.
    """
    at = start
    while at < end:
        begin = at
        # the one-byte case first: nearly every tag and length in a graph is one
        tag = buffer[at]
        at += 1
        if tag > 127:
            tag, at = varint_at(buffer, begin, end)
        wire = tag & 7
        if wire == 2:
            if at >= end:
                raise BadModel(f"not a valid protobuf: it ends in the middle of a field at byte {at:,}")
            size = buffer[at]
            at += 1
            if size > 127:
                size, at = varint_at(buffer, at - 1, end)
            value, at = at, at + size
        elif wire == 0:
            value, at = varint_at(buffer, at, end)
        elif wire == 5:
            value, at = at, at + 4
        elif wire == 1:
            value, at = at, at + 8
        else:
            raise BadModel(f"not a valid protobuf: wire type {wire} at byte {begin:,}")
        if at > end:
            raise BadModel(
                f"not a valid protobuf: a field of {at - value:,} bytes at byte {begin:,} does not fit"
                f" in the {end - value:,} bytes that are left",
                hint="the file is truncated or damaged",
            )
        yield tag >> 3, wire, begin, value, at


def packed_varints(buffer: Buffer, start: int, end: int) -> list[int]:
    """The unsigned integers of a packed repeated varint field."""
    values = []
    at = start
    while at < end:
        value, at = varint_at(buffer, at, end)
        values.append(value)
    return values


def signed(value: int) -> int:
    """The int64 that a varint stands for (two's complement)."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def varint(value: int) -> bytes:
    """`value` as a varint; a negative one as its 64-bit two's complement."""
    if 0 <= value < 128:
        return _ONE_BYTE[value]
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE = tuple(bytes([n]) for n in range(128))


_LEN_TAGS = tuple(varint(number << 3 | 2) for number in range(32))


def length_delimited(number: int, payload: bytes) -> bytes:
    """A LEN field: tag, length, payload."""
    # the table saves two calls per name, and a tiled graph consists of names
    size = len(payload)
    return _LEN_TAGS[number] + (_ONE_BYTE[size] if size < 128 else varint(size)) + payload


def tagged_varint(number: int, value: int) -> bytes:
    """A VARINT field: tag, value."""
    return varint(number << 3) + varint(value)
