"""`explorer train`: trains a small module on a data file."""

from __future__ import annotations

import explorer
from explorer.cli.arguments.command import Command, ParsedArgs
from explorer.cli.arguments.options import OPENING, TABLE, Option
from explorer.cli.arguments.training import DATA, HELD, samples
from explorer.cli.output.answer import Answer, plain, present
from explorer.cli.output.progress import ProgressLine


def _run(args: ParsedArgs, progress: ProgressLine) -> Answer:
    with explorer.Session(args.models[0], **args.opening) as session:
        settings = {
            name: getattr(args, name) for name in ("epochs", "batch", "optimizer", "seed", "held", "output")
        }
        settings |= {"rate": args.lr, "overwrite": args.force, "on_progress": progress}
        fact = session.train(args.data, **samples(args), **settings)
    return Answer(
        lambda: plain(fact), lambda: present("train_words", __package__).training_run(fact), rows="epochs"
    )


OPTIMIZERS = ("adam", "sgd", "momentum")

COMMAND = Command(
    "train",
    "train a small module on a data file",
    ("MODEL",),
    (
        *DATA,
        Option("--output", "a checkpoint of the best epoch, which --weights-file takes", "FILE", short="-o"),
        "--force",
        Option("--epochs", "passes over the samples (default 20)", "N", "20", least=1),
        Option("--lr", "learning rate (default 0.01)", "RATE", "0.01", reads="limit"),
        Option("--batch", "samples of a step (default 64)", "N", "64", least=2),
        Option("--optimizer", "what takes the steps (default adam)", default="adam", choices=OPTIMIZERS),
        HELD,
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
    group="change",
)
