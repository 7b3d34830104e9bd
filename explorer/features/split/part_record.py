"""Record of an extracted part in the history."""

from __future__ import annotations

from typing import ClassVar

from explorer.facts.change import ChangeRecord


class PartRecord(ChangeRecord, frozen=True):
    """Which part of a model a state is.

    Attributes:
        words: The options of `explorer extract` that take it out.
    """

    ending: ClassVar[str] = "_part"

    words: tuple[str, ...]
