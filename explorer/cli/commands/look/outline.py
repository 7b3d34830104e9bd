"""`explorer outline`: shows the header of a file, or the models of a folder."""

from __future__ import annotations

import explorer.report.outline_words as report
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import PRINTING
from explorer.cli.output.answer import Answer, head
from explorer.session import headers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.cli.output.progress import ProgressLine


def answer(args: ParsedArgs, progress: ProgressLine) -> Answer:
    """Run the command."""
    outline = headers.outline(args.models[0])
    if args.json:
        return Answer(pieces=lambda: report.as_json(outline, head()))
    return Answer(pieces=lambda: report.as_text(outline))


COMMAND = Command(
    "outline",
    "print modules, operators and tensors without loading weights",
    ("MODEL",),
    ("--memory", *PRINTING),
    ("explorer outline model.onnx", "explorer outline model.safetensors --json", "explorer outline models/"),
    answer,
    usage="outline MODEL",
    manual="the header of a file, without loading a framework: modules, operators, tensors; for a folder,"
    " its models",
    instant=True,
    group="look",
)
