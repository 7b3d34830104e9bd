"""Facts about a split that is not written yet: its cuts move, and its figures follow."""

from __future__ import annotations

from msgspec import Struct

from explorer.facts import Layer
from explorer.facts.split.split import Split


class CutPlaces(Struct, frozen=True):
    """Where a model may be cut: between units, which are its operators in the order of the file.

    Attributes:
        layers: Of each unit the id of its row in the layer tree; -1 for none.
        crossing: Bytes live before each unit, which a cut there would hand on.
        named: Units before which a cut may lie that is given by the name of its layer, ascending.
    """

    layers: tuple[int, ...]
    crossing: tuple[int, ...]
    named: tuple[int, ...]


class SplitDraft(Struct, frozen=True):
    """Stages between cuts that may still move.

    Attributes:
        split: What they are.
        places: Number of units before each cut, ascending.
        where: Where cuts may lie; None where it was told before.
        rows: The layers of the graph that is cut, where the model is a module and its tree has others.
    """

    split: Split
    places: tuple[int, ...]
    where: CutPlaces | None = None
    rows: tuple[Layer, ...] | None = None
