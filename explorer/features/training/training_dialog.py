"""The training dialog: batch sizes and optimizer of a training step, what is checkpointed, and the card."""

from __future__ import annotations

from explorer.facts.training import TrainingStepSpec
from explorer.features.training.training_words import OPTIMIZERS
from explorer.tui.dialogs.record_form import RecordForm


class TrainingDialog(RecordForm[TrainingStepSpec]):
    """Asks for a training step."""

    TITLE_TEXT = "A training step"
    HINT = "↑↓←→ choose · Enter count · Esc cancel"

    def meaning(self) -> list[tuple[str, str]]:
        """What the optimizer keeps."""
        return [(f"{OPTIMIZERS[self.answer().optimizer]} that is trained.", "dim")]
