"""The cuts of a split: where they lie, and where a key moves them."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from msgspec import Struct, ValidationError, convert

from explorer.features.split.split_dialog import SplitRequest
from explorer.process.saved_sessions import SavedSplit
from explorer.tui.tree.stages import StageRows

if TYPE_CHECKING:
    from explorer.facts import Layer
    from explorer.facts.split.draft import CutPlaces, SplitDraft
    from explorer.tui.tree.model import TreeShape


class SplitState(Struct):
    """The split of one state of the history, as it was left.

    Attributes:
        draft: What was told last.
        where: Where cuts may lie.
        rows: Of the tree, with the places of the cuts.
        layers: Where the tree of the model has others.
        moved: Whether cuts lie elsewhere than where they were found.
        shape: How the tree was left.
        folder: Where the stages were written last.
        written: The cuts and the form of what lies there; None where nothing was written.
        resumes: Where cuts lay in the session that is resumed.
    """

    request: SplitRequest = SplitRequest()
    draft: SplitDraft | None = None
    where: CutPlaces | None = None
    rows: StageRows | None = None
    layers: tuple[Layer, ...] | None = None
    moved: bool = False
    shape: TreeShape | None = None
    folder: str = ""
    written: tuple[tuple[int, ...], str] | None = None
    resumes: tuple[int, ...] = ()

    @property
    def places(self) -> tuple[int, ...]:
        """Where the cuts lie now, though their figures are on their way."""
        return self.resumes if self.rows is None else tuple(self.rows.places)

    @classmethod
    def resumed(cls, saved: SavedSplit) -> SplitState:
        """As a session left it; a request that this program cannot read is the usual one."""
        try:
            request = convert(list(saved.request), SplitRequest)
        except ValidationError:
            return cls()
        return cls(request, moved=bool(saved.places), resumes=saved.places)

    def saved(self, state: int) -> SavedSplit:
        """What a session keeps of it; `state` is its place in the history."""
        return SavedSplit(state, tuple(self.request), self.places if self.moved else ())

    @property
    def cut_names(self) -> str:
        """Layers that the stages begin with, where cuts were moved."""
        return ",".join(one.before for one in self.draft.split.cuts) if self.draft and self.moved else ""

    def next_cut(self, unit: int, step: int) -> int:
        """Which cut follows the one at the cursor's unit, or comes before it; a unit of no stage is -1."""
        assert self.rows is not None
        places, chosen = self.rows.places, self.rows.chosen
        if unit in places:
            chosen = places.index(unit) + step
        elif unit >= 0:
            chosen = self.rows.stage_of(unit) - (step < 0)
        return chosen % len(places)

    def moved_by(self, step: int) -> list[int] | None:
        """The cuts with the chosen one some layers on, up to those beside it; None: it can go no further."""
        assert self.rows is not None
        assert self.where is not None
        named, places, chosen = self.where.named, list(self.rows.places), self.rows.chosen
        least = places[chosen - 1] + 1 if chosen else 1
        most = places[chosen + 1] - 1 if chosen + 1 < len(places) else len(self.where.layers) - 1
        at = bisect_left(named, places[chosen])
        at += step - (step > 0 and (at == len(named) or named[at] != places[chosen]))
        low, high = bisect_left(named, least), bisect_left(named, most + 1) - 1
        if low > high or named[max(low, min(high, at))] == places[chosen]:
            return None
        places[chosen] = named[max(low, min(high, at))]
        return places
