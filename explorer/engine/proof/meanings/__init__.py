"""What each operator means as a product: index arithmetic of its own, apart from the code that tiles it.

A meaning says which element of which input meets which in every term of the output. The walk compares it with
what the tiled graph does, symbol by symbol, and the float64 reference is computed from the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from explorer.engine.graph.model import Node
from explorer.engine.proof.meanings import conv, einsum, integer, linear, packed
from explorer.engine.proof.meanings.meaning import Look, Meaning, Original, Rows

__all__ = ["MEANINGS", "Look", "Meaning", "Original", "Rows"]

MEANINGS: Mapping[tuple[str, str], Callable[[Node, Look], Original]] = {
    **linear.MEANINGS,
    **conv.MEANINGS,
    **einsum.MEANINGS,
    **integer.MEANINGS,
    **packed.MEANINGS,
}
"""(domain, operator) to what it means; raises NotTiled for a node that is no product."""
