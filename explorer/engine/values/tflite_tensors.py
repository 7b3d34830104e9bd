"""Stored tensors of a TensorFlow Lite file, with the scales in the file."""

from __future__ import annotations

from msgspec.structs import replace

from explorer.engine.formats.tflite.graph import Tflite
from explorer.engine.values import onnx_tensors
from explorer.engine.values.numbers import Numbers
from explorer.engine.values.slices.scales import build_scales


def list_stored(read: Tflite) -> list[Numbers]:
    """Returns every tensor that the file stores. Tensors that the reader added to the graph are left out."""
    tensors = read.model.graph.initializers
    tensor_numbers = []
    for numbers in onnx_tensors.list_stored(read.model):
        tensor = tensors.get(numbers.name)
        if tensor is not None and tensor.stored_elements is not None:
            # the missing numbers of a sparse tensor are zero
            numbers = replace(numbers, unstored_zeros=numbers.elements - tensor.stored_elements)
        scales = read.scales.get(numbers.name)
        if scales is not None:
            numbers = replace(numbers, scales=build_scales(*scales.read_parameters(), scales.axis))
        if numbers.name not in read.made_up:
            tensor_numbers.append(numbers)
    return tensor_numbers
