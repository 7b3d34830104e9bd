"""Messages of onnx.proto that every reader of an ONNX file meets: texts, pairs, operator sets, dimensions.

Field numbers are those of onnx.proto (IR version 13). `most` bounds the bytes of a text that are read: the
outline shows the beginning of one that may be as long as its file.
"""

from __future__ import annotations

from explorer.base.errors import BadModel
from explorer.engine.formats.onnx.protobuf_wire import fields, signed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.engine.formats.onnx.protobuf_wire import Buffer


def decoded(encoded: bytes) -> str:
    """Bytes as text; those that are no UTF-8 stay readable."""
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
    """A size or its name, as a TensorShapeProto.Dimension has it; None if it has neither."""
    for number, wire, _, at, end in fields(buffer, start, stop):
        if number == 1 and wire == 0:
            return signed(at)
        if number == 2 and wire == 2:
            return text(buffer, at, end, most) or None
    return None


def tensor_type(
    buffer: Buffer, start: int, stop: int, most: int | None = None
) -> tuple[int, list[int | str | None] | None]:
    """The element type of a TypeProto.Tensor, by its number, and its sizes; None where it gives none."""
    code, sizes = 0, None
    for number, wire, _, at, end in fields(buffer, start, stop):
        if number == 1 and wire == 0:
            code = at
        elif number == 2 and wire == 2:
            dims = fields(buffer, at, end)
            sizes = [dimension(buffer, a, b, most) for kind, form, _, a, b in dims if (kind, form) == (1, 2)]
    return code, sizes


def not_onnx(head: bytes) -> BadModel | None:
    """Why a file that begins with `head` can be no ONNX model (it carries no magic number); None if it can.

    A ModelProto starts with one of its own fields; every writer known puts ir_version (0x08) first.
    """
    if head and head[0] in (0x08, 0x12, 0x1A, 0x22, 0x28, 0x3A, 0x42):
        return None
    return BadModel("this is not an ONNX model", hint="its first byte is no ONNX field")
