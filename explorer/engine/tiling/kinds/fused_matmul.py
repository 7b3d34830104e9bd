"""FusedMatMul, onnxruntime's MatMul with turns and a factor, of matrices."""

from __future__ import annotations

from msgspec.structs import replace

from explorer.engine.graph.model import Node
from explorer.engine.tiling.kinds.linear import product
from explorer.engine.tiling.sites import Kinds, Site, SiteContext, Untiled

__all__ = ["KINDS"]


def _fused(node: Node, context: SiteContext) -> Site:
    if any(len(context.shape(name)) != 2 for name in node.inputs):
        raise Untiled("a stack of fused products: left as it was")
    gemm = Node("Gemm", node.inputs, node.outputs, name=node.name, attributes=node.attributes)
    return replace(product(gemm, context), node=node)


KINDS: Kinds = {("com.microsoft", "FusedMatMul"): _fused}
