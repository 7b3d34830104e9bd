"""Independence of rounding errors: how many of the errors in an output are independent of each other.

An output of 5,000 elements may depend on five numbers. Then its errors follow from five errors. By chance,
those of the original may be a tenth of the rounding errors of the next graph, which 5,000 independent errors
never are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from explorer.engine.graph.interpreter import Wiring, reads
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
"""Operators that round nothing."""

_FLOATS = frozenset(d.name for d in DTYPES.values() if "float" in d.name)


def independent(model: Model, drawn: Sequence[RandomInput]) -> dict[str, int]:
    """For each output, the fewest elements that carry all of its data at some place on the way to it.

    Only places behind at least half of the roundings count: later layers add independent roundings
    again.

    Args:
        model: The original.
        drawn: Its inputs.

    Returns:
        Elements by the name of the output; outputs with unknown sizes are left out.
    """
    inferred = Inference(model, {}, {d.name: (d.dtype, d.shape) for d in drawn}).main.values
    elements: dict[str, int] = {}
    for name, info in inferred.items():
        sizes = [d for d in info.shape or () if isinstance(d, int)]
        if info.shape is not None and len(sizes) == len(info.shape) and info.dtype in _FLOATS:
            elements[name] = math.prod(sizes)
    wiring = Wiring.of(model.graph)
    widths = {}
    for output in model.graph.outputs:
        nodes, _ = wiring.needed([output.name])
        width = _narrowest(model, nodes, output.name, elements)
        if width:
            widths[output.name] = width
    return widths


def _narrowest(model: Model, nodes: Sequence[Node], output: str, elements: Mapping[str, int]) -> int:
    """Fewest elements that are alive between two nodes; 0 if unknown."""
    initializers = model.graph.initializers
    last = {name: at for at, node in enumerate(nodes) for name in reads(node)}
    last[output] = len(nodes)
    depths = [_depth(model, node) for node in nodes]
    half, behind = sum(depths) / 2, 0
    alive = {v.name for v in model.graph.feeds if v.name in last}
    varying: set[str] = set(alive)
    narrowest = 0
    for at, node in enumerate(nodes):
        behind += depths[at]
        read = set(reads(node))
        outputs = {name for name in node.outputs if name in last}
        # an exact result of stored numbers alone carries no data
        if read & varying or depths[at]:
            varying |= outputs
            alive |= outputs
        alive = {name for name in alive if last[name] > at and name not in initializers}
        if alive and behind >= half and all(name in elements for name in alive):
            width = sum(elements[name] for name in alive)
            narrowest = min(narrowest, width) if narrowest else width
    return narrowest


def _depth(model: Model, node: Node) -> int:
    """Roundings on the way through a node: about the length of its sums."""
    if node.op in _EXACT and not node.domain:
        return 0
    shapes = (model.graph.initializers[n].shape for n in reads(node) if n in model.graph.initializers)
    return 1 + max((max(shape, default=1) for shape in shapes), default=1)
