"""Protobuf wire format: iterates over the fields of a memory-mapped message, and encodes fields.

The protobuf package is not used for two reasons: its parser copies every weight before it returns the first
layer, and it refuses messages above 2 GiB. This module skips weights by their length prefixes, so it touches
only the pages with structure. A file may be hostile, so every length is checked against the end of the
enclosing message before use.

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


def decode_varint(buffer: Buffer, offset: int, end: int) -> tuple[int, int]:
    """Decodes the varint at `offset`, in a message that ends at `end`.

    Returns:
        The value, and the offset after the varint.

    Raises:
        BadModel: The varint leaves the message, or is longer than 64 bits.
    """
    value = shift = 0
    while offset < end:
        byte = buffer[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, offset
        shift += 7
        if shift > _MAX_SHIFT:
            break
    raise BadModel(f"not a valid protobuf: a varint exceeds its field at byte {offset:,}")


def iterate_fields(buffer: Buffer, start: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Iterates over the fields of the message in buffer[start:end].

    Yields:
        (field number, wire type, start, content, stop). `start` is the offset of the tag, and `stop` is the
        end of the field. `content` is the integer of a varint field. For every other wire type it is the
        offset of the payload, which ends at `stop`.

    Raises:
        BadModel: A length or varint leaves the message, or the wire type does not exist.
    """
    offset = start
    while offset < end:
        begin = offset
        # try one byte first: nearly every tag and length in a graph has one
        tag = buffer[offset]
        offset += 1
        if tag > 127:
            tag, offset = decode_varint(buffer, begin, end)
        wire = tag & 7
        if wire == 2:
            if offset >= end:
                raise BadModel(f"not a valid protobuf: it ends in the middle of a field at byte {offset:,}")
            size = buffer[offset]
            offset += 1
            if size > 127:
                size, offset = decode_varint(buffer, offset - 1, end)
            value, offset = offset, offset + size
        elif wire == 0:
            value, offset = decode_varint(buffer, offset, end)
        elif wire == 5:
            value, offset = offset, offset + 4
        elif wire == 1:
            value, offset = offset, offset + 8
        else:
            raise BadModel(f"not a valid protobuf: wire type {wire} at byte {begin:,}")
        if offset > end:
            raise BadModel(
                f"not a valid protobuf: a field of {offset - value:,} bytes at byte {begin:,} does not fit"
                f" in the {end - value:,} bytes that are left",
                hint="the file is truncated or damaged",
            )
        yield tag >> 3, wire, begin, value, offset


def read_packed_varints(buffer: Buffer, start: int, end: int) -> list[int]:
    """Returns the unsigned integers of a packed repeated varint field."""
    values = []
    offset = start
    while offset < end:
        value, offset = decode_varint(buffer, offset, end)
        values.append(value)
    return values


def reinterpret_signed(value: int) -> int:
    """Reinterprets the unsigned value of a varint as an int64 in two's complement."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def encode_varint(value: int) -> bytes:
    """Encodes `value` as a varint. A negative value is encoded as its 64-bit two's complement."""
    if 0 <= value < 128:
        return _ONE_BYTE[value]
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_ONE_BYTE = tuple(bytes([n]) for n in range(128))
"""Varints of the numbers below 128."""

_LEN_TAGS = tuple(encode_varint(number << 3 | 2) for number in range(32))
"""Tags of fields with a length, by field number."""


def encode_length_delimited(number: int, payload: bytes) -> bytes:
    """Encodes a LEN field: tag, length, payload."""
    # the tables save two calls for each name, and a tiled graph consists mostly of names
    size = len(payload)
    return _LEN_TAGS[number] + (_ONE_BYTE[size] if size < 128 else encode_varint(size)) + payload


def encode_tagged_varint(number: int, value: int) -> bytes:
    """Encodes a VARINT field: tag, value."""
    return encode_varint(number << 3) + encode_varint(value)
