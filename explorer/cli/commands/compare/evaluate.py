"""`explorer evaluate`: how well models do on the samples of a file, side by side."""

from __future__ import annotations

import explorer
from explorer.base.exit_codes import DONE
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, TABLE, Option
from explorer.cli.output.answer import Answer, plain, present
from explorer.cli.output.progress import ProgressLine


def _run(given: ParsedArgs, progress: ProgressLine) -> Answer:
    fact = explorer.evaluate_files(
        *given.models,
        data=given.data,
        labels=given.labels or "",
        inputs=given.inputs.split(",") if given.inputs else (),
        scores=given.scores or "",
        batch=given.batch,
        task=given.task,
        on_progress=progress,
        **given.opening,
    )
    return Answer(
        DONE, lambda: plain(fact), lambda: present("compare.evaluate").evaluation(fact), rows="models"
    )


DATA = (
    Option(
        "--data",
        "an .npz, .npy or .csv with a sample in each row",
        "FILE",
        manual="an `.npz` (arrays with a sample in each row), `.npy` or `.csv` (a sample in each line)",
    ),
    Option(
        "--labels",
        "the array or column that is to be met (default: labels, label, y, targets, target; the last column)",
        "NAME",
        manual="the array or column that is to be met; by default `labels`, `label`, `y`, `targets` or"
        " `target`, of a table the last column",
    ),
    Option(
        "--inputs",
        "arrays or columns that go in, separated by commas, or input=array (default: by name, or the rest)",
        "NAMES",
        manual="arrays or columns that go in, separated by commas, in the order of the model's inputs or as"
        " `input=array`; by default what is called like the inputs, or what is left",
    ),
    Option(
        "--task",
        "what labels say (default: whole numbers are classes)",
        choices=("classification", "regression"),
    ),
)
"""Which of a file are samples, and what they are for."""

COMMAND = Command(
    "evaluate",
    "accuracy, loss and agreement of models on the samples of a file",
    ("M1", "..."),
    (
        *DATA,
        Option("--scores", "the output that is scored (default: the first)", "NAME"),
        Option("--batch", "samples that run together (default 64)", "N", "64", least=1),
        *OPENING,
        *TABLE,
    ),
    (
        "explorer evaluate net.onnx net_int8.onnx net_tiled.onnx --data test.npz",
        "explorer evaluate package.module:net --weights-file best.ckpt --data test.csv --labels class",
    ),
    _run,
    usage="evaluate M1 M2 ... --data FILE",
    manual="how well models do on the samples of a file, batch by batch: accuracy, top-5, cross entropy or"
    " squared error, classes that are confused, and how far each agrees with the first",
    needs=("--data",),
)
