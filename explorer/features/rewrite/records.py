"""History records of folds, edits, inferences and passes."""

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


class InferRecord(ChangeRecord, frozen=True):
    """Record of a state whose values were declared with their inferred types.

    Attributes:
        fresh: Whether the model's earlier declarations of types were discarded.
        loaded: Whether onnxruntime loaded the state as a check.
    """

    ending: ClassVar[str] = "_inferred"

    fresh: bool = False
    loaded: bool = True


class PassRecord(ChangeRecord, frozen=True):
    """Record of a state that a user's own pass made.

    Attributes:
        name: Name of the pass.
        words: Arguments of `explorer apply` that apply it again; empty if no command can.
    """

    ending: ClassVar[str] = "_passed"

    name: str
    words: tuple[str, ...] = ()


class EditRecord(ChangeRecord, frozen=True):
    """Record of a state that was made by edits.

    Attributes:
        words: Options of `explorer edit` that make the same edits.
    """

    ending: ClassVar[str] = "_edited"

    words: tuple[str, ...]
