"""Specifies operators as products for the proof, independently of the code that tiles.

The meaning of an operator determines which elements of its inputs are multiplied in every term of the output.
The structural walk compares it with the tiled graph, and the float64 reference is computed from it. Some of
the modules here list operators in MEANINGS; no operator is in two of these lists.
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
"""Meanings by (domain, operator). A meaning raises NotTiled for a node that is not a product."""
