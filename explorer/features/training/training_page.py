"""Costs of a training step on the pages of a layer and of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.features.training.training_words import figures, heading, layer_figures, memory_blocks, theory
from explorer.report.blocks import Line as BlankLine
from explorer.report.blocks import Paragraph
from explorer.tui.text.drawing import draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from explorer.facts import Info
    from explorer.facts.training import Training
    from explorer.report.blocks import Block
    from explorer.tui.state.store import ScreenStore
    from explorer.tui.tabs.layer import LayerParts
    from explorer.tui.text.lines import Line


def layer_lines(page: LayerParts) -> list[Callable[[int], list[Line]]]:
    """Return the costs of a training step in the layer; empty until the user requests them."""
    training = page.store.on_demand.training
    if training is None or not (blocks := layer_figures(training, *page.span)):
        return []
    return [lambda width: draw([heading(training), *blocks], width, page.store.exact)]


def model_blocks(info: Info, store: ScreenStore) -> list[Block]:
    """Return the costs of a training step in the model; empty until the user requests them."""
    training = store.on_demand.training
    return [] if training is None else step_blocks(info, training)


def step_blocks(info: Info, training: Training) -> list[Block]:
    """Build the costs of a training step in the model, with notes on the omitted costs."""
    notes = [Paragraph(note, "warning") for note in training.notes]
    blocks: list[Block] = [BlankLine(), heading(training), figures(info, training), *notes]
    if training.memory is not None:
        blocks += [*memory_blocks(training.memory), *theory(info, training)]
    return blocks
