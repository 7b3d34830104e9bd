"""FusedMatMul: alpha A B, either of them turned."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from explorer.engine.graph.model import Node
from explorer.engine.proof.meanings import linear
from explorer.engine.proof.meanings.product_spec import Meaning, NodeReader, Original

__all__ = ["MEANINGS"]


def _fused(node: Node, look: NodeReader) -> Original:
    gemm = Node("Gemm", node.inputs, node.outputs, name=node.name, attributes=node.attributes)
    return replace(linear.product(gemm, look), node=node)


MEANINGS: Mapping[tuple[str, str], Meaning] = {("com.microsoft", "FusedMatMul"): _fused}
