"""Scales of the stored integers of an ONNX graph, taken from the nodes that read the integers."""

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
"""Operators whose inputs are integers, each followed by its scale and zero point.

The values are the index of each such input, and the axis of its scales. DequantizeLinear has the axis as an
attribute.
"""


def scales_of(nodes: Sequence[Node], tensors: Mapping[str, Tensor]) -> dict[str, Scales]:
    """Returns the scales of the stored integers that these nodes read, by the name of the integers."""
    scales_by_name: dict[str, Scales] = {}
    for node in nodes:
        for name, scales in _node_scales(node, tensors):
            scales_by_name.setdefault(name, scales)
    return scales_by_name


def _node_scales(node: Node, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Scales]]:
    for index, axis in _INPUTS.get(node.op, ()):
        name, scale, zero = (*node.inputs[index : index + 3], "", "", "")[:3]
        if name not in tensors or scale not in tensors or (zero and zero not in tensors):
            continue
        block = 0
        if node.op == "DequantizeLinear":
            axis, block = (int(node.attributes.get(*key)) for key in (("axis", 1), ("block_size", 0)))
        yield name, Scales(tensors[scale].array, tensors[zero].array if zero else None, axis, block)


def file_scales(scales: Sequence[float], zeros: Sequence[int], axis: int) -> Scales:
    """Returns the scales of a tensor from scales and zero points in its file.

    Without zero points in the file, all are 0.
    """
    scale_arrays = np.array(scales, np.float32), np.array(zeros or (0,) * len(scales), np.int64)
    return Scales(lambda: scale_arrays[0], lambda: scale_arrays[1], axis)
