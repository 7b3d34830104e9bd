"""`explorer rebatch`: writes a model for another batch size, and compares each row with the original."""

from __future__ import annotations

import explorer
from explorer.base.exit_codes import IF_PROVED
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options, record_of
from explorer.cli.arguments.options import OPENING, PROVED, TABLE
from explorer.cli.output.answer import Answer, build_conversion_answer
from explorer.cli.output.progress import ProgressLine
from explorer.facts.conversion import RebatchSpec
from explorer.settings.parse import parse_batch


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    batch = parse_batch(args.models[1], where="rebatch")
    with explorer.Session(args.models[0], **args.opening) as session:
        fact = session.rebatch(
            batch,
            args.output,
            axes=record_of(args, RebatchSpec).axes,
            **args.writing(draws=3),
            on_progress=progress,
        )
    return build_conversion_answer(fact)


COMMAND = Command(
    "rebatch",
    "change the fixed batch size of a model, and check each row",
    ("MODEL", "BATCH"),
    ("--output", *list_options(RebatchSpec), *PROVED, "--shapes", *OPENING, *TABLE),
    (
        "explorer rebatch model.onnx 8 -o model_8.onnx",
        "explorer rebatch model.onnx N -o model_any.onnx            (leaves the batch open)",
        "explorer rebatch lstm.onnx 4 -o lstm_4.onnx --axis x:1     (sequence first)",
    ),
    _run,
    exits=IF_PROVED,
    usage="rebatch MODEL BATCH -o FILE",
    manual="changes the fixed batch of a model (a name makes it open), with the Reshapes, Expands,"
    " constants and declared shapes that depend on it; compares each row with a run of the original on that"
    " row",
    others={"BATCH": "how many rows the model is to take, or a name that leaves it open"},
    required=("--output",),
    group="change",
)
