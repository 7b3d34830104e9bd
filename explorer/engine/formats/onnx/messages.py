"""Messages of onnx.proto that every reader needs: texts, pairs, operator sets, dimensions.

Field numbers are those of onnx.proto (IR version 13). `most` limits the bytes that are read of a text: the
outline shows the beginning only, and a text may be as long as the file.
"""

from __future__ import annotations

from explorer.base.errors import BadModel
from explorer.engine.formats.onnx.protobuf_wire import fields, signed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.engine.formats.onnx.protobuf_wire import Buffer


def decoded(encoded: bytes) -> str:
    """Decodes bytes as UTF-8; other bytes are escaped."""
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        return encoded.decode("utf-8", "backslashreplace")


def text(buffer: Buffer, start: int, stop: int, most: int | None = None) -> str:
    """The text in buffer[start:stop]."""
    return decoded(bytes(buffer[start : stop if most is None else min(stop, start + most)]))


def pair(buffer: Buffer, start: int, stop: int, most: int | None = None) -> tuple[str, str]:
    """Key and value of a StringStringEntryProto."""
    key = value = ""
    for number, wire, _, at, end in fields(buffer, start, stop):
        if wire == 2 and number == 1:
            key = text(buffer, at, end, most)
        elif wire == 2 and number == 2:
            value = text(buffer, at, end, most)
    return key, value


def opset(buffer: Buffer, start: int, stop: int, most: int | None = None) -> tuple[str, int]:
    """Domain and version of an OperatorSetIdProto."""
    domain, version = "", 0
    for number, wire, _, at, end in fields(buffer, start, stop):
        if number == 1 and wire == 2:
            domain = text(buffer, at, end, most)
        elif number == 2 and wire == 0:
            version = signed(at)
    return ("" if domain == "ai.onnx" else domain), version


def dimension(buffer: Buffer, start: int, stop: int, most: int | None = None) -> int | str | None:
    """The size or the name in a TensorShapeProto.Dimension; None if it has neither."""
    for number, wire, _, at, end in fields(buffer, start, stop):
        if number == 1 and wire == 0:
            return signed(at)
        if number == 2 and wire == 2:
            return text(buffer, at, end, most) or None
    return None


def tensor_type(
    buffer: Buffer, start: int, stop: int, most: int | None = None
) -> tuple[int, list[int | str | None] | None]:
    """The number of the element type of a TypeProto.Tensor, and its sizes; None if it has no shape."""
    code, sizes = 0, None
    for number, wire, _, at, end in fields(buffer, start, stop):
        if number == 1 and wire == 0:
            code = at
        elif number == 2 and wire == 2:
            dims = fields(buffer, at, end)
            sizes = [dimension(buffer, a, b, most) for kind, form, _, a, b in dims if (kind, form) == (1, 2)]
    return code, sizes


def not_onnx(head: bytes) -> BadModel | None:
    """The error for a file whose `head` cannot be that of an ONNX model; None if it can be one.

    There is no magic number. A ModelProto starts with one of its fields; all known writers put ir_version
    (0x08) first.
    """
    if head and head[0] in (0x08, 0x12, 0x1A, 0x22, 0x28, 0x3A, 0x42):
        return None
    return BadModel("this is not an ONNX model", hint="its first byte is no ONNX field")
