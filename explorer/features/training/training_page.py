"""Costs of a training step on the pages of a layer and of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.features.training.training_words import (
    build_heading,
    build_layer_fields,
    build_output_fields,
    build_step_fields,
    memory_blocks,
)
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
    if training is None or not (blocks := build_layer_fields(training, *page.span)):
        return []
    return [lambda width: draw([build_heading(training), *blocks], width, page.store.exact)]


def model_blocks(info: Info, store: ScreenStore) -> list[Block]:
    """Return the costs of a training step in the model; empty until the user requests them."""
    training = store.on_demand.training
    return [] if training is None else step_blocks(info, training)


def step_blocks(info: Info, training: Training) -> list[Block]:
    """Build the costs of a training step in the model, with notes on the omitted costs."""
    notes = [Paragraph(note, "warning") for note in training.notes]
    blocks: list[Block] = [BlankLine(), build_heading(training), build_step_fields(info, training), *notes]
    if training.memory is not None:
        blocks += [*memory_blocks(training.memory), *build_output_fields(info, training)]
    return blocks
