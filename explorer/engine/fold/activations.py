"""Fuses activations into the Conv or Gemm before them, in the form that onnxruntime's optimizer writes.

No command writes such a model. A diff uses it to compare a model with a model that has fused operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from explorer.engine.fold.rewriting import FoldingGraph
from explorer.engine.graph.model import Node

DOMAIN = "com.microsoft"

FUSED = {"Conv": "FusedConv", "Gemm": "FusedGemm"}
"""Operators, with the names of their fused forms."""

ACTIVATIONS: Mapping[str, tuple[tuple[str, float], ...]] = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "LeakyRelu": (("alpha", 0.01),),
    "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)),
    "Clip": (),
}
"""Activations, with the attributes (and defaults) that become parameters of the fused operator. The
parameters of a Clip are its inputs instead."""

_GEMM_PARAMETERS = ("activation_alpha", "activation_beta")


def fuse(work: FoldingGraph) -> None:
    """Fuses every activation into the Conv or Gemm before it, where possible."""
    for index, node in work.iterate_candidates(*ACTIVATIONS):
        producer_index = work.producers.get(node.inputs[0])
        producer = None if producer_index is None else work.nodes[producer_index]
        if producer_index is None or producer is None or producer.domain or producer.op not in FUSED:
            continue
        if len(work.list_readers(node.inputs[0])) > 1 or work.explain_visibility(node.inputs[0]):
            continue
        parameters = _read_parameters(work, node)
        if parameters is None:
            continue
        work.remove(index, (producer_index,))
        work.replace_node(producer_index, _fuse_node(producer, node, parameters))


def _read_parameters(work: FoldingGraph, node: Node) -> tuple[float, ...] | None:
    """Returns the parameters of an activation; None if a limit of a Clip is absent or not stored."""
    if node.op != "Clip":
        return tuple([float(node.attributes.get(name, default)) for name, default in ACTIVATIONS[node.op]])
    limits = [work.find_constant(name) for name in node.inputs[1:3]]
    if len(limits) < 2 or any(end is None or end.elements != 1 for end in limits):
        return None
    return tuple([float(end.array().reshape(-1)[0]) for end in limits if end is not None])


def _fuse_node(producer: Node, node: Node, parameters: tuple[float, ...]) -> Node:
    """Returns the fused node of a producer and the activation that follows it."""
    attributes: dict[str, Any] = {**producer.attributes, "activation": node.op}
    if producer.op == "Gemm":
        attributes |= zip(_GEMM_PARAMETERS, parameters, strict=False)
    elif parameters:
        attributes["activation_params"] = parameters
    return Node(
        FUSED[producer.op],
        producer.inputs,
        node.outputs,
        producer.label,
        DOMAIN,
        attributes=attributes,
        metadata=producer.metadata,
    )
