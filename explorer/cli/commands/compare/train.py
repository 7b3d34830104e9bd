"""`explorer train`: a small module trained on a data file, for trying out what its weights do."""

from __future__ import annotations

import explorer
from explorer.base.errors import Misuse
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


SWEPT = (
    Option(
        "--train",
        "train a small module in each of these ways instead: lr=1e-4..1e-2,batch=64,256\n"
        "(lr, batch, epochs, optimizer; a range goes by tens, or by doubling)",
        "VALUES",
        manual="train a small module on `--data` in each of these ways instead, the best first:"
        " `lr=1e-4..1e-2,batch=64,256` (`lr`, `batch`, `epochs`, `optimizer`; a range goes by tens, or by"
        " doubling); `-o` is then the best one's checkpoint",
    ),
    Option("--trials", "so many of --train, drawn from the whole of its ranges", "N", least=1),
    *DATA,
    Option("--held", "share of samples that is held out (default 0.2)", "SHARE", "0.2", reads="share"),
)
"""What `explorer sweep` takes for trainings."""

_OF_SWEPT = {"train", "trials", "data", "labels", "inputs", "task", "held"}
_OF_BOTH = {"seed", "output", "force", "workers", "scheduler", "json", "csv", "quiet", "no_cache"}
_OF_BOTH |= {flag[2:].replace("-", "_") for flag in OPENING}


def swept(given: ParsedArgs, progress: ProgressLine) -> Answer | None:
    """What `explorer sweep --train` answers; None where tilings are swept."""
    idle = given.explicit - _OF_SWEPT - _OF_BOTH if given.train else given.explicit & _OF_SWEPT
    if idle:
        what = "is for tilings" if given.train else "needs --train"
        raise Misuse(what, where="--" + min(idle).replace("_", "-"), hint="leave it out")
    if not given.train:
        return None
    if given.data is None:
        raise Misuse("needs samples", where="--train", hint="add --data FILE")
    if len(given.models) > 1:
        raise Misuse("one model is trained at a time", where=given.models[1], hint="leave it out")
    with explorer.Session(given.models[0], **given.opening) as session:
        fact = session.sweep_training(
            given.data,
            given.train,
            trials=given.trials,
            seed=given.seed,
            output=given.output,
            overwrite=given.force,
            scheduler=given.scheduler,
            workers=given.workers,
            labels=given.labels or "",
            inputs=given.inputs.split(",") if given.inputs else (),
            held=given.held,
            task=given.task,
            on_progress=progress,
        )
    failed = sum(bool(trial.error) for trial in fact.trials)
    return Answer(
        DONE,
        lambda: plain(fact),
        lambda: present("compare.train").training_sweep(fact),
        rows="trials",
        warning=f"{failed:,} of {len(fact.trials):,} trials have no figures" if failed else "",
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
