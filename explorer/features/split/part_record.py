"""History record of an extracted part."""

from __future__ import annotations

from typing import ClassVar

from explorer.facts.change import ChangeRecord


class PartRecord(ChangeRecord, frozen=True):
    """Record of a state that was extracted from another state.

    Attributes:
        words: Options of `explorer extract` that extract the same part.
    """

    ending: ClassVar[str] = "_part"

    words: tuple[str, ...]
