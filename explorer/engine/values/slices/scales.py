"""Scales of the stored integers of an ONNX graph, taken from the nodes that read the integers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from explorer.engine.graph.model import DTYPES, Node, Tensor
from explorer.engine.values.numbers import Scales

_SCALED_INPUTS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "DequantizeLinear": ((0, 1),),
    "QLinearConv": ((3, 0),),
    "QLinearMatMul": ((0, -2), (3, -1)),
}
"""Operators whose inputs are integers, each followed by its scale and zero point.

The values are the index of each such input, and the axis of its scales. For DequantizeLinear, an attribute
has the axis.
"""


def find_scales(nodes: Sequence[Node], tensors: Mapping[str, Tensor]) -> dict[str, Scales]:
    """Returns the scales of the stored integers that these nodes read, by the name of the integers."""
    scales_by_name: dict[str, Scales] = {}
    for node in nodes:
        for name, scales in _list_node_scales(node, tensors):
            scales_by_name.setdefault(name, scales)
    return scales_by_name


def _list_node_scales(node: Node, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Scales]]:
    """Yields the names of the stored integers that a node reads, each with its scales."""
    for index, axis in _SCALED_INPUTS.get(node.op, ()):
        name, scale, zero = (*node.inputs[index : index + 3], "", "", "")[:3]
        if name not in tensors or scale not in tensors or (zero and zero not in tensors):
            continue
        block, dtype = 0, ""
        if node.op == "DequantizeLinear":
            axis, block = int(node.attributes.get("axis", 1)), int(node.attributes.get("block_size", 0))
            code = int(node.attributes.get("output_dtype", 0))
            dtype = DTYPES[code].name if code in DTYPES else ""
        yield name, Scales(tensors[scale].array, tensors[zero].array if zero else None, axis, block, dtype)


def build_scales(scales: Sequence[float], zeros: Sequence[int], axis: int) -> Scales:
    """Builds the scales of a tensor from lists. If `zeros` is empty, all zero points are 0."""
    scale_array, zero_array = np.array(scales, np.float32), np.array(zeros or (0,) * len(scales), np.int64)
    return Scales(lambda: scale_array, lambda: zero_array, axis)
