"""Text output of `explorer train` and `explorer sweep --train`."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.base.units import exact_text, printable, seconds_text
from explorer.facts.evaluate.training_run import EpochScore, TrainingRun
from explorer.facts.evaluate.training_sweep import TrainingSweep, TrainingTrial
from explorer.report.blocks import Block, Cell, Column, Line, Rows, Span, Table
from explorer.report.present.computed_rows import describe_computed_rows
from explorer.report.present.figures import report_written, share_text

_CHART_WIDTH, _CHART_HEIGHT = 60, 10  # cells, lines
_LEVELS = " ▁▂▃▄▅▆▇█"
"""Bar characters by the number of filled eighths."""


def training_run(fact: TrainingRun) -> list[Block]:
    """Build the output of `explorer train`: settings, loss curve, every epoch, and the checkpoint file."""
    best = fact.epochs[fact.best - 1]
    settings = f"{fact.optimizer}, rate {fact.rate:g}, batch {fact.batch:,}, seed {fact.seed}"
    blocks: list[Block] = [
        *build_head(fact, settings),
        *_draw_curve(f"{fact.loss}, held out", [epoch.held_loss for epoch in fact.epochs]),
        Line(),
        Table(
            (
                *(Column(name, "right") for name in ("epoch", fact.loss, "held out", "accuracy", "time")),
                Column("", role="good"),
            ),
            Rows(lambda epoch: _build_row(epoch, fact), fact.epochs),
            what="epochs" if len(fact.epochs) > 200 else "",
        ),
        Line(),
        Line(("best is epoch ", Span(f"{fact.best}", "strong"), *format_accuracy(best)), 2),
        Line(Span(seconds_text(fact.seconds), "quiet"), 2),
    ]
    return [*blocks, Line(), *report_written(fact.output)] if fact.output else blocks


def build_head(fact: TrainingRun | TrainingSweep, settings: str) -> list[Block]:
    """Build the lines with the model, its data and the settings."""
    samples = f"{fact.samples:,} samples of {printable(fact.data)}, {fact.held:,} held out"
    details = f"{exact_text(fact.parameters)} parameters, {settings}; weights {fact.weights}"
    title = Span(printable(fact.source), "strong"), Span(f"   {fact.task}, {samples}", "quiet")
    return [Line(title), Line(Span(details, "quiet"), 2), Line()]


def format_accuracy(epoch: EpochScore | TrainingTrial) -> Sequence[str | Span]:
    """Format ', accuracy 84.8 %' to end a line; empty if the task has no accuracy."""
    if epoch.accuracy is None:
        return ()
    return ", accuracy ", Span(share_text(epoch.accuracy, 1.0), "figure")


def _build_row(epoch: EpochScore, fact: TrainingRun) -> Sequence[Cell]:
    return (
        f"{epoch.epoch}",
        Span(f"{epoch.loss:.4g}", "figure", f"{epoch.loss!r}", epoch.loss),
        Span(f"{epoch.held_loss:.4g}", "figure", f"{epoch.held_loss!r}", epoch.held_loss),
        "-" if epoch.accuracy is None else share_text(epoch.accuracy, 1.0),
        Span(seconds_text(epoch.seconds), "quiet"),
        "best" if epoch.epoch == fact.best else "",
    )


def _draw_curve(title: str, values: Sequence[float]) -> list[Block]:
    """Draw a bar chart with a column for each epoch.

    Many epochs share columns, each with its last epoch's value.
    """
    step = -(-len(values) // _CHART_WIDTH)
    column_values = [values[min(start + step, len(values)) - 1] for start in range(0, len(values), step)]
    column_width = max(_CHART_WIDTH // len(column_values) // 2, 1)
    top = max(column_values) or 1.0
    heights = [round(8 * _CHART_HEIGHT * value / top) for value in column_values]
    lines: list[Block] = [Line(Span(title, "quiet"), 2)]
    for row in reversed(range(_CHART_HEIGHT)):
        bars = "".join(_LEVELS[max(min(height - 8 * row, 8), 0)] * column_width for height in heights)
        edge = f"{top:>8.4g} " if row == _CHART_HEIGHT - 1 else f"{0:>8} " if not row else " " * 9
        lines.append(Line((Span(edge, "quiet"), Span(bars, "bar")), 2))
    return lines


def training_sweep(fact: TrainingSweep) -> list[Block]:
    """Build the output of `explorer sweep --train`: a row for each trial, best first; the checkpoint file."""
    best = fact.trials[0]
    has_several = len({(trial.model, trial.opening, trial.data) for trial in fact.trials}) > 1
    figures = ("lr", "batch", "epochs", "best", fact.loss, "accuracy")
    columns = (
        Column("row", "right", drop=5),
        *(
            [Column("model", shrink=True, paths=True), Column("data", shrink=True, paths=True)]
            if has_several
            else []
        ),
        *(Column(name, "right", drop=4 * (name == "best")) for name in figures),
        Column("optimizer", drop=2),
        Column("time", "right", drop=3),
        Column("", role="warning"),
    )
    rows = [_build_trial(number, trial, has_several) for number, trial in enumerate(fact.trials, 1)]
    summary = ("best is ", Span(f"lr {best.rate:g}, batch {best.batch:,}", "strong"), *format_accuracy(best))
    blocks: list[Block] = [
        *build_head(fact, f"seed {fact.seed}"),
        Table(columns, rows),
        Line(),
        Line(summary, 2),
    ]
    if fact.written:
        return [*blocks, Line(), *report_written(fact.written), Line(tuple(describe_computed_rows(fact)), 2)]
    hint = Span("--take 1:best.ckpt writes the weights of row 1", "quiet")
    return [*blocks, Line(hint, 2), Line(tuple(describe_computed_rows(fact)), 2)]


def _build_trial(number: int, trial: TrainingTrial, has_several: bool) -> Sequence[Cell]:
    is_done = trial.loss is not None
    return (
        Span(f"{number}", "quiet"),
        *([printable(trial.model), printable(trial.data)] if has_several else []),
        Span(f"{trial.rate:g}", "figure", f"{trial.rate!r}", trial.rate),
        f"{trial.batch:,}",
        f"{trial.epochs:,}",
        f"{trial.best}" if is_done else "-",
        Span(f"{trial.loss:.4g}", "figure", f"{trial.loss!r}", trial.loss) if is_done else "-",
        "-" if trial.accuracy is None else share_text(trial.accuracy, 1.0),
        trial.optimizer,
        Span(seconds_text(trial.seconds), "quiet") if is_done else "-",
        printable(trial.error),
    )
