"""`explorer weights`: measures stored tensors."""

from __future__ import annotations

from msgspec.structs import asdict

from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options, record_of
from explorer.cli.arguments.options import OPENING, TABLE
from explorer.cli.output.answer import Answer
from explorer.cli.output.model_answer import open_and_answer, open_or_count_stored
from explorer.cli.output.progress import ProgressLine
from explorer.facts.values import StatisticsSpec


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    return open_and_answer(
        args,
        progress,
        lambda session, info: (
            info,
            session.weights(args.layer, **asdict(record_of(args, StatisticsSpec)), on_progress=progress),
        ),
        build="weights",
        presenter="weights_words",
        rows="tensors" if args.stat is None and args.axis is None else "statistics",
        open_model=open_or_count_stored,
        package=__package__,
        partial=True,
    )


COMMAND = Command(
    "weights",
    "print statistics of stored tensors: range, mean, zeros, quantiles",
    ("MODEL",),
    ("--layer", *list_options(StatisticsSpec), *OPENING, *TABLE),
    (
        "explorer weights model.onnx",
        "explorer weights resnet18 --layer '*conv1*' --json",
        "explorer weights model.onnx --op Conv --stat absmax,range:3sigma --axis 0 --csv",
    ),
    _run,
    usage="weights MODEL",
    manual="the values of stored tensors: range, mean, zeros, quantiles, histogram, and tensors that are"
    " tied or stored twice; `--stat` selects other statistics, `--axis` gives each channel a row",
    group="look",
)
