"""A training step on the screen: its dialog, and its part of the pages of a layer and of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.base.units import bytes_text
from explorer.facts.training import TrainingStepSpec
from explorer.features.training.training_words import (
    OPTIMIZERS,
    figures,
    heading,
    layer_figures,
    memory_blocks,
    theory,
)
from explorer.report.blocks import Line as BlankLine
from explorer.report.blocks import Paragraph
from explorer.tui.dialogs.record_form import RecordForm
from explorer.tui.text.drawing import draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from explorer.facts import Info
    from explorer.facts.training import TrainingMemory
    from explorer.report.blocks import Block
    from explorer.tui.commands.context import CommandContext
    from explorer.tui.state.store import ScreenStore
    from explorer.tui.tabs.layer import LayerParts
    from explorer.tui.text.lines import Line


def layer_lines(page: LayerParts) -> list[Callable[[int], list[Line]]]:
    """Costs of a training step in the layer; empty before the user asks for them."""
    training = page.store.on_demand.training
    if training is None or not (blocks := layer_figures(training, *page.span)):
        return []
    return [lambda width: draw([heading(training), *blocks], width, page.store.exact)]


def model_blocks(info: Info, store: ScreenStore) -> list[Block]:
    """Costs of a training step in the model; empty before the user asks for them."""
    training = store.on_demand.training
    if training is None:
        return []
    notes = [Paragraph(note, "warning") for note in training.notes]
    blocks: list[Block] = [BlankLine(), heading(training), figures(info, training), *notes]
    if training.memory is not None:
        blocks += [*memory_blocks(training.memory), *theory(info, training)]
    return blocks


class TrainingDialog(RecordForm[TrainingStepSpec]):
    """Asks for a training step."""

    TITLE_TEXT = "A training step"
    HINT = "↑↓←→ choose · Enter count · Esc cancel"

    def meaning(self) -> list[tuple[str, str]]:
        """The state that the optimizer keeps."""
        return [(f"{OPTIMIZERS[self.answer().optimizer]} that is trained.", "dim")]


def ask_training(context: CommandContext) -> None:
    """Ask for batch sizes, optimizer and memory of a device, and show the costs of a step."""
    store = context.store

    def take(spec: TrainingStepSpec | None) -> None:
        if spec is not None:
            store.training_asked = spec
            context.start("Training", _count(context, spec))

    if context.ready():
        context.ask(TrainingDialog(store.training_asked or TrainingStepSpec()), take)


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
    store.notify("found")
    if answers.training.memory is not None:
        store.say(f"{_memory_text(answers.training.memory)}; tab 2 has it over time")
    tabs.reveal("Training")


def _memory_text(fact: TrainingMemory) -> str:
    """The peak memory of a step, and the largest batch that fits."""
    first = fact.steps[0]
    batch = "" if first.batch is None else f" of batch {first.batch:,}"
    text = f"a step{batch} holds {bytes_text(first.peak_bytes)} at most"
    if fact.largest_batch is None:
        return text
    fits = f"up to batch {fact.largest_batch:,}" if fact.largest_batch else "no batch"
    return f"{text}; {fits} fits in {bytes_text(fact.limit_bytes or 0)}"
