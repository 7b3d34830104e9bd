"""Tells whether a region is an affine function of its inputs: a linear map and an addition.

Two affine functions with equal stored numbers can differ only in where they use these numbers. Dense random
inputs of one spread show that. Other spreads show bends, which an affine function does not have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from explorer.engine.graph.model import Model, Node
from explorer.engine.proof.regions.bend_points import find_dependent_values

_FIRST_INPUT = frozenset((0,))

_LINEAR_INPUTS: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(("BatchNormalization", "Conv", "ConvTranspose", "Div", "Gemm", "Reshape"), _FIRST_INPUT),
    **dict.fromkeys(("Flatten", "Identity", "Neg", "Squeeze", "Transpose", "Unsqueeze"), _FIRST_INPUT),
    **dict.fromkeys(("MatMul", "Mul"), frozenset((0, 1))),
}
"""Indices of the inputs in which an operator is linear if its other inputs are constants."""

_ADDITIONS = ("Add", "Concat", "Sub", "Sum")
"""Operators that are linear in all of their inputs together."""

_INFERENCE_OPSET = 7
"""Opset from which BatchNormalization normalizes by stored statistics unless an attribute asks otherwise."""


def is_affine(model: Model) -> bool:
    """Whether all nodes of a region, as a model, are linear in the inputs of the region."""
    dependent = find_dependent_values(model.graph.nodes, [v.name for v in model.graph.required_inputs])
    return all(_is_affine(model, node, dependent) for node in model.graph.nodes)


def _is_affine(model: Model, node: Node, dependent: Collection[str]) -> bool:
    """Whether a node is linear in its inputs that are in `dependent`, or has no such input."""
    if node.domain or node.key in model.functions:
        return False
    indices = [index for index, name in enumerate(node.inputs) if name in dependent]
    if node.op == "BatchNormalization":
        is_inference = model.opset >= _INFERENCE_OPSET and not node.attributes.get("training_mode")
        if not is_inference or len(node.outputs) > 1:
            return False
    if node.op in _ADDITIONS:
        return True
    return not indices or (len(indices) == 1 and indices[0] in _LINEAR_INPUTS.get(node.op, ()))
