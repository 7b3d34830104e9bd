"""Fusion: what a fused operator does behind its product, as elementwise operations."""

from __future__ import annotations

from explorer.engine.costs.onnx_rules.call import Call
from explorer.engine.operators import formulas
from explorer.engine.operators.formulas import ELEMENTWISE, Cost

__all__ = ["activated", "requantized"]

_QUANTIZE = ELEMENTWISE["quantize"][0]


def requantized(cost: Cost, call: Call) -> Cost:
    """`cost`, and the result made 8 bits wide again."""
    return formulas.adding(cost, "requantize", call.output(), _QUANTIZE)


def activated(cost: Cost, call: Call) -> Cost:
    """`cost`, and the activation that the node names."""
    name = call.attributes.get("activation", "")
    return formulas.adding(cost, str(name), call.output()) if name and name != "none" else cost
