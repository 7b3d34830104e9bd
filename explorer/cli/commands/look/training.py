"""`explorer training`: the cost of one training step."""

from __future__ import annotations

from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, TABLE
from explorer.cli.output.answer import Answer
from explorer.cli.output.model_answer import about
from explorer.cli.output.progress import ProgressLine


def _run(given: ParsedArgs, progress: ProgressLine) -> Answer:
    return about(
        given,
        progress,
        lambda session, info: (info, session.training(batch=given.batch, optimizer=given.optimizer)),
        "training",
        "look.training",
        "layers",
    )


COMMAND = Command(
    "training",
    "one training step: backward MACs, gradients, optimizer, activations",
    ("MODEL",),
    ("--batch", "--optimizer", *OPENING, *TABLE),
    ("explorer training resnet18 --batch 32 --optimizer adam",),
    _run,
    usage="training MODEL --batch 32 --optimizer adam",
    manual="one training step: backward MACs, gradients, optimizer state, activations kept",
)
