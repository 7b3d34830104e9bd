"""A training step: what its backward pass, gradients and optimizer cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.base.units import bytes_text
from explorer.facts.training import TrainingStepSpec
from explorer.features.training.training_dialog import TrainingDialog

if TYPE_CHECKING:
    from explorer.facts.training import TrainingMemory
    from explorer.tui.commands.context import CommandContext


def ask_training(context: CommandContext) -> None:
    """Ask for batch sizes, optimizer and card, and tell what a step costs and holds."""
    store = context.store

    def take(spec: TrainingStepSpec | None) -> None:
        if spec is not None:
            store.training_asked = spec
            context.start("Training", _count(context, spec))

    if context.ready():
        context.ask(TrainingDialog(store.training_asked or TrainingStepSpec()), take)


async def _count(context: CommandContext, spec: TrainingStepSpec) -> None:
    store, tabs = context.store, context.panes.tabs
    seen = store.on_demand
    seen.training = await context.jobs.run(
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
    if seen.training.memory is not None:
        store.say(f"{_said(seen.training.memory)}; tab 2 has it over time")
    tabs.reveal("Training")


def _said(fact: TrainingMemory) -> str:
    """What a step holds, and what fits."""
    first = fact.steps[0]
    batch = "" if first.batch is None else f" of batch {first.batch:,}"
    said = f"a step{batch} holds {bytes_text(first.peak_bytes)} at most"
    if fact.largest_batch is None:
        return said
    fits = f"up to batch {fact.largest_batch:,}" if fact.largest_batch else "no batch"
    return f"{said}; {fits} fits in {bytes_text(fact.limit_bytes or 0)}"
