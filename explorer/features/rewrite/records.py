"""Records of rewrites in the history."""

from __future__ import annotations

from typing import ClassVar

from explorer.facts.change import ChangeRecord
from explorer.facts.split.fold import FoldKind


class FoldRecord(ChangeRecord, frozen=True):
    """Which kind of rewrites made a state.

    Attributes:
        fold: The kind.
    """

    ending: ClassVar[str] = "_folded"

    fold: FoldKind


class EditRecord(ChangeRecord, frozen=True):
    """Which edits made a state.

    Attributes:
        words: The options of `explorer edit` that make them.
    """

    ending: ClassVar[str] = "_edited"

    words: tuple[str, ...]
