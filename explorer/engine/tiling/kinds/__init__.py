"""Kinds of matmul: the product that each operator computes; one module per family, one function per operator.

A kind turns a node into a product in normal form, or says why the node cannot be tiled. Each module lists its
kinds in KINDS; no two modules list the same operator.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from explorer.engine.tiling.sites import Kinds

KINDS: Kinds = {
    key: kind
    for module in iter_modules(__path__)
    for key, kind in getattr(import_module(f"{__name__}.{module.name}"), "KINDS", {}).items()
}
"""(domain, operator) to its kind."""
