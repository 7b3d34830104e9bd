"""Kinds of matmul: what each operator multiplies: one module a family, one function an operator.

A kind looks at a node and gives the product that it is in normal form, or says why it cannot be tiled. It is
found by the KINDS of a module here; no two modules name one operator.
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
