"""Operators as products, for the proof: index arithmetic of its own, apart from the code that tiles it.

A meaning says which element of which input meets which in every term of the output. The walk compares it with
what the tiled graph does, symbol by symbol, and the float64 reference is computed from the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from explorer.engine.graph.model import Node
from explorer.engine.proof.meanings import conv, einsum, integer, linear, packed
from explorer.engine.proof.meanings.product_spec import NodeReader, Original, ProductSpec, Rows

__all__ = ["MEANINGS", "NodeReader", "ProductSpec", "Original", "Rows"]

MEANINGS: Mapping[tuple[str, str], Callable[[Node, NodeReader], Original]] = {
    **linear.MEANINGS,
    **conv.MEANINGS,
    **einsum.MEANINGS,
    **integer.MEANINGS,
    **packed.MEANINGS,
}
"""(domain, operator) to what it means; raises NotTiled for a node that is no product."""
