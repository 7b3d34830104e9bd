"""What each operator multiplies: one module a family, one function an operator.

A kind looks at a node and gives the product that it is in normal form, or says in words why it cannot be
tiled; '' means that there is nothing to say of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from explorer.engine.graph.model import Node
from explorer.engine.tiling.kinds import conv, dequantized, einsum, integer, linear, packed, untiled
from explorer.engine.tiling.sites import Site, SiteContext

__all__ = ["KINDS", "Kind"]

Kind = Callable[[Node, SiteContext], Site | str]

KINDS: Mapping[tuple[str, str], Kind] = {
    **untiled.KINDS,
    **linear.KINDS,
    **conv.KINDS,
    **einsum.KINDS,
    **integer.KINDS,
    **dequantized.KINDS,
    **packed.KINDS,
}
"""(domain, operator) to its kind."""
