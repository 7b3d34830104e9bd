"""Stages of a split as columns of the layer tree: in which stage a row lies, and what a cut before it costs.

A row has the stages of the operators that are in it: '2', or '1-3' of a group over several. The figures lie
in arrays, one entry a row, so that moving a cut changes nothing but the places.
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
    """Where the rows of a tree lie in a split.

    Attributes:
        first, last: Of each row the first and the last unit in it; -1 for none.
        crossing: Of each row the bytes that a cut before its first unit hands on; behind them the model's.
        places: Units before which a cut lies, ascending.
        chosen: Which of them keys move; -1 for none.
    """

    first: Sequence[int]
    last: Sequence[int]
    crossing: Sequence[float]
    places: Sequence[int] = ()
    chosen: int = -1

    @classmethod
    def of(cls, where: CutPlaces, parent: Sequence[int]) -> StageRows:
        """The rows of a tree, by the row that each lies in."""
        count = len(parent)
        first, last = array("i", [-1]) * count, array("i", [-1]) * count
        for unit, row in enumerate(where.layers):
            while row >= 0:
                if first[row] < 0:
                    first[row] = unit
                last[row] = unit
                row = parent[row]
        crossing = array("d", (where.crossing[at] if at > 0 else nan for at in first))
        crossing.append(nan)
        return cls(first, last, crossing)

    def stage_of(self, unit: int) -> int:
        """The stage of a unit, from 0."""
        return bisect_right(self.places, unit)

    def stages(self, rows: Iterable[int]) -> tuple[int, int] | None:
        """First and last stage of rows, from 0; None where no operator is in them."""
        there = [at for at in rows if self.first[at] >= 0]
        if not there:
            return None
        return self.stage_of(min(self.first[at] for at in there)), self.stage_of(
            max(self.last[at] for at in there)
        )

    def starts(self, row: int) -> bool:
        """Whether a stage begins with a row."""
        return self.first[row] in self.places

    def cell(self, rows: Iterable[int], row: int) -> tuple[str, str, None]:
        """What the stage column has for rows that begin with `row`, and its role."""
        span = self.stages(rows)
        if span is None:
            return "", "dim", None
        begin, end = span
        name = f"{begin + 1}" if begin == end else f"{begin + 1}-{end + 1}"
        if not self.starts(row):
            return f"  {name}", "dim" if begin % 2 else "text", None
        here = self.chosen >= 0 and self.places[self.chosen] == self.first[row]
        return fit(f"┌ {name}", 5), "mark" if here else "accent", None

    def numbers(self) -> Sequence[float]:
        """The first stage of each row, to sort by; behind them the model's."""
        return array("d", [*(self.stage_of(at) if at >= 0 else nan for at in self.first), nan])


def stage_columns() -> dict[str, LayerColumn]:
    """The columns of a split, by name."""
    from explorer.settings.columns import LayerColumn, Unit  # with the facts, see `rows.columns_of`

    def column(name: str, head: str, unit: Unit, about: str) -> LayerColumn:
        nothing: Callable[..., None] = lambda layer, beside: None  # noqa: E731 (a column's own signature)
        return LayerColumn(name, head, unit, nothing, about, stored=True, blank=True, over="min")

    return {
        STAGE: column(STAGE, "stage", "text", "of the split: which stage; of a group over several 1-3"),
        CROSSING: column(CROSSING, "over a cut", "bytes", "of the split: handed on by a cut before it"),
    }
