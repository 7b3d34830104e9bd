"""TensorFlow Lite files: recognizing and reading.

Every program start imports this module, so it imports little.
"""

from __future__ import annotations

from explorer.engine.formats.format import Format, import_on_call

IDENTIFIER = b"TFL3"
"""Bytes 4 to 7 of every file (file_identifier in schema.fbs)."""

FORMAT = Format(
    "tflite",
    "a TensorFlow Lite model (.tflite)",
    label="TensorFlow Lite",
    recognize=lambda probe: probe.head[4:8] == IDENTIFIER,
    open=import_on_call("models.tflite:TfliteModel"),
    outline=import_on_call("formats.tflite.outline:outline"),
    endings=(".tflite",),
    recognized_by="'TFL3' after the first four bytes",
    shows="operators, tensors, shapes, quantization, subgraphs; weights inside the flatbuffer or after it",
)
