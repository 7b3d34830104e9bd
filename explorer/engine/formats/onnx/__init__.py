"""ONNX files: reading, writing and recognition. Every start imports this module, so it is light."""

from __future__ import annotations

from explorer.engine.formats.format import Format, SourceProbe, graph_file, named

_FIELDS = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}
"""ModelProto's fields (onnx.proto) and their wire types: an ONNX file has no magic number."""


def _recognise(probe: SourceProbe) -> bool:
    """Whether the file begins with fields of a ModelProto, as far as its head reaches."""
    head, at, whole = probe.head, 0, 0
    while at < len(head):
        tag, at = _varint(head, at)
        wire = tag & 7
        if at < 0 or _FIELDS.get(tag >> 3) != wire:
            return False
        value, at = _varint(head, at)
        if at < 0 or (wire == 2 and at + value > probe.size):
            break  # the head ends within a number, or the file is cut off: the reader says so
        at += value if wire == 2 else 0
        whole += 1
    return whole > 0


def _varint(head: bytes, at: int) -> tuple[int, int]:
    """A varint and the place after it, -1 if the head ends first."""
    value = shift = 0
    for here in range(at, min(at + 10, len(head))):
        value |= (head[here] & 127) << shift
        if head[here] < 128:
            return value, here + 1
        shift += 7
    return value, -1


FORMAT = Format(
    "onnx",
    "an ONNX file (.onnx)",
    label="ONNX",
    recognise=_recognise,
    open=graph_file("onnx", "formats.onnx.reader:read"),
    outline=named("formats.onnx.outline:outline"),
    endings=(".onnx",),
    recognised="the fields of a protobuf ModelProto",
    shows="graph, initializers, shapes; weights inside or in external files",
)
