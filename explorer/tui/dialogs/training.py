"""The training dialog: the batch size and the optimizer of a training step."""

from __future__ import annotations

from textual.app import ComposeResult

from explorer.base.errors import ExplorerError
from explorer.facts.training import Optimizer
from explorer.report.present.look.training import OPTIMIZERS
from explorer.settings.parse import parse_count
from explorer.tui.dialogs.dialogs import FormDialog
from explorer.tui.widgets.options import OptionField

TrainingRequest = tuple[str, int | None, Optimizer]


class TrainingDialog(FormDialog[TrainingRequest]):
    """Asks for a training step; answers with the batch as typed, as a number, and the optimizer.

    Args:
        batch: What was typed last.
        optimizer: What was chosen last.
    """

    TITLE_TEXT = "A training step"
    HINT = "↑↓←→ choose · Enter count · Esc cancel"

    def __init__(self, batch: str, optimizer: Optimizer, *, blink: bool = False) -> None:
        super().__init__(blink=blink)
        self._batch, self._optimizer = batch, optimizer

    def fields(self) -> ComposeResult:
        """The fields."""
        yield from self.entry("batch", self._batch, "as opened", "batch")
        options = OptionField("optimizer", tuple(OPTIMIZERS), id="optimizer")
        options.index = list(OPTIMIZERS).index(self._optimizer)
        yield options

    def meaning(self) -> list[tuple[str, str]]:
        """What the optimizer keeps, or what is wrong with the batch."""
        try:
            return [(f"{OPTIMIZERS[self.answer()[2]]} that is trained.", "dim")]
        except ExplorerError:
            return [("The batch is a number above 0, or nothing.", "bad")]

    def answer(self) -> TrainingRequest:
        """What the fields say; no batch is the model's own."""
        text = self.text_of("batch")
        batch = parse_count(text, "batch", 1) if text.strip() else None
        return text, batch, list(OPTIMIZERS)[self.query_one(OptionField).index]
