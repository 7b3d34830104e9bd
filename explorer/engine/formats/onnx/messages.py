"""Decoders of the small onnx.proto messages that the reader and the outline share.

Field numbers are those of onnx.proto (IR version 13). `max_bytes` limits how many bytes of a text are read:
the outline shows only the beginning, and a text may be as long as the file.
"""

from __future__ import annotations

from explorer.base.errors import BadModel
from explorer.engine.formats.onnx.protobuf_wire import iterate_fields, reinterpret_signed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.engine.formats.onnx.protobuf_wire import Buffer


def decode_text(encoded: bytes) -> str:
    """Decodes bytes as UTF-8; invalid bytes are escaped with backslashes."""
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        return encoded.decode("utf-8", "backslashreplace")


def read_string(buffer: Buffer, start: int, stop: int, max_bytes: int | None = None) -> str:
    """Returns the text in buffer[start:stop]."""
    return decode_text(bytes(buffer[start : stop if max_bytes is None else min(stop, start + max_bytes)]))


def read_pair(buffer: Buffer, start: int, stop: int, max_bytes: int | None = None) -> tuple[str, str]:
    """Returns the key and value of a StringStringEntryProto."""
    key = value = ""
    for number, wire, _, content, end in iterate_fields(buffer, start, stop):
        if wire == 2 and number == 1:
            key = read_string(buffer, content, end, max_bytes)
        elif wire == 2 and number == 2:
            value = read_string(buffer, content, end, max_bytes)
    return key, value


def read_opset(buffer: Buffer, start: int, stop: int, max_bytes: int | None = None) -> tuple[str, int]:
    """Returns the domain and the version of an OperatorSetIdProto."""
    domain, version = "", 0
    for number, wire, _, content, end in iterate_fields(buffer, start, stop):
        if number == 1 and wire == 2:
            domain = read_string(buffer, content, end, max_bytes)
        elif number == 2 and wire == 0:
            version = reinterpret_signed(content)
    return ("" if domain == "ai.onnx" else domain), version


def read_dimension(buffer: Buffer, start: int, stop: int, max_bytes: int | None = None) -> int | str | None:
    """Returns the size or the name in a TensorShapeProto.Dimension, or None if the message has neither."""
    for number, wire, _, content, end in iterate_fields(buffer, start, stop):
        if number == 1 and wire == 0:
            return reinterpret_signed(content)
        if number == 2 and wire == 2:
            return read_string(buffer, content, end, max_bytes) or None
    return None


def read_tensor_type(
    buffer: Buffer, start: int, stop: int, max_bytes: int | None = None
) -> tuple[int, list[int | str | None] | None]:
    """Returns the element type code and the dimensions (None if there is no shape) of a TypeProto.Tensor."""
    code, sizes = 0, None
    for number, wire, _, content, end in iterate_fields(buffer, start, stop):
        if number == 1 and wire == 0:
            code = content
        elif number == 2 and wire == 2:
            dims = iterate_fields(buffer, content, end)
            sizes = [
                read_dimension(buffer, begin, stop_, max_bytes)
                for kind, form, _, begin, stop_ in dims
                if (kind, form) == (1, 2)
            ]
    return code, sizes


def build_start_error(head: bytes) -> BadModel | None:
    """Returns the error to report if the first byte cannot begin an ONNX model, or None if it can.

    ONNX has no magic number. A ModelProto starts with one of its fields, and all known writers put
    ir_version (0x08) first.

    Args:
        head: First byte of the file.
    """
    if head and head[0] in (0x08, 0x12, 0x1A, 0x22, 0x28, 0x3A, 0x42):
        return None
    return BadModel("this is not an ONNX model", hint="its first byte is not an ONNX field")
