"""Options of training runs, and of the data files for training and evaluation."""

from __future__ import annotations

from explorer.cli.arguments.options import Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from explorer.cli.arguments.command import ParsedArgs

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
"""Options that select the samples in a data file."""

HELD = Option("--held", "share of samples that is held out (default 0.2)", "SHARE", "0.2", reads="share")

TRAINING_SWEEP = (
    Option(
        "--train",
        "train a small module in each of these ways instead: lr=1e-4..1e-2,batch=64,256\n"
        "(lr, batch, epochs, optimizer; a range goes by tens, or by doubling)",
        "VALUES",
        manual="train a small module on `--data` in each of these ways instead, the best first:"
        " `lr=1e-4..1e-2,batch=64,256` (`lr`, `batch`, `epochs`, `optimizer`; a range goes by tens, or by"
        " doubling); `--take 1:best.ckpt` writes the weights of a row",
    ),
    Option("--trials", "so many of --train, drawn from the whole of its ranges", "N", least=1),
    *DATA,
    HELD,
)
"""Options of `explorer sweep` for training runs."""


def samples(args: ParsedArgs) -> dict[str, Any]:
    """Return the sample options as keyword arguments of `Session` methods."""
    inputs = args.inputs.split(",") if args.inputs else ()
    return {"labels": args.labels or "", "inputs": inputs, "task": args.task}
