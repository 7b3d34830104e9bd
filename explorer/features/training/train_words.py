"""Training in text, by its epochs: `explorer train`."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.base.units import exact_text, printable, seconds_text
from explorer.facts.evaluate.training_run import EpochScore, TrainingRun
from explorer.facts.evaluate.training_sweep import TrainingSweep, TrainingTrial
from explorer.report.blocks import Block, Cell, Column, Line, Rows, Span, Table
from explorer.report.present.figures import share_text, written

_WIDTH, _HEIGHT = 60, 10
_LEVELS = " ▁▂▃▄▅▆▇█"


def training_run(fact: TrainingRun) -> list[Block]:
    """The answer of `explorer train`: how, the curves, every epoch, and where the best weights are."""
    best = fact.epochs[fact.best - 1]
    how = f"{fact.optimizer}, rate {fact.rate:g}, batch {fact.batch:,}, seed {fact.seed}"
    blocks: list[Block] = [
        *head(fact, how),
        *_curve(f"{fact.loss}, held out", [epoch.held_loss for epoch in fact.epochs]),
        Line(),
        Table(
            (
                *(Column(name, "right") for name in ("epoch", fact.loss, "held out", "accuracy", "time")),
                Column("", role="good"),
            ),
            Rows(lambda epoch: _row(epoch, fact), fact.epochs),
            what="epochs" if len(fact.epochs) > 200 else "",
        ),
        Line(),
        Line(("best is epoch ", Span(f"{fact.best}", "strong"), *accuracy_said(best)), 2),
        Line(Span(seconds_text(fact.seconds), "quiet"), 2),
    ]
    return [*blocks, Line(), *written(fact.output)] if fact.output else blocks


def head(fact: TrainingRun | TrainingSweep, how: str) -> list[Block]:
    """What is trained on what, and how."""
    samples = f"{fact.samples:,} samples of {printable(fact.data)}, {fact.held:,} held out"
    said = f"{exact_text(fact.parameters)} parameters, {how}; weights {fact.weights}"
    title = Span(printable(fact.source), "strong"), Span(f"   {fact.task}, {samples}", "quiet")
    return [Line(title), Line(Span(said, "quiet"), 2), Line()]


def accuracy_said(epoch: EpochScore | TrainingTrial) -> Sequence[str | Span]:
    """The accuracy, where there is one, behind what has it."""
    if epoch.accuracy is None:
        return ()
    return ", accuracy ", Span(share_text(epoch.accuracy, 1.0), "figure")


def _row(epoch: EpochScore, fact: TrainingRun) -> Sequence[Cell]:
    return (
        f"{epoch.epoch}",
        Span(f"{epoch.loss:.4g}", "figure", f"{epoch.loss!r}", epoch.loss),
        Span(f"{epoch.held_loss:.4g}", "figure", f"{epoch.held_loss!r}", epoch.held_loss),
        "-" if epoch.accuracy is None else share_text(epoch.accuracy, 1.0),
        Span(seconds_text(epoch.seconds), "quiet"),
        "best" if epoch.epoch == fact.best else "",
    )


def _curve(title: str, values: Sequence[float]) -> list[Block]:
    """Columns in eighths of a cell from 0 up, one an epoch; of many epochs the last of each column's."""
    step = -(-len(values) // _WIDTH)
    shown = [values[min(at + step, len(values)) - 1] for at in range(0, len(values), step)]
    wide = max(_WIDTH // len(shown) // 2, 1)
    top = max(shown) or 1.0
    heights = [round(8 * _HEIGHT * value / top) for value in shown]
    lines: list[Block] = [Line(Span(title, "quiet"), 2)]
    for row in reversed(range(_HEIGHT)):
        bars = "".join(_LEVELS[max(min(height - 8 * row, 8), 0)] * wide for height in heights)
        edge = f"{top:>8.4g} " if row == _HEIGHT - 1 else f"{0:>8} " if not row else " " * 9
        lines.append(Line((Span(edge, "quiet"), Span(bars, "bar")), 2))
    return lines
