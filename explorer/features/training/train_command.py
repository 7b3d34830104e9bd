"""`explorer train`: trains a small module on a data file."""

from __future__ import annotations

from msgspec.structs import asdict

import explorer
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.declared import list_options, record_of
from explorer.cli.arguments.options import OPENING, TABLE, Option
from explorer.cli.output.answer import Answer, build_plain_document, load_presenter
from explorer.cli.output.progress import ProgressLine
from explorer.facts.evaluate.evaluation import SampleSpec
from explorer.facts.evaluate.training_run import TrainingRun, TrainSpec


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    with explorer.Session(args.models[0], **args.opening) as session:
        fact = session.train(
            **asdict(record_of(args, SampleSpec)),
            **asdict(record_of(args, TrainSpec)),
            output=args.output,
            overwrite=args.force,
            on_progress=progress,
        )
    return Answer(
        lambda: build_plain_document(fact),
        lambda: load_presenter("train_words", __package__).training_run(fact),
        rows="epochs",
    )


COMMAND = Command(
    "train",
    "train a small module on a data file",
    ("MODEL",),
    (
        *list_options(SampleSpec),
        Option("--output", "a checkpoint of the best epoch, which --weights-file takes", "FILE", short="-o"),
        "--force",
        *list_options(TrainSpec),
        *OPENING,
        *TABLE,
    ),
    (
        "explorer train package.module:net --data train.npz --epochs 30 -o best.ckpt",
        "explorer train net.py:net --data train.csv --labels class --optimizer momentum --lr 0.05",
    ),
    _run,
    usage="train package.module:callable --data FILE -o FILE.ckpt",
    manual="trains a small module on the samples of a file (PyTorch Lightning's loop, on the CPU, the data in"
    " memory): loss and accuracy by epoch, and a checkpoint of the best one",
    required=("--data",),
    group="change",
    answer=TrainingRun,
)
