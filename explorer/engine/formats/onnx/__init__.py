"""ONNX files: recognizing, reading and writing.

Every program start imports this module, so it imports little.
"""

from __future__ import annotations

from explorer.engine.formats.format import Format, SourceProbe, import_on_call, open_graph_file

_FIELDS = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}
"""Wire type by field number of ModelProto (onnx.proto). An ONNX file has no magic number to look for."""
_TEXT = bytes([*b"\t\n\r", *range(32, 127)])


def _recognize(probe: SourceProbe) -> bool:
    """Whether the first bytes of the file parse as fields of a ModelProto."""
    head, offset, complete_fields = probe.head, 0, 0
    if not head.translate(None, _TEXT):
        return False  # a text file, such as Python code: in a model, tags such as 0x08 are no text
    while offset < len(head):
        tag, offset = _decode_varint(head, offset)
        wire = tag & 7
        if offset < 0 or _FIELDS.get(tag >> 3) != wire:
            return False
        value, offset = _decode_varint(head, offset)
        if offset >= 0 and wire == 2 and _is_message(head, offset, tag):
            return False
        if offset < 0 or (wire == 2 and offset + value > probe.size):
            break  # the head ends within a field, or the file is truncated, which the reader reports
        offset += value if wire == 2 else 0
        complete_fields += 1
    return complete_fields > 0


def _is_message(head: bytes, offset: int, tag: int) -> bool:
    """Whether the field is field 2 and its payload is a message that begins with a message.

    A Core ML file begins with the same field numbers as an ONNX file. Its field 2 is a message that describes
    the inputs. In an ONNX file, field 2 is a text, the name of the producer.
    """
    if tag >> 3 != 2 or head[offset : offset + 1] != b"\n":
        return False
    _, start = _decode_varint(head, offset + 1)
    return start >= 0 and head[start : start + 1] == b"\n"


def _decode_varint(head: bytes, start: int) -> tuple[int, int]:
    """Decodes a varint.

    Returns its value and the offset after it. The offset is -1 if the head ends first, or after 10 bytes.
    """
    value = shift = 0
    for index in range(start, min(start + 10, len(head))):
        value |= (head[index] & 127) << shift
        if head[index] < 128:
            return value, index + 1
        shift += 7
    return value, -1


FORMAT = Format(
    "onnx",
    "an ONNX file (.onnx)",
    label="ONNX",
    recognize=_recognize,
    open=open_graph_file("onnx", "formats.onnx.reader:read"),
    outline=import_on_call("formats.onnx.outline:outline"),
    endings=(".onnx",),
    recognized_by="the fields of a protobuf ModelProto",
    shows="graph, initializers, shapes; weights inside or in external files",
)
