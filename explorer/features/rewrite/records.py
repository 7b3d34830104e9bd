"""Records that folds and edits leave in the history."""

from __future__ import annotations

from typing import ClassVar

from explorer.facts.change import ChangeRecord
from explorer.facts.split.fold import FoldKind


class FoldRecord(ChangeRecord, frozen=True):
    """A state made by folding.

    Attributes:
        fold: The kind of rewrite.
    """

    ending: ClassVar[str] = "_folded"

    fold: FoldKind


class EditRecord(ChangeRecord, frozen=True):
    """A state made by edits.

    Attributes:
        words: The options of `explorer edit` that make the same edits.
    """

    ending: ClassVar[str] = "_edited"

    words: tuple[str, ...]
