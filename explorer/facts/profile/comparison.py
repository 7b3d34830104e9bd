"""Facts about two models that were timed in turn: which layers changed, and whether by more than noise."""

from __future__ import annotations

from msgspec import Struct

from explorer.facts.profile.profile import Profile, Spread


class LayerChange(Struct, frozen=True):
    """A row of both models, or of one, with the time of all that runs for it.

    Attributes:
        path: Of the row before, or after where there was none.
        before_path, after_path: '' where it has no counterpart.
        status: As in the two trees side by side: 'same', 'tiled', 'quantized', 'added', 'removed', ...
        before, after: Seconds of one run, with all that is in the row; None where nothing of it runs.
        difference: After without before; what does not run takes none.
        significant: Whether the 95 % intervals of the medians do not meet; where one is of too few runs: True
            where the ranks of the runs are as equal times have them by chance in 1 of 20, else None.
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


class ProfileComparison(Struct, frozen=True):
    """Two models, timed in turn.

    Attributes:
        before, after: What each took.
        names: What the user calls them.
        layers: Rows that were matched, in their order.
        difference: Of the wall times' medians; `significant` as of a layer.
        notes: What else to know, in words.
    """

    names: tuple[str, str]
    difference: float
    significant: bool | None
    layers: tuple[LayerChange, ...]
    before: Profile
    after: Profile
    notes: tuple[str, ...] = ()


def significance(before: Spread | None, after: Spread | None) -> bool | None:
    """Whether two medians differ by more than noise: their 95 % intervals do not meet.

    What does not run takes no time, and surely so.
    """
    there = [spread for spread in (before, after) if spread is not None]
    if not there or not all(spread.sure for spread in there):
        return None
    if before is None or after is None:
        return there[0].low > 0
    return before.high < after.low or after.high < before.low
