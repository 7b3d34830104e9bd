"""History record of a tiling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from explorer.base.units import exact_text
from explorer.facts import Plan, TileSpec
from explorer.facts.change import ChangeRecord


class TilingRecord(ChangeRecord, frozen=True):
    """Record of a tiling: its spec and its plan.

    Attributes:
        spec: Settings of the tiling, or None in a state that an older program version saved without it.
        plan: Plan with the tiled matmuls.
    """

    ending: ClassVar[str] = "_tiled"

    spec: TileSpec | None = None
    plan: Plan | None = None

    @property
    def products(self) -> int | None:
        """Number of tile matmuls of the plan, or None without a plan."""
        return None if self.plan is None else self.plan.products

    @property
    def products_text(self) -> str:
        """Number of tile matmuls of the plan as text, or '' without a plan."""
        return "" if self.plan is None else f"{self.plan.sign}{exact_text(self.plan.products)}"

    @property
    def sizes(self) -> Mapping[str, int] | None:
        """Sizes of open dimensions for which the plan's figures are counted, by name."""
        return None if self.plan is None else self.plan.dims
