"""Facts about a split before it is written: each move of a cut changes its figures."""

from __future__ import annotations

from explorer.base.fact import Fact
from explorer.facts import Layer
from explorer.facts.split.split import Split


class CutPlaces(Fact, frozen=True):
    """Positions where a model can be cut.

    A cut lies between two units. A unit is an operator, in the order of the file.

    Attributes:
        layers: Id of the row of each unit in the layer tree, or -1 if the unit has no row.
        crossing: Bytes of the live tensors before each unit. A cut there transfers that many bytes.
        named: Indices of the units that a cut can name by their layer, ascending.
    """

    layers: tuple[int, ...]
    crossing: tuple[int, ...]
    named: tuple[int, ...]


class SplitDraft(Fact, frozen=True):
    """Stages of a model between cuts that the user may still move.

    Attributes:
        split: Figures of the stages at the current cuts.
        places: Number of units before each cut, ascending.
        where: Positions where cuts can lie, or None if an earlier answer already gave them.
        rows: Rows of the graph that is cut, or None if they are the rows of the session. A module is cut as
            its exported graph, which has rows of its own.
    """

    split: Split
    places: tuple[int, ...]
    where: CutPlaces | None = None
    rows: tuple[Layer, ...] | None = None
