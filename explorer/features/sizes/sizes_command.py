"""`explorer sizes`: counts MACs, memory and least time over one size, and where one figure passes another."""

from __future__ import annotations

from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import MACHINE, OPENING, TABLE, Option
from explorer.cli.arguments.records import read_machine
from explorer.cli.output.answer import Answer
from explorer.cli.output.model_answer import open_and_answer
from explorer.cli.output.progress import ProgressLine

_OVER = Option(
    "--over",
    "which size, and over which range: batch, sequence=1:32k (default: the length of a text, else\n"
    "the first size; k is 1,024)",
    "NAME[=LOW:HIGH]",
    parser="range",
    manual="which size, and over which range: `batch`, `sequence=1:32k` (`k` is 1,024); by default the length"
    " of a text, else the first size",
)


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    range_args = args.over or (None, None, None)
    machine = read_machine(args)
    return open_and_answer(
        args,
        progress,
        lambda session, info: (info, session.sizes(*range_args, machine=machine, on_progress=progress)),
        build="sizes",
        presenter="sizes_words",
        rows="sizes",
        package=__package__,
    )


COMMAND = Command(
    "sizes",
    "print MACs, memory and time as batch or sequence length grows",
    ("MODEL",),
    (_OVER, *MACHINE, *OPENING, *TABLE),
    (
        "explorer sizes resnet50 --over batch=1:64",
        "explorer sizes model.onnx --over sequence=1:32k --machine h100 --json",
    ),
    _run,
    usage="sizes MODEL --over sequence=1:32k",
    manual="MACs, bytes moved, activations, weights, key-value cache and least time over one size, with"
    " formulas and the points where one figure passes another: `activations pass the weights at batch 11`",
    group="look",
)
