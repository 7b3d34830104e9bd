"""Scales of the stored integers of an ONNX graph, from the nodes that read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from explorer.engine.graph.model import Node, Tensor
from explorer.engine.values.numbers import Scales

_INPUTS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "DequantizeLinear": ((0, 1),),
    "QLinearConv": ((3, 0),),
    "QLinearMatMul": ((0, -2), (3, -1)),
}
"""Operators whose inputs are integers, each followed by scale and zero point: their places, and the axis of
several scales (DequantizeLinear has it as an attribute)."""


def scales_of(nodes: Sequence[Node], tensors: Mapping[str, Tensor]) -> dict[str, Scales]:
    """The scales of the stored integers that these nodes read, by the integers' name."""
    scales_by_name: dict[str, Scales] = {}
    for node in nodes:
        for name, scales in _of_node(node, tensors):
            scales_by_name.setdefault(name, scales)
    return scales_by_name


def _of_node(node: Node, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Scales]]:
    for at, axis in _INPUTS.get(node.op, ()):
        name, scale, zero = (*node.inputs[at : at + 3], "", "", "")[:3]
        if name not in tensors or scale not in tensors or (zero and zero not in tensors):
            continue
        block = 0
        if node.op == "DequantizeLinear":
            axis, block = (int(node.attributes.get(*key)) for key in (("axis", 1), ("block_size", 0)))
        yield name, Scales(tensors[scale].array, tensors[zero].array if zero else None, axis, block)


def file_scales(scales: Sequence[float], zeros: Sequence[int], axis: int) -> Scales:
    """The scales of a tensor from scales and zero points in its file; without zero points, these are 0."""
    scale_arrays = np.array(scales, np.float32), np.array(zeros or (0,) * len(scales), np.int64)
    return Scales(lambda: scale_arrays[0], lambda: scale_arrays[1], axis)
