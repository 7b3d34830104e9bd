"""`explorer memory`: shows live activations by step, the peak, and the smallest arena."""

from __future__ import annotations

from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, TABLE
from explorer.cli.output.answer import Answer
from explorer.cli.output.model_answer import open_and_answer
from explorer.cli.output.progress import ProgressLine


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    return open_and_answer(
        args,
        progress,
        lambda session, info: (info, session.memory()),
        build="memory",
        presenter="look.memory_words",
        rows="steps",
    )


COMMAND = Command(
    "memory",
    "print activation memory step by step, its peak, and the smallest arena",
    ("MODEL",),
    (*OPENING, *TABLE),
    ("explorer memory resnet18", "explorer memory model.onnx --dim batch=8 --csv"),
    _run,
    usage="memory MODEL",
    manual="activation memory step by step: the peak with its tensors, and the smallest arena for first fit",
    group="look",
)
