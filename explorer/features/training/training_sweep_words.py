"""Trainings beside each other, in text: `explorer sweep --train`."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.base.units import printable, seconds_text
from explorer.facts.evaluate.training_sweep import TrainingSweep, TrainingTrial
from explorer.features.sweep.sweep_words import done_and_kept
from explorer.features.training.train_words import accuracy_said, head
from explorer.report.blocks import Block, Cell, Column, Line, Span, Table
from explorer.report.present.figures import share_text, written


def training_sweep(fact: TrainingSweep) -> list[Block]:
    """The answer of `explorer sweep --train`: a row a trial, the best first, and where its weights are."""
    best = fact.trials[0]
    several = len({(trial.model, trial.opening, trial.data) for trial in fact.trials}) > 1
    figures = ("lr", "batch", "epochs", "best", fact.loss, "accuracy")
    columns = (
        Column("row", "right", drop=5),
        *([Column("model", shrink=True), Column("data", shrink=True)] if several else []),
        *(Column(name, "right", drop=4 * (name == "best")) for name in figures),
        Column("optimizer", drop=2),
        Column("time", "right", drop=3),
        Column("", role="warning"),
    )
    rows = [_row(at, trial, several) for at, trial in enumerate(fact.trials, 1)]
    said = ("best is ", Span(f"lr {best.rate:g}, batch {best.batch:,}", "strong"), *accuracy_said(best))
    blocks: list[Block] = [*head(fact, f"seed {fact.seed}"), Table(columns, rows), Line(), Line(said, 2)]
    if fact.written:
        return [*blocks, Line(), *written(fact.written), Line(tuple(done_and_kept(fact)), 2)]
    hint = Span("--take 1:best.ckpt writes the weights of row 1", "quiet")
    return [*blocks, Line(hint, 2), Line(tuple(done_and_kept(fact)), 2)]


def _row(at: int, trial: TrainingTrial, several: bool) -> Sequence[Cell]:
    known = trial.loss is not None
    return (
        Span(f"{at}", "quiet"),
        *([printable(trial.model), printable(trial.data)] if several else []),
        Span(f"{trial.rate:g}", "figure", f"{trial.rate!r}", trial.rate),
        f"{trial.batch:,}",
        f"{trial.epochs:,}",
        f"{trial.best}" if known else "-",
        Span(f"{trial.loss:.4g}", "figure", f"{trial.loss!r}", trial.loss) if known else "-",
        "-" if trial.accuracy is None else share_text(trial.accuracy, 1.0),
        trial.optimizer,
        Span(seconds_text(trial.seconds), "quiet") if known else "-",
        printable(trial.error),
    )
