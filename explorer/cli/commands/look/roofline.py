"""`explorer roofline`: shows which layers are compute-bound and which are memory-bound."""

from __future__ import annotations

from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import MACHINE, OPENING, TABLE
from explorer.cli.arguments.records import read_roofline_machine
from explorer.cli.output.answer import Answer
from explorer.cli.output.model_answer import open_and_answer
from explorer.cli.output.progress import ProgressLine


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    machine = read_roofline_machine(args)
    return open_and_answer(
        args,
        progress,
        lambda session, info: (info, session.roofline(machine)),
        build="roofline",
        presenter="look.roofline_words",
        rows="layers",
    )


COMMAND = Command(
    "roofline",
    "show which layers are compute-bound and which memory-bound",
    ("MODEL",),
    (*MACHINE, *OPENING, *TABLE),
    (
        "explorer roofline resnet18 --peak-macs 4T --bandwidth 100GB/s",
        "explorer roofline model.onnx --machine npu --json",
    ),
    _run,
    usage="roofline MODEL --peak-macs 4T --bandwidth 100GB/s",
    manual="which layers are compute-bound and which are memory-bound, with the least time of each",
    group="look",
)
