"""Operators that multiply and accumulate, and are not tiled: what the reason calls each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from explorer.engine.graph.model import Node
from explorer.engine.tiling.sites import SiteContext

__all__ = ["KINDS", "NOT_MATRIX"]

NOT_MATRIX: Mapping[str, str] = {
    "DeformConv": "a deformable convolution",
    "MatMulIntegerToFloat": "a product of integers with computed scales",
    "DynamicQuantizeMatMul": "a product that quantises its input as it goes",
    "QLinearConvTranspose": "a quantized transposed convolution",
    "QAttention": "a quantized attention",
    "FusedConv": "a convolution fused with its activation",
    "NhwcFusedConv": "a convolution fused with its activation",
    "Attention": "a fused attention",
    "LSTM": "a recurrent layer",
    "GRU": "a recurrent layer",
    "RNN": "a recurrent layer",
}


def _left(what: str) -> Callable[[Node, SiteContext], str]:
    return lambda node, context: f"{what}: left as it was"


KINDS: Mapping[tuple[str, str], Callable[[Node, SiteContext], str]] = {
    (domain, op): _left(what) for op, what in NOT_MATRIX.items() for domain in ("", "com.microsoft")
}
