"""Activations fused into the Conv or Gemm before them, in the form that onnxruntime's optimizer writes.

No command writes such a model; a diff uses it for comparison with a model that has fused operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from explorer.engine.fold.rewriting import FoldingGraph
from explorer.engine.graph.model import Node

DOMAIN = "com.microsoft"

FUSED = {"Conv": "FusedConv", "Gemm": "FusedGemm"}
"""Operators, and the names of their fused forms."""

ACTIVATIONS: Mapping[str, tuple[tuple[str, float], ...]] = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "LeakyRelu": (("alpha", 0.01),),
    "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)),
    "Clip": (),
}
"""Activations, with the attributes (and defaults) that become parameters of the fused operator."""

_NAMES = ("activation_alpha", "activation_beta")


def fuse(work: FoldingGraph) -> None:
    """Fuses every activation that can be fused into the product before it."""
    for at, node in work.candidates(*ACTIVATIONS):
        place = work.maker.get(node.inputs[0])
        maker = None if place is None else work.nodes[place]
        if place is None or maker is None or maker.domain or maker.op not in FUSED:
            continue
        if len(work.read_by(node.inputs[0])) > 1 or work.why_seen(node.inputs[0]):
            continue
        parameters = _parameters(work, node)
        if parameters is None:
            continue
        work.remove(at, (place,))
        work.put(place, _fuse_node(maker, node, parameters))


def _parameters(work: FoldingGraph, node: Node) -> tuple[float, ...] | None:
    """The parameters of an activation; None if one of them is not stored."""
    if node.op != "Clip":
        return tuple([float(node.attributes.get(name, usual)) for name, usual in ACTIVATIONS[node.op]])
    ends = [work.constant(name) for name in node.inputs[1:3]]
    if len(ends) < 2 or any(end is None or end.elements != 1 for end in ends):
        return None
    return tuple([float(end.array().reshape(-1)[0]) for end in ends if end is not None])


def _fuse_node(maker: Node, node: Node, parameters: tuple[float, ...]) -> Node:
    attributes: dict[str, Any] = {**maker.attributes, "activation": node.op}
    if maker.op == "Gemm":
        attributes |= zip(_NAMES, parameters, strict=False)
    elif parameters:
        attributes["activation_params"] = parameters
    return Node(
        FUSED[maker.op],
        maker.inputs,
        node.outputs,
        maker.label,
        DOMAIN,
        attributes=attributes,
        metadata=maker.metadata,
    )
