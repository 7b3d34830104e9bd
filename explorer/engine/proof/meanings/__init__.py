"""Operators as products, for the proof: index arithmetic of its own, apart from the code that tiles it.

A meaning says which element of which input meets which in every term of the output. The walk compares it with
what the tiled graph does, symbol by symbol, and the float64 reference is computed from the same words. It is
found by the MEANINGS of a module here; no two modules name one operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from explorer.engine.proof.meanings.product_spec import Meaning, NodeReader, Original, ProductSpec, Rows

__all__ = ["MEANINGS", "NodeReader", "ProductSpec", "Original", "Rows"]

MEANINGS: Mapping[tuple[str, str], Meaning] = {
    key: meaning
    for module in iter_modules(__path__)
    for key, meaning in getattr(import_module(f"{__name__}.{module.name}"), "MEANINGS", {}).items()
}
"""(domain, operator) to what it means; raises NotTiled for a node that is no product."""
