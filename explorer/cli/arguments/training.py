"""Options of `explorer sweep` for training runs."""

from __future__ import annotations

from explorer.cli.arguments.declared import list_options
from explorer.cli.arguments.options import Option
from explorer.facts.evaluate.evaluation import SampleSpec
from explorer.facts.evaluate.training_run import TrainSpec

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
    Option("--trials", "number of trainings, drawn at random from the ranges of --train", "N", least=1),
    *list_options(SampleSpec),
    *list_options(TrainSpec, "held"),
)
"""Options of `explorer sweep` for training runs."""
