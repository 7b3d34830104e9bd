"""Facts of a training: what a small model made of a data set, epoch by epoch."""

from __future__ import annotations

from msgspec import Struct


class EpochScore(Struct, frozen=True):
    """One pass over the samples.

    Attributes:
        loss: Mean over the samples that were trained on, while it was trained.
        held_loss: Mean over those that were held out, after it; `accuracy` is of them, too, and None
            of a regression.
    """

    epoch: int
    loss: float
    held_loss: float
    accuracy: float | None
    seconds: float


class TrainingRun(Struct, frozen=True):
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
    output: str
    weights: str
    seconds: float


class TrainingTrial(Struct, frozen=True):
    """One training of several.

    Attributes:
        rate, batch, epochs, optimizer: How.
        best: The epoch of the lowest held loss, whose figures these are.
        loss: Mean over the held out samples; `accuracy` is of them, too, and None of a regression.
        error: Why it has no figures; '' where it has.
    """

    rate: float = 1e-2
    batch: int = 64
    epochs: int = 20
    optimizer: str = "adam"
    best: int = 0
    loss: float | None = None
    accuracy: float | None = None
    seconds: float = 0.0
    error: str = ""


class TrainingSweep(Struct, frozen=True):
    """Trainings of one model on one file, side by side.

    Attributes:
        source: The model; `data` the file.
        task, loss: As of a `TrainingRun`.
        samples, held: Trained on, and held out: the same ones in every trial.
        parameters: Numbers that were trained.
        seed: Of every trial.
        trials: The best first: of the lowest held loss; those without figures last.
        output: The checkpoint of the best; '' where none was asked for.
        workers: Processes that worked at it; 0 where it was done in this one.
    """

    source: str
    data: str
    task: str
    loss: str
    samples: int
    held: int
    parameters: int
    seed: int
    trials: tuple[TrainingTrial, ...]
    output: str
    weights: str
    workers: int
    seconds: float
