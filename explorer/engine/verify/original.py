"""The product as the original graph has it, found again without help from the code that tiled it."""

from __future__ import annotations

from explorer.engine.graph import Model
from explorer.engine.verify.meanings import MEANINGS, Look, Original

__all__ = ["find_original"]


def find_original(model: Model, output: str) -> Original | None:
    """The operator of the original that makes `output`, and what it multiplies.

    Returns:
        None if `output` is not made by a product.

    Raises:
        NotTiled: It is, but not one of its operands comes from the data.
    """
    node = next((n for n in model.graph.nodes if output in n.outputs), None)
    mean = MEANINGS.get((node.domain, node.op)) if node is not None else None
    return mean(node, Look(model)) if node is not None and mean is not None else None
