"""Removes Identity nodes, and Dropout nodes in inference: readers of the output read the input instead."""

from __future__ import annotations

from explorer.engine.fold.rewriting import FoldingGraph
from explorer.engine.graph.model import Node

_INFERENCE_OPSET = 7
"""The opset from which Dropout returns its input by default."""


def fold(work: FoldingGraph) -> None:
    """Removes each Identity, and each Dropout in inference, or records the reason why the node stays."""
    for index, node in work.iterate_candidates("Identity", "Dropout"):
        reason = _explain_remaining(work, node) if node.op == "Dropout" else ""
        reason = reason or _bypass_node(work, index, node)
        if reason:
            work.record_unfolded(node, reason)


def _explain_remaining(work: FoldingGraph, node: Node) -> str:
    """Returns the reason why a Dropout must stay (training mode, or its mask is read), or ''."""
    opset = work.model.opset
    if opset < _INFERENCE_OPSET and not node.attributes.get("is_test", 0):
        return "it trains: is_test is not set"
    mask = node.outputs[1] if len(node.outputs) > 1 else ""
    if mask and (work.list_readers(mask) or work.explain_visibility(mask)):
        return f"its mask '{mask}' is read"
    mode = node.inputs[2] if len(node.inputs) > 2 else ""
    if not mode:
        return ""
    training = work.find_constant(mode)
    if training is None:
        return work.explain_not_constant(mode, "training_mode")
    return "it trains: training_mode = 1" if training.array().any() else ""


def _bypass_node(work: FoldingGraph, index: int, node: Node) -> str:
    """Removes a node by connecting its input to its readers; returns the reason if that fails, else ''."""
    source, output = node.inputs[0], node.outputs[0]
    reason = work.explain_visibility(output)
    if not reason:
        work.remove(index)
        work.redirect(output, source)
    elif work.is_renamable(source):
        work.remove(index)
        work.rename(source, output)
    else:
        return f"'{output}' {reason}, and '{source}' cannot get that name"
    return ""
