"""`explorer nodes`: lists the nodes of an ONNX file with their attributes and tensors."""

from __future__ import annotations

from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options
from explorer.cli.arguments.options import OPENING, TABLE
from explorer.cli.output.answer import Answer, load_presenter
from explorer.cli.output.model_answer import open_and_answer
from explorer.cli.output.progress import ProgressLine
from explorer.facts.values import StatisticsSpec


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    return open_and_answer(
        args,
        progress,
        lambda session, info: (info, session.nodes(args.layer, kinds=args.op, on_progress=progress)),
        build="nodes",
        presenter="nodes_words",
        rows="nodes",
        package=__package__,
        csv=lambda info, fact: load_presenter("nodes_words", __package__).list_csv_rows(fact),
    )


COMMAND = Command(
    "nodes",
    "print nodes with attributes, and shape and size of each tensor",
    ("MODEL",),
    ("--layer", *list_options(StatisticsSpec, "kinds"), *OPENING, *TABLE),  # "kinds" declares --op
    (
        "explorer nodes model.onnx",
        "explorer nodes model.onnx --layer '*classifier*'",
        "explorer nodes model.onnx --op Conv --csv",
    ),
    _run,
    usage="nodes MODEL",
    manual="each node of an ONNX file: all attributes, inputs and outputs, the shape, elements and bytes of"
    " every tensor, the values of small stored tensors; and the model's version and description, if stored."
    " `--csv` prints a row for each tensor of each node",
    group="look",
)
