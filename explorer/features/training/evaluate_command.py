"""`explorer evaluate`: scores models on the samples of a file."""

from __future__ import annotations

from msgspec.structs import asdict

import explorer
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options, record_of
from explorer.cli.arguments.options import OPENING, TABLE
from explorer.cli.output.answer import Answer, build_plain_document, load_presenter
from explorer.cli.output.progress import ProgressLine
from explorer.facts.evaluate.evaluation import EvaluateSpec, Evaluation


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    fact = explorer.evaluate_files(
        *args.models,
        **asdict(record_of(args, EvaluateSpec)),
        on_progress=progress,
        **args.opening,
    )
    return Answer(
        lambda: build_plain_document(fact),
        lambda: load_presenter("evaluate_words", __package__).evaluation(fact),
        rows="models",
    )


COMMAND = Command(
    "evaluate",
    "measure accuracy, loss and agreement of models on a data file",
    ("M1", "..."),
    (
        *list_options(EvaluateSpec),
        *OPENING,
        *TABLE,
    ),
    (
        "explorer evaluate net.onnx net_int8.onnx net_tiled.onnx --data test.npz",
        "explorer evaluate package.module:net --weights-file best.ckpt --data test.csv --labels class",
    ),
    _run,
    usage="evaluate M1 M2 ... --data FILE",
    manual="the quality of models on the samples of a file: accuracy, top-5, cross entropy or squared"
    " error, confused classes, and the agreement with the first model",
    required=("--data",),
    group="compare",
    answer=Evaluation,
)
