"""Facts of a training: what a small model made of a data set, epoch by epoch."""

from __future__ import annotations

from msgspec import Struct


class EpochScore(Struct, frozen=True):
    """One pass: losses of what was trained on, and after it of what was held out, whose accuracy it is."""

    epoch: int
    loss: float
    held_loss: float
    accuracy: float | None
    seconds: float


class TrainingRun(Struct, frozen=True, kw_only=True):
    """A training.

    Attributes:
        source: The model; `data` the file.
        task, loss: 'classification' by 'cross entropy', or 'regression' by 'squared error'.
        samples, held: Trained on, and held out.
        parameters: Numbers that were trained.
        rate, batch, optimizer, seed: How.
        epochs: In order.
        best: The epoch of the lowest held loss, whose weights `output` holds; '' where none was asked for.
        weights: What the first epoch began with.
    """

    source: str
    data: str
    task: str
    loss: str
    samples: int
    held: int
    parameters: int
    rate: float
    batch: int
    optimizer: str
    seed: int
    epochs: tuple[EpochScore, ...]
    best: int
    output: str = ""
    weights: str
    seconds: float
