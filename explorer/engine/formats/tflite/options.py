"""Custom options of TensorFlow Lite operators: decodes a FlexBuffers map.

A map of numbers, texts and short lists is decoded by key. For other or broken data, the result is the size in
bytes, because the meaning of custom options depends on the operator.

Source of the format: the FlexBuffers internals guide. The type and width of a value follow the value, so the
buffer is read from its end, and offsets point backward.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from explorer.engine.formats.onnx.protobuf_wire import Buffer

MAX_OPTIONS_BYTES = 1 << 16
"""Maximum bytes of options that are decoded."""

MAX_ENTRIES = 64
"""Maximum number of entries of a map or a list that are decoded."""

_INT, _UINT, _FLOAT, _KEY, _STRING, _MAP, _VECTOR, _BOOL = 1, 2, 3, 4, 5, 9, 10, 26
_INDIRECT = {6: _INT, 7: _UINT, 8: _FLOAT}
_TYPED = {11: _INT, 12: _UINT, 13: _FLOAT, 14: _KEY, 36: _BOOL}
_FIXED = {16 + index: ((_INT, _UINT, _FLOAT)[index % 3], 2 + index // 3) for index in range(9)}
"""Types by number in FlexBuffers: numbers behind an offset, lists of one type, lists of a type and length."""
_FORMS: Mapping[int, str] = {_INT: "bhiq", _UINT: "BHIQ", _FLOAT: "  fd", _BOOL: "BHIQ"}
"""Format letters of `struct` by type of number; the index is the binary logarithm of the width in bytes."""


class _Unknown(Exception):
    """The options are broken, or have a type that is not decoded."""


def decode_custom_options(buffer: Buffer, start: int, size: int) -> dict[str, Any]:
    """Decodes the options of a custom operator in buffer[start : start + size].

    Returns:
        The options by name. If they cannot be decoded, the only entry is `options` with their size as text.
    """
    if not size:
        return {}
    if size <= MAX_OPTIONS_BYTES:
        try:
            options = _Flex(bytes(buffer[start : start + size])).read_root()
        except (_Unknown, ValueError):
            options = None
        if options:
            return options
    return {"options": f"{size:,} bytes"}


class _Flex:
    """A FlexBuffer; every offset is checked before its bytes are read."""

    def __init__(self, buffer: bytes) -> None:
        self.data = buffer

    def read_root(self) -> dict[str, Any] | None:
        """Returns the entries of the root map, or None if the root is not a map."""
        if len(self.data) < 3:
            return None
        width, kind = self.data[-1], self.data[-2]
        if width not in (1, 2, 4, 8) or kind >> 2 != _MAP:
            return None
        first = self.follow_offset(len(self.data) - 2 - width, width)
        return self.read_entries(first, 1 << (kind & 3))

    def read_number(self, offset: int, width: int, kind: int = _UINT) -> Any:
        """Returns the number at an offset, `width` bytes wide."""
        if offset < 0 or offset + width > len(self.data):
            raise _Unknown
        letter = _FORMS[kind][width.bit_length() - 1].strip()
        if not letter:
            raise _Unknown
        return struct.unpack_from(f"<{letter}", self.data, offset)[0]

    def follow_offset(self, offset: int, width: int) -> int:
        """Follows the backward offset that is stored at `offset`."""
        position: int = offset - self.read_number(offset, width)
        if position < 0:
            raise _Unknown
        return position

    def read_key(self, start: int) -> str:
        """Returns the zero-terminated text at an offset."""
        end = self.data.find(b"\0", start)
        if end < 0:
            raise _Unknown
        return self.data[start:end].decode("utf-8", "backslashreplace")

    def read_entries(self, first: int, width: int) -> dict[str, Any]:
        """Returns the map whose values begin at `first`.

        Its count, the width of its keys and the offset of its keys precede the values.
        """
        count = self.read_number(first - width, width)
        key_width = self.read_number(first - 2 * width, width)
        keys = self.follow_offset(first - 3 * width, width)
        if (
            count > MAX_ENTRIES
            or key_width not in (1, 2, 4, 8)
            or self.read_number(keys - key_width, key_width) != count
        ):
            raise _Unknown
        entries = {}
        for index in range(count):
            kind = self.read_number(first + count * width + index, 1)
            name = self.read_key(self.follow_offset(keys + index * key_width, key_width))
            entries[name] = self.decode_value(first + index * width, width, kind)
        return entries

    def decode_value(self, offset: int, width: int, packed: int) -> Any:
        """Decodes an element of a map or list.

        Args:
            offset: Offset of the element.
            width: Bytes of the element.
            packed: Type of the element, and width of the value that it points to.
        """
        kind, value_width = packed >> 2, 1 << (packed & 3)
        if kind in (_INT, _UINT, _FLOAT):
            return self.read_number(offset, width, kind)
        if kind == _BOOL:
            return bool(self.read_number(offset, width))
        if kind in _INDIRECT:
            return self.read_number(self.follow_offset(offset, width), value_width, _INDIRECT[kind])
        if kind == _KEY:
            return self.read_key(self.follow_offset(offset, width))
        if kind == _STRING:
            first = self.follow_offset(offset, width)
            count = self.read_number(first - value_width, value_width)
            if first + count > len(self.data):
                raise _Unknown
            return self.data[first : first + count].decode("utf-8", "backslashreplace")
        if kind in _TYPED or kind in _FIXED or kind == _VECTOR:
            return self.decode_elements(self.follow_offset(offset, width), value_width, kind)
        raise _Unknown

    def decode_elements(self, first: int, width: int, kind: int) -> tuple[Any, ...]:
        """Decodes a list of numbers or texts; nested lists are not decoded."""
        element_type, count = (
            _FIXED[kind] if kind in _FIXED else (_TYPED.get(kind, 0), self.read_number(first - width, width))
        )
        if count > MAX_ENTRIES:
            raise _Unknown
        values = []
        for index in range(count):
            packed = element_type << 2 if element_type else self.read_number(first + count * width + index, 1)
            if packed >> 2 not in (_INT, _UINT, _FLOAT, _BOOL, _KEY, _STRING):
                raise _Unknown
            values.append(self.decode_value(first + index * width, width, packed))
        return tuple(values)
