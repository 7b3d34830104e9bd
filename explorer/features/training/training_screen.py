"""Dialog for a training step, and the command that counts its cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.base.units import bytes_text
from explorer.facts.training import TrainingStepSpec
from explorer.features.training.training_words import OPTIMIZERS
from explorer.tui.dialogs.record_form import RecordForm

if TYPE_CHECKING:
    from explorer.facts.training import TrainingMemory
    from explorer.tui.commands.context import CommandContext


class TrainingDialog(RecordForm[TrainingStepSpec]):
    """Form for the settings of a training step."""

    TITLE_TEXT = "A training step"
    HINT = "↑↓←→ choose · Enter count · Esc cancel"

    def describe(self) -> list[tuple[str, str]]:
        """Describe the state that the optimizer keeps."""
        return [(f"{OPTIMIZERS[self.read_answer().optimizer]} that is trained.", "dim")]


def ask_training(context: CommandContext) -> None:
    """Ask for batch sizes, optimizer and device memory, then show the costs of a step."""
    store = context.store

    def on_answer(spec: TrainingStepSpec | None) -> None:
        if spec is not None:
            store.requested_training = spec
            context.start("Training", _count(context, spec))

    if context.ready():
        context.ask(TrainingDialog(store.requested_training or TrainingStepSpec()), on_answer)


async def _count(context: CommandContext, spec: TrainingStepSpec) -> None:
    store, tabs = context.store, context.panes.tabs
    answers = store.on_demand
    answers.training = await context.jobs.run(
        "counting a training step",
        "training_over_time",
        batches=spec.batches or (None,),
        optimizer=spec.optimizer,
        checkpoint=spec.checkpoint,
        card=spec.card,
    )
    if store.tab not in ("layer", "model"):
        tabs.open("model")
    store.notify("answers")
    if answers.training.memory is not None:
        store.say(f"{_format_memory(answers.training.memory)} · tab 2 shows it over time")
    tabs.reveal("Training")


def _format_memory(fact: TrainingMemory) -> str:
    """State the peak memory of a step, and the largest batch that fits."""
    first = fact.steps[0]
    batch = "" if first.batch is None else f" of batch {first.batch:,}"
    text = f"a step{batch} holds {bytes_text(first.peak_bytes)}"
    if fact.largest_batch is None:
        return text
    fit_text = f"up to batch {fact.largest_batch:,}" if fact.largest_batch else "no batch"
    return f"{text}; {fit_text} fits in {bytes_text(fact.limit_bytes or 0)}"
