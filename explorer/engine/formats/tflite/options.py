"""Custom options of TensorFlow Lite operators: a FlexBuffers map, or a number of bytes.

A map of numbers, texts and short lists is shown by key. Anything else, or a broken map, is shown by its size:
only the operator knows what its options mean.

Source of the format: the FlexBuffers internals guide. A value ends with its type and width, so it is read
backward, and offsets lead backward.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from explorer.engine.formats.onnx.protobuf_wire import Buffer

LARGEST = 1 << 16
"""Largest options that are decoded, in bytes."""

MOST = 64
"""Most entries of a map or a list that are decoded."""

_INT, _UINT, _FLOAT, _KEY, _STRING, _MAP, _VECTOR, _BOOL = 1, 2, 3, 4, 5, 9, 10, 26
_INDIRECT = {6: _INT, 7: _UINT, 8: _FLOAT}
_TYPED = {11: _INT, 12: _UINT, 13: _FLOAT, 14: _KEY, 36: _BOOL}
_FIXED = {16 + at: ((_INT, _UINT, _FLOAT)[at % 3], 2 + at // 3) for at in range(9)}
_FORMS: Mapping[int, str] = {_INT: "bhiq", _UINT: "BHIQ", _FLOAT: "  fd", _BOOL: "BHIQ"}
"""Letters for `struct` of each kind of number, by the logarithm of its width."""


class _Unknown(Exception):
    """Options that are not decoded."""


def custom_options(buffer: Buffer, at: int, size: int) -> dict[str, Any]:
    """The options of a custom operator in buffer[at : at + size], or their size if they cannot be decoded."""
    if not size:
        return {}
    if size <= LARGEST:
        try:
            options = _Flex(bytes(buffer[at : at + size])).root()
        except (_Unknown, ValueError):
            options = None
        if options:
            return options
    return {"options": f"{size:,} bytes"}


class _Flex:
    """A FlexBuffer; every place is checked before it is read."""

    def __init__(self, buffer: bytes) -> None:
        self.data = buffer

    def root(self) -> dict[str, Any] | None:
        """The entries of the root map; None if the root is no map."""
        if len(self.data) < 3:
            return None
        width, kind = self.data[-1], self.data[-2]
        if width not in (1, 2, 4, 8) or kind >> 2 != _MAP:
            return None
        first = self.behind(len(self.data) - 2 - width, width)
        return self.entries(first, 1 << (kind & 3))

    def number(self, at: int, width: int, kind: int = _UINT) -> Any:
        """A number of `width` bytes."""
        if at < 0 or at + width > len(self.data):
            raise _Unknown
        form = _FORMS[kind][width.bit_length() - 1].strip()
        if not form:
            raise _Unknown
        return struct.unpack_from(f"<{form}", self.data, at)[0]

    def behind(self, at: int, width: int) -> int:
        """The place that the offset at `at` points to."""
        target: int = at - self.number(at, width)
        if target < 0:
            raise _Unknown
        return target

    def key(self, at: int) -> str:
        """A zero-terminated text."""
        end = self.data.find(b"\0", at)
        if end < 0:
            raise _Unknown
        return self.data[at:end].decode("utf-8", "backslashreplace")

    def entries(self, first: int, width: int) -> dict[str, Any]:
        """The map whose values begin at `first`; its keys, their width and the count precede it."""
        count = self.number(first - width, width)
        key_width = self.number(first - 2 * width, width)
        keys = self.behind(first - 3 * width, width)
        if count > MOST or key_width not in (1, 2, 4, 8) or self.number(keys - key_width, key_width) != count:
            raise _Unknown
        entries = {}
        for index in range(count):
            kind = self.number(first + count * width + index, 1)
            name = self.key(self.behind(keys + index * key_width, key_width))
            entries[name] = self.value(first + index * width, width, kind)
        return entries

    def value(self, at: int, width: int, packed: int) -> Any:
        """A value in a map or list whose elements are `width` bytes wide; `packed` is its type and width."""
        kind, value_width = packed >> 2, 1 << (packed & 3)
        if kind in (_INT, _UINT, _FLOAT):
            return self.number(at, width, kind)
        if kind == _BOOL:
            return bool(self.number(at, width))
        if kind in _INDIRECT:
            return self.number(self.behind(at, width), value_width, _INDIRECT[kind])
        if kind == _KEY:
            return self.key(self.behind(at, width))
        if kind == _STRING:
            first = self.behind(at, width)
            count = self.number(first - value_width, value_width)
            if first + count > len(self.data):
                raise _Unknown
            return self.data[first : first + count].decode("utf-8", "backslashreplace")
        if kind in _TYPED or kind in _FIXED or kind == _VECTOR:
            return self.elements(self.behind(at, width), value_width, kind)
        raise _Unknown

    def elements(self, first: int, width: int, kind: int) -> tuple[Any, ...]:
        """A list; a list of lists is not decoded."""
        each, count = (
            _FIXED[kind] if kind in _FIXED else (_TYPED.get(kind, 0), self.number(first - width, width))
        )
        if count > MOST:
            raise _Unknown
        values = []
        for index in range(count):
            packed = each << 2 if each else self.number(first + count * width + index, 1)
            if packed >> 2 not in (_INT, _UINT, _FLOAT, _BOOL, _KEY, _STRING):
                raise _Unknown
            values.append(self.value(first + index * width, width, packed))
        return tuple(values)
