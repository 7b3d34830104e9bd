"""`explorer ops`: shows costs by operator type, or the torch.fx nodes of a module."""

from __future__ import annotations

from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options
from explorer.cli.arguments.options import OPENING, TABLE, Option
from explorer.cli.output.answer import Answer
from explorer.cli.output.model_answer import open_and_answer
from explorer.cli.output.progress import ProgressLine
from explorer.facts.values import StatisticsSpec


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    if not args.fx:
        args.refuse(("input", "seed", "stat"), "it applies only to the nodes of torch.fx", "--fx")
        return open_and_answer(
            args,
            progress,
            lambda session, info: (info, session.ops()),
            build="ops",
            presenter="look.ops",
            rows="ops",
        )
    options = {"stat": args.stat, "input": args.input, "seed": args.seed, "on_progress": progress}
    return open_and_answer(
        args,
        progress,
        lambda session, info: (info, session.fx_graph(**options)),
        build="fx_graph",
        presenter="look.fx",
        rows="nodes",
    )


COMMAND = Command(
    "ops",
    "print the cost of each operator type and the values of its attributes",
    ("MODEL",),
    (
        Option(
            "--fx",
            "the nodes that torch.fx traces in a module, by kind, target, type and shapes",
            manual="the nodes that torch.fx traces in a module: counts by kind and by type of module, and a"
            " table with target, type, precision and shapes; `--stat` runs it and adds statistics",
        ),
        *list_options(StatisticsSpec, "stat"),
        *("--input", "--seed"),
        *OPENING,
        *TABLE,
    ),
    (
        "explorer ops googlenet",
        "explorer ops model.onnx --csv",
        "explorer ops --fx package.module:net --stat mean,std --csv",
    ),
    _run,
    usage="ops MODEL",
    manual="the cost of each operator type, and the ranges of its attributes; with `--fx` the nodes of"
    " torch.fx of a module",
    group="look",
)
