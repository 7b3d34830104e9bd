"""Facts about two models that were timed in turn: the changes in time by layer, and their significance."""

from __future__ import annotations

from typing import ClassVar

from explorer.base.fact import Fact, TableFact
from explorer.facts.profile.profile import Profile, Spread


class LayerChange(Fact, frozen=True):
    """A row of one or both models, with the time of the layers in it.

    Attributes:
        path: Path of the row in the first model, or in the second if the first has no such row.
        before_path: Path in the first model, or '' if the row has no counterpart there.
        after_path: Path in the second model, or '' if the row has no counterpart there.
        status: Status of the row, as in the tree comparison: 'same', 'tiled', 'quantized', 'added',
            'removed', ...
        before: Seconds that the layers of the row take in one run of the first model, or None if no layer
            runs.
        after: Seconds that the layers of the row take in one run of the second model, or None if no layer
            runs.
        difference: Seconds after minus seconds before. A row that does not run takes 0 s.
        significant: Whether the 95 % intervals of the medians do not overlap. With too few runs for an
            interval, True if a rank test gives equal times a probability of at most 1 in 20, otherwise None.
    """

    path: str
    before_path: str
    after_path: str
    kind: str
    status: str
    before: Spread | None
    after: Spread | None
    difference: float
    significant: bool | None


class ProfileComparison(TableFact, frozen=True):
    """Comparison of two models that were timed in turn.

    Attributes:
        before: Profile of the first model.
        after: Profile of the second model.
        names: Names of the two models, as the user calls them.
        layers: Matched rows, in the order of the tree.
        difference: Difference of the median wall times in seconds, after minus before.
        significant: Whether the difference exceeds the noise, as in `LayerChange`.
        notes: Further remarks, in words.
    """

    ROWS: ClassVar[str] = "layers"

    names: tuple[str, str]
    difference: float
    significant: bool | None
    layers: tuple[LayerChange, ...]
    before: Profile
    after: Profile
    notes: tuple[str, ...] = ()


def is_significant(before: Spread | None, after: Spread | None) -> bool | None:
    """Whether two medians differ by more than noise, that is, whether their 95 % intervals do not overlap.

    A row that does not run takes exactly 0 s. Returns None if a spread has too few samples for an interval,
    or if neither row runs.
    """
    spreads = [spread for spread in (before, after) if spread is not None]
    if not spreads or not all(spread.sure for spread in spreads):
        return None
    if before is None or after is None:
        return spreads[0].low > 0
    return before.high < after.low or after.high < before.low
