"""Columns of a split in the layer tree: the stage of a row, and the bytes transferred by a cut before it.

The stage column shows the stage of the row's operators: '2', or '1-3' for a group in several stages. The
positions of the layers do not depend on the cuts, so moving a cut changes only `StageRows.places`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from math import nan
from typing import TYPE_CHECKING

from msgspec import Struct

from explorer.tui.text.lines import fit

if TYPE_CHECKING:
    from explorer.facts.split.draft import CutPlaces
    from explorer.settings.columns import LayerColumn

STAGE, CROSSING = "stage", "crossing"
"""Names of the columns."""


class StageRows(Struct):
    """Positions of the layers in a split, by layer ID.

    A unit is one operator of the model, which no cut divides. Units are counted in the order of the file.

    Attributes:
        first_units, last_units: First and last unit of each layer; -1 for a layer without units.
        crossing: Bytes that a cut before the first unit of each layer transfers. The last entry, NaN,
            belongs to the whole model.
        places: Units before which there is a cut, in ascending order.
        selected_cut: Index in `places` of the cut that keys move; -1 for none.
    """

    first_units: Sequence[int]
    last_units: Sequence[int]
    crossing: Sequence[float]
    places: Sequence[int] = ()
    selected_cut: int = -1

    @classmethod
    def build(cls, where: CutPlaces, parent: Sequence[int]) -> StageRows:
        """Return the positions of the layers.

        Args:
            where: Possible cuts, with the layer of each unit.
            parent: Parent of each layer; -1 for a layer at the top.
        """
        count = len(parent)
        first, last = array("i", [-1]) * count, array("i", [-1]) * count
        for unit, layer in enumerate(where.layers):
            while layer >= 0:  # the groups around a layer contain its units too
                if first[layer] < 0:
                    first[layer] = unit
                last[layer] = unit
                layer = parent[layer]
        crossing = array("d", (where.crossing[first_unit] if first_unit > 0 else nan for first_unit in first))
        crossing.append(nan)
        return cls(first, last, crossing)

    def find_stage(self, unit: int) -> int:
        """Return the stage of a unit, counted from 0."""
        return bisect_right(self.places, unit)

    def find_stage_range(self, layers: Iterable[int]) -> tuple[int, int] | None:
        """Return the first and the last stage of some layers, counted from 0; None without operators."""
        filled_layers = [layer for layer in layers if self.first_units[layer] >= 0]
        if not filled_layers:
            return None
        first_unit = min(self.first_units[layer] for layer in filled_layers)
        last_unit = max(self.last_units[layer] for layer in filled_layers)
        return self.find_stage(first_unit), self.find_stage(last_unit)

    def is_stage_start(self, layer: int) -> bool:
        """Whether there is a cut directly before a layer."""
        return self.first_units[layer] in self.places

    def format_cell(self, layers: Iterable[int], first_layer: int) -> tuple[str, str, None]:
        """Return the text and the role of a cell of the stage column. It has no figure, so the third is None.

        Args:
            layers: Layers that the row contains.
            first_layer: First of these layers.
        """
        stage_range = self.find_stage_range(layers)
        if stage_range is None:
            return "", "dim", None
        first_stage, last_stage = stage_range
        text = f"{first_stage + 1}" if first_stage == last_stage else f"{first_stage + 1}-{last_stage + 1}"
        if not self.is_stage_start(first_layer):
            role = "dim" if first_stage % 2 else "text"  # neighboring stages differ in brightness
            return f"  {text}", role, None
        is_selected = (
            self.selected_cut >= 0 and self.places[self.selected_cut] == self.first_units[first_layer]
        )
        return fit(f"┌ {text}", 5), "mark" if is_selected else "accent", None

    def list_first_stages(self) -> Sequence[float]:
        """Return the first stage of each layer, by which the column is sorted; NaN without operators.

        The last entry, NaN, belongs to the whole model.
        """
        return array("d", [*(self.find_stage(unit) if unit >= 0 else nan for unit in self.first_units), nan])


def stage_columns() -> dict[str, LayerColumn]:
    """Return the columns of a split by name."""
    from explorer.settings.columns import LayerColumn, Unit  # imported on demand, as in `rows.list_columns`

    def build_column(name: str, head: str, unit: Unit, about: str) -> LayerColumn:
        # the tree shows the values of `StageRows`: a layer itself has none
        no_value: Callable[..., None] = lambda layer, figures: None  # noqa: E731 (one signature for all columns)
        return LayerColumn(name, head, unit, no_value, about, stored=True, blank=True, aggregate="min")

    return {
        STAGE: build_column(STAGE, "stage", "text", "stage of the split; 1-3 for a group in several stages"),
        CROSSING: build_column(
            CROSSING, "over a cut", "bytes", "bytes that a cut of the split before the row transfers"
        ),
    }
