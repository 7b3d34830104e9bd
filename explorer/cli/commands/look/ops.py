"""`explorer ops`: cost by operator type."""

from __future__ import annotations

from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, TABLE
from explorer.cli.output.answer import Answer
from explorer.cli.output.model_answer import about
from explorer.cli.output.progress import ProgressLine


def _run(given: ParsedArgs, progress: ProgressLine) -> Answer:
    return about(given, progress, lambda session, info: (info, session.ops()), "ops", "look.ops", "ops")


COMMAND = Command(
    "ops",
    "what each operator type costs, and the values its attributes take",
    ("MODEL",),
    (*OPENING, *TABLE),
    ("explorer ops googlenet", "explorer ops model.onnx --csv"),
    _run,
    usage="ops MODEL",
    manual="what each operator type costs, and the range of values that its attributes take",
)
