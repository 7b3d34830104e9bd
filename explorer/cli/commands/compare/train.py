"""`explorer train`: a small module trained on a data file, for trying out what its weights do."""

from __future__ import annotations

import explorer
from explorer.base.exit_codes import DONE
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, TABLE, Option
from explorer.cli.commands.compare.evaluate import DATA
from explorer.cli.output.answer import Answer, plain, present
from explorer.cli.output.progress import ProgressLine


def _run(given: ParsedArgs, progress: ProgressLine) -> Answer:
    with explorer.Session(given.models[0], **given.opening) as session:
        fact = session.train(
            given.data,
            labels=given.labels or "",
            inputs=given.inputs.split(",") if given.inputs else (),
            epochs=given.epochs,
            rate=given.lr,
            batch=given.batch,
            optimizer=given.optimizer,
            seed=given.seed,
            held=given.held,
            task=given.task,
            output=given.output,
            overwrite=given.force,
            on_progress=progress,
        )
    return Answer(
        DONE, lambda: plain(fact), lambda: present("compare.train").training_run(fact), rows="epochs"
    )


COMMAND = Command(
    "train",
    "trains a small module on the samples of a file",
    ("MODEL",),
    (
        *DATA,
        Option(
            "--output",
            "a checkpoint for the weights of the best epoch, which --weights-file takes",
            "FILE",
            short="-o",
        ),
        "--force",
        Option("--epochs", "passes over the samples (default 20)", "N", "20", least=1),
        Option("--lr", "learning rate (default 0.01)", "RATE", "0.01", reads="limit"),
        Option("--batch", "samples of a step (default 64)", "N", "64", least=2),
        Option(
            "--optimizer",
            "what takes the steps (default adam)",
            default="adam",
            choices=("adam", "sgd", "momentum"),
        ),
        Option("--held", "share of samples that is held out (default 0.2)", "SHARE", "0.2", reads="share"),
        Option("--seed", "seed of shuffling, held out samples, dropout (default 0)", "S", "0", least=0),
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
    needs=("--data",),
)
