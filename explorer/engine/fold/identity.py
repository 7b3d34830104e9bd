"""Identity, and Dropout in inference: readers of the output read the input instead."""

from __future__ import annotations

from explorer.engine.fold.rewriting import FoldingGraph
from explorer.engine.graph.model import Node

_SIMPLE = 7
"""The operator set from which Dropout passes its input on by default."""


def fold(work: FoldingGraph) -> None:
    """Removes every Identity, and every Dropout that cannot train."""
    for at, node in work.candidates("Identity", "Dropout"):
        reason = _reason_to_keep(work, node) if node.op == "Dropout" else ""
        reason = reason or _bypass(work, at, node)
        if reason:
            work.stay(node, reason)


def _reason_to_keep(work: FoldingGraph, node: Node) -> str:
    """Why a Dropout must stay: it may drop, or its mask is read; '' if it does nothing."""
    opset = work.model.opset
    if opset < _SIMPLE and not node.attributes.get("is_test", 0):
        return "it trains: is_test is not set"
    mask = node.outputs[1] if len(node.outputs) > 1 else ""
    if mask and (work.read_by(mask) or work.why_seen(mask)):
        return f"its mask '{mask}' is read"
    mode = node.inputs[2] if len(node.inputs) > 2 else ""
    if not mode:
        return ""
    training = work.constant(mode)
    if training is None:
        return work.why_not_constant(mode, "training_mode")
    return "it trains: training_mode = 1" if training.array().any() else ""


def _bypass(work: FoldingGraph, at: int, node: Node) -> str:
    """Removes a node by joining its output with its input; returns why not if that fails, else ''."""
    source, output = node.inputs[0], node.outputs[0]
    reason = work.why_seen(output)
    if not reason:
        work.remove(at)
        work.redirect(output, source)
    elif work.renamable(source):
        work.remove(at)
        work.rename(source, output)
    else:
        return f"'{output}' {reason}, and '{source}' cannot be called so"
    return ""
