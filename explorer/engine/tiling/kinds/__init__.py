"""Kinds of matmul: one function for each operator, one module for each family of operators.

A kind turns a node into a product in normal form (a `Site`), or raises `NoSite` with the reason why the node
cannot be tiled. Each module lists its kinds in KINDS. No two modules list the same operator.
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
"""The kind of each operator, by (domain, operator)."""
