"""Operators as products, for the proof: index arithmetic written apart from the code that tiles.

A meaning says which elements of which inputs are multiplied in every term of the output. The walk compares
it, symbol by symbol, with the tiled graph, and the float64 reference is computed from the same description.
Each module here lists its operators in MEANINGS; no two modules name the same operator.
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
"""(domain, operator) to its meaning; a meaning raises NotTiled for a node that is no product."""
