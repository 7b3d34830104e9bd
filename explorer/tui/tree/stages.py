"""Columns of a split in the layer tree: the stage of a row, and the bytes transferred by a cut before it.

A row has the stages of its operators: '2', or '1-3' for a group in several stages. The figures are in arrays
with one entry per layer, so that moving a cut changes only `places`.
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
    """Positions of the layers in a split.

    Attributes:
        first, last: First and last unit of each layer; -1 without units. A unit is an indivisible operator.
        crossing: Bytes that a cut before the first unit of each layer transfers, then NaN for the whole
            model.
        places: Units before which there is a cut, in ascending order.
        chosen: Index in `places` of the cut that keys move; -1 for none.
    """

    first: Sequence[int]
    last: Sequence[int]
    crossing: Sequence[float]
    places: Sequence[int] = ()
    chosen: int = -1

    @classmethod
    def of(cls, where: CutPlaces, parent: Sequence[int]) -> StageRows:
        """Build the positions from the possible cuts and the parent of each layer."""
        count = len(parent)
        first, last = array("i", [-1]) * count, array("i", [-1]) * count
        for unit, row in enumerate(where.layers):
            while row >= 0:
                if first[row] < 0:
                    first[row] = unit
                last[row] = unit
                row = parent[row]
        crossing = array("d", (where.crossing[first_unit] if first_unit > 0 else nan for first_unit in first))
        crossing.append(nan)
        return cls(first, last, crossing)

    def stage_of(self, unit: int) -> int:
        """Return the stage of a unit, counted from 0."""
        return bisect_right(self.places, unit)

    def stages(self, rows: Iterable[int]) -> tuple[int, int] | None:
        """Return the first and the last stage of some layers, counted from 0; None without operators."""
        layers = [layer for layer in rows if self.first[layer] >= 0]
        if not layers:
            return None
        return self.stage_of(min(self.first[layer] for layer in layers)), self.stage_of(
            max(self.last[layer] for layer in layers)
        )

    def starts(self, row: int) -> bool:
        """Whether a stage starts with a layer."""
        return self.first[row] in self.places

    def cell(self, rows: Iterable[int], row: int) -> tuple[str, str, None]:
        """Return the text and the role of the stage column for the layers of a row that starts with `row`."""
        span = self.stages(rows)
        if span is None:
            return "", "dim", None
        begin, end = span
        name = f"{begin + 1}" if begin == end else f"{begin + 1}-{end + 1}"
        if not self.starts(row):
            return f"  {name}", "dim" if begin % 2 else "text", None
        is_chosen = self.chosen >= 0 and self.places[self.chosen] == self.first[row]
        return fit(f"┌ {name}", 5), "mark" if is_chosen else "accent", None

    def numbers(self) -> Sequence[float]:
        """Return the first stage of each layer for sorting, then NaN for the whole model."""
        return array("d", [*(self.stage_of(unit) if unit >= 0 else nan for unit in self.first), nan])


def stage_columns() -> dict[str, LayerColumn]:
    """Return the columns of a split by name."""
    from explorer.settings.columns import LayerColumn, Unit  # imported late, as in `rows.columns_of`

    def column(name: str, head: str, unit: Unit, about: str) -> LayerColumn:
        nothing: Callable[..., None] = lambda layer, beside: None  # noqa: E731 (a column's own signature)
        return LayerColumn(name, head, unit, nothing, about, stored=True, blank=True, over="min")

    return {
        STAGE: column(STAGE, "stage", "text", "of the split: which stage; of a group over several 1-3"),
        CROSSING: column(
            CROSSING, "over a cut", "bytes", "of the split: bytes that cross a cut before the row"
        ),
    }
