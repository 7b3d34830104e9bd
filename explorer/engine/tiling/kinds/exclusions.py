"""Operators that multiply and accumulate but are not tiled, with the reason.

Recurrent layers are here for those that cannot be decomposed.
"""

from __future__ import annotations

from collections.abc import Mapping

from explorer.engine.graph.model import Node
from explorer.engine.tiling.sites import Kinds, Site, SiteContext, UntiledProduct

NOT_MATRIX: Mapping[str, str] = {
    "DeformConv": "a deformable convolution",
    "MatMulIntegerToFloat": "a product of integers with computed scales",
    "DynamicQuantizeMatMul": "a product that quantizes its input at run time",
    "QLinearConvTranspose": "a quantized transposed convolution",
    "QAttention": "a quantized attention",
    "FusedConv": "a convolution fused with its activation",
    "NhwcFusedConv": "a convolution fused with its activation",
    "Attention": "a fused attention",
    "LSTM": "a recurrent layer",
    "GRU": "a recurrent layer",
    "RNN": "a recurrent layer",
}


def _refuse(node: Node, context: SiteContext) -> Site:
    raise UntiledProduct(NOT_MATRIX[node.op])


KINDS: Kinds = {(domain, op): _refuse for op in NOT_MATRIX for domain in ("", "com.microsoft")}
