"""Record of a tiling in the history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from explorer.base.units import exact_text
from explorer.facts import Plan, TileSpec
from explorer.facts.change import ChangeRecord


class TilingRecord(ChangeRecord, frozen=True):
    """The spec of a tiling and its plan.

    Attributes:
        spec: The spec; None in a state saved by a program version that did not keep it.
        plan: The tiled matmuls.
    """

    ending: ClassVar[str] = "_tiled"

    spec: TileSpec | None = None
    plan: Plan | None = None

    @property
    def products(self) -> int | None:
        """Tile matmuls of the plan."""
        return None if self.plan is None else self.plan.products

    @property
    def products_text(self) -> str:
        """Tile matmuls of the plan as text, '' without a plan."""
        return "" if self.plan is None else f"{self.plan.sign}{exact_text(self.plan.products)}"

    @property
    def sizes(self) -> Mapping[str, int] | None:
        """The sizes at which the plan's figures are counted."""
        return None if self.plan is None else self.plan.dims
