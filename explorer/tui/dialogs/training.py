"""The training dialog: batch sizes and optimizer of a training step, what is checkpointed, and the card."""

from __future__ import annotations

from msgspec import Struct
from textual.app import ComposeResult

from explorer.base.errors import ExplorerError
from explorer.facts.training import Optimizer
from explorer.report.present.look.training import OPTIMIZERS
from explorer.settings.parse import parse_card, parse_sizes, parse_words
from explorer.tui.dialogs.dialogs import FormDialog
from explorer.tui.widgets.options import OptionField


class TrainingRequest(Struct, frozen=True):
    """A training step, as it is typed.

    Attributes:
        batch: Batch sizes between commas; nothing is the model's own.
        checkpoint: Patterns of modules between commas.
        card: Memory that the step may take.
        optimizer: Whose memory is in it.
    """

    batch: str = ""
    checkpoint: str = ""
    card: str = ""
    optimizer: Optimizer = "sgd"

    @property
    def batches(self) -> tuple[int | None, ...]:
        """The batch sizes.

        Raises:
            Misuse: One is no number above 0.
        """
        return parse_sizes(self.batch, "batch") if self.batch.strip() else (None,)

    @property
    def globs(self) -> tuple[str, ...]:
        """The patterns."""
        return parse_words(self.checkpoint, "checkpoint") if self.checkpoint.strip() else ()

    @property
    def limit(self) -> int | None:
        """The memory in bytes.

        Raises:
            Misuse: It is no size.
        """
        return parse_card(self.card, "card") if self.card.strip() else None


class TrainingDialog(FormDialog[TrainingRequest]):
    """Asks for a training step.

    Args:
        last: What was typed last.
    """

    TITLE_TEXT = "A training step"
    HINT = "↑↓←→ choose · Enter count · Esc cancel"

    def __init__(self, last: TrainingRequest) -> None:
        super().__init__()
        self._last = last

    def fields(self) -> ComposeResult:
        """The fields."""
        yield from self.entry("batch", self._last.batch, "as opened; 1,8,32", "batch")
        yield OptionField("optimizer", tuple(OPTIMIZERS), self._last.optimizer, id="optimizer")
        yield from self.entry("checkpoint", self._last.checkpoint, "none; layer1.*", "checkpoint")
        yield from self.entry("card", self._last.card, "any; 16G", "card")

    def meaning(self) -> list[tuple[str, str]]:
        """What the optimizer keeps, or what is wrong."""
        asked = self._typed()
        for read, wrong in (
            (lambda: asked.batches, "A batch is a number above 0, or nothing; several stand between commas."),
            (lambda: asked.limit, "The memory of a card is a size such as 16G, or nothing."),
        ):
            try:
                read()
            except ExplorerError:
                return [(wrong, "bad")]
        return [(f"{OPTIMIZERS[asked.optimizer]} that is trained.", "dim")]

    def _typed(self) -> TrainingRequest:
        chosen = list(OPTIMIZERS)[self.query_one(OptionField).index]
        batch, checkpoint, card = map(self.text_of, ("batch", "checkpoint", "card"))
        return TrainingRequest(batch, checkpoint, card, chosen)

    def answer(self) -> TrainingRequest:
        """What the fields say.

        Raises:
            Misuse: A batch or the memory is none.
        """
        asked = self._typed()
        _ = asked.batches, asked.limit
        return asked
