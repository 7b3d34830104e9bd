"""TensorFlow Lite files: reading and recognition. Every start imports this module, so it is light."""

from __future__ import annotations

from explorer.engine.formats.format import Format, named

IDENTIFIER = b"TFL3"
"""Bytes 4 to 8 of every file (schema.fbs, file_identifier)."""

FORMAT = Format(
    "tflite",
    "a TensorFlow Lite model (.tflite)",
    label="TensorFlow Lite",
    recognise=lambda probe: probe.head[4:8] == IDENTIFIER,
    open=named("models.tflite:TfliteModel"),
    outline=named("formats.tflite.outline:outline"),
    endings=(".tflite",),
    recognised="'TFL3' behind the first four bytes",
    shows="operators, tensors, shapes, quantization, subgraphs; weights inside the flatbuffer or behind it",
)
