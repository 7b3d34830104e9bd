"""Original product of a site: found again without help from the code that tiled it."""

from __future__ import annotations

from explorer.engine.graph.interpreter import Wiring
from explorer.engine.graph.model import Model
from explorer.engine.proof.meanings import MEANINGS, NodeReader, Original
from explorer.facts import SitePlan


def find_original(
    model: Model, output: str, planned: SitePlan | None = None, wiring: Wiring | None = None
) -> Original | None:
    """The operator of the original that makes `output`, and what it multiplies.

    Args:
        model: The original.
        output: Value name.
        planned: What the plan says of it.
        wiring: Of the original, if it is known.

    Returns:
        None if `output` is not made by a product.

    Raises:
        NotTiled: It is, but not one of its operands comes from the data.
    """
    wiring = wiring or Wiring.of(model.graph)
    node = wiring.maker(output)
    mean = MEANINGS.get((node.domain, node.op)) if node is not None else None
    return mean(node, NodeReader(model, planned, wiring)) if node is not None and mean is not None else None
