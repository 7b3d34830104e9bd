"""History records of folds and edits."""

from __future__ import annotations

from typing import ClassVar

from explorer.facts.change import ChangeRecord
from explorer.facts.split.fold import FoldKind


class FoldRecord(ChangeRecord, frozen=True):
    """Record of a state that was made by folding.

    Attributes:
        fold: Kind of fold.
    """

    ending: ClassVar[str] = "_folded"

    fold: FoldKind


class EditRecord(ChangeRecord, frozen=True):
    """Record of a state that was made by edits.

    Attributes:
        words: Options of `explorer edit` that make the same edits.
    """

    ending: ClassVar[str] = "_edited"

    words: tuple[str, ...]
