"""Counts how many of the rounding errors in an output are independent of each other.

An output of 5,000 elements may depend on only five numbers. It then has only five independent errors, and by
chance the original's errors may be a tenth of the other model's errors. With 5,000 independent errors, such a
ratio cannot arise by chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from explorer.engine.graph.interpreter import Wiring, list_reads
from explorer.engine.graph.model import DTYPES, Model, Node
from explorer.engine.runtime.random_inputs import RandomInput
from explorer.engine.shapes import Inference

_EXACT = frozenset(
    (
        *("Abs", "Concat", "Constant", "ConstantOfShape", "DepthToSpace", "Expand", "Flatten", "Gather"),
        *("GatherElements", "GatherND", "Identity", "MaxPool", "Neg", "Pad", "ReduceMax"),
        *("ReduceMin", "Relu"),
        *("Reshape", "Shape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    )
)
"""Operators that do not round, for this estimate; an operator that is not listed counts as rounding."""

_FLOATS = frozenset(d.name for d in DTYPES.values() if "float" in d.name)


def count_independent(model: Model, inputs: Sequence[RandomInput]) -> dict[str, int]:
    """Counts, for each output, the elements at the narrowest point of the computation.

    At such a point, all data of the output passes through these elements. Only points after at least half of
    the roundings count, because later layers add independent roundings.

    Args:
        model: Original model.
        inputs: Random inputs, with shapes and types.

    Returns:
        Number of elements by output name. Outputs whose sizes are unknown are omitted.
    """
    inferred = Inference(model, {}, {d.name: (d.dtype, d.shape) for d in inputs}).main.values
    elements: dict[str, int] = {}
    for name, info in inferred.items():
        sizes = [d for d in info.shape or () if isinstance(d, int)]
        if info.shape is not None and len(sizes) == len(info.shape) and info.dtype in _FLOATS:
            elements[name] = math.prod(sizes)
    wiring = Wiring.from_graph(model.graph)
    widths = {}
    for output in model.graph.outputs:
        nodes, _ = wiring.find_needed_nodes([output.name])
        width = _find_fewest_elements(model, nodes, output.name, elements)
        if width:
            widths[output.name] = width
    return widths


def _find_fewest_elements(
    model: Model, nodes: Sequence[Node], output: str, elements: Mapping[str, int]
) -> int:
    """Finds the smallest number of elements that are alive after a node of `nodes`, or 0 if unknown.

    A value is alive if later nodes read it. Only nodes after half of the roundings count.
    """
    initializers = model.graph.initializers
    last_use = {name: index for index, node in enumerate(nodes) for name in list_reads(node)}
    last_use[output] = len(nodes)
    depths = [_count_roundings(model, node) for node in nodes]
    half_depth, depth_so_far = sum(depths) / 2, 0  # depth in roundings
    alive = {v.name for v in model.graph.required_inputs if v.name in last_use}
    data_dependent: set[str] = set(alive)
    narrowest = 0
    for index, node in enumerate(nodes):
        depth_so_far += depths[index]
        read_names = set(list_reads(node))
        outputs = {name for name in node.outputs if name in last_use}
        # the exact result of constants carries no data
        if read_names & data_dependent or depths[index]:
            data_dependent |= outputs
            alive |= outputs
        alive = {name for name in alive if last_use[name] > index and name not in initializers}
        if alive and depth_so_far >= half_depth and all(name in elements for name in alive):
            width = sum(elements[name] for name in alive)
            narrowest = min(narrowest, width) if narrowest else width
    return narrowest


def _count_roundings(model: Model, node: Node) -> int:
    """Estimates the roundings in a node by the length of its sums."""
    if node.op in _EXACT and not node.domain:
        return 0
    shapes = (model.graph.initializers[n].shape for n in list_reads(node) if n in model.graph.initializers)
    return 1 + max((max(shape, default=1) for shape in shapes), default=1)
