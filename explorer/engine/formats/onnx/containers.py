"""Sequence and optional types of ONNX values, decoded from the ValueInfoProto. `Value` cannot express them.

Field numbers are those of onnx.proto (IR version 13). In a TypeProto, sequence_type is field 4 and
optional_type is field 9. In both messages, field 1 is the type of the elements.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from explorer.engine.formats.onnx import messages
from explorer.engine.formats.onnx.protobuf_wire import encode_length_delimited, iterate_fields
from explorer.engine.formats.onnx.writer import encode_tensor_type
from explorer.engine.graph.model import DTYPES, Inline, Value
from explorer.facts import Dim, Shape

_CONTAINERS = (4, 9)
"""Field numbers of the types sequence and optional in TypeProto."""
_TENSOR = 1
"""Field number of the tensor type in TypeProto."""

MAX_NESTING = 8
"""Maximum number of nested containers that are read."""


class Container(Struct, frozen=True):
    """A declared sequence or optional.

    Attributes:
        name: Name of the value.
        kinds: Field numbers of the containers in TypeProto, outermost first.
        dtype: Element type of the tensors in the container.
        shape: Shape of the tensors in the container, or None if undeclared.
    """

    name: str
    kinds: tuple[int, ...]
    dtype: str
    shape: Shape | None

    def change_shape(self, change: Callable[[Shape], Shape | None]) -> Container:
        """Returns the container with `change` applied to its tensor shape."""
        shape = None if self.shape is None else change(self.shape)
        return Container(self.name, self.kinds, self.dtype, shape)

    def build_value(self) -> Value:
        """Returns the declaration as a `Value` of a model."""
        body = encode_tensor_type(self.dtype, self.shape)
        for kind in reversed(self.kinds):
            body = encode_length_delimited(kind, encode_length_delimited(1, body))
        record = encode_length_delimited(1, self.name.encode()) + encode_length_delimited(2, body)
        return Value(self.name, None, None, Inline(record))


def build_typed_value(name: str, encoded_type: bytes) -> Value:
    """Returns the declaration of a value that is not a tensor, from its encoded TypeProto."""
    record = encode_length_delimited(1, name.encode()) + encode_length_delimited(2, encoded_type)
    return Value(name, None, None, Inline(record))


def read_container(value: Value) -> Container | None:
    """Decodes the declaration of a sequence or optional of tensors; returns None for any other value."""
    if value.dtype is not None or value.record is None:
        return None
    encoded = bytes(value.record.view())
    kinds: list[int] = []
    field = _find_field(encoded, 0, len(encoded), (2,))
    while field is not None and len(kinds) <= MAX_NESTING:
        inner = _find_field(encoded, field[1], field[2], (_TENSOR, *_CONTAINERS))
        if inner is None:
            return None
        if inner[0] == _TENSOR:
            code, sizes = messages.read_tensor_type(encoded, inner[1], inner[2])
            if not kinds or code not in DTYPES:
                return None
            shape: tuple[Dim, ...] | None = None
            if sizes is not None:
                shape = tuple([None if isinstance(size, int) and size < 0 else size for size in sizes])
            return Container(value.name, tuple(kinds), DTYPES[code].name, shape)
        kinds.append(inner[0])
        field = _find_field(encoded, inner[1], inner[2], (1,))
    return None


def read_declared_shape(value: Value) -> Shape | None:
    """Returns the declared shape of a tensor, or of the tensors in a container; None if undeclared."""
    if value.shape is not None:
        return value.shape
    contained = read_container(value)
    return None if contained is None else contained.shape


def _find_field(
    encoded: bytes, start: int, stop: int, numbers: tuple[int, ...]
) -> tuple[int, int, int] | None:
    """Finds the first message field whose number is in `numbers`: number, payload start and payload end."""
    for number, wire, _, content, end in iterate_fields(encoded, start, stop):
        if wire == 2 and number in numbers:
            return number, content, end
    return None
