"""Facts about a training run: the scores of a small model on a data set, epoch by epoch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from explorer.base.checked import Count, Natural, Positive, Spec
from explorer.base.fact import Fact, TableFact
from explorer.base.options import option


class TrainSpec(Spec, frozen=True):
    """Settings of a training run, as the user requests them.

    Attributes:
        epochs: Number of passes over the samples.
        rate: Learning rate.
        batch: Number of samples per step.
        optimizer: Optimizer; 'momentum' is SGD with a momentum of 0.9.
        held: Share of the samples that is held out; they decide which epoch is best.
        seed: Seed of the shuffling, of the held-out samples and of the model's random numbers.
    """

    epochs: Annotated[Count, option("passes over the samples", metavar="N")] = 20
    rate: Annotated[Positive, option("learning rate", flag="--lr", metavar="RATE")] = 1e-2
    batch: Annotated[Count, option("samples of a step", metavar="N")] = 64
    optimizer: Annotated[Literal["adam", "sgd", "momentum"], option("optimizer of the training")] = "adam"
    held: Annotated[
        float,
        Meta(ge=0, lt=1),
        option("share of samples that is held out", metavar="SHARE", reader="share"),
    ] = 0.2
    seed: Annotated[Natural, option("seed of shuffling, held out samples, dropout", metavar="S")] = 0


class EpochScore(Fact, frozen=True):
    """Score after one epoch.

    `loss` is the loss on the training samples during the epoch. `held_loss` and `accuracy` are those of the
    held-out samples after it.
    """

    epoch: int
    loss: float
    held_loss: float
    accuracy: float | None
    seconds: float


class TrainingRun(TableFact, frozen=True, kw_only=True):
    """A training run of one model.

    Attributes:
        source: Name of the model.
        data: Path of the data file.
        task: 'classification' or 'regression'.
        loss: 'cross entropy' for a classification, 'squared error' for a regression.
        samples: Number of training samples.
        held: Number of held-out samples.
        parameters: Number of trained parameters.
        rate: Learning rate.
        batch: Batch size.
        optimizer: Name of the optimizer.
        seed: Seed of the random numbers.
        epochs: Scores of the epochs in order.
        best: Epoch with the lowest held-out loss.
        output: Path of the file with the weights of the best epoch, or '' if no file was requested.
        weights: Origin of the weights at the start of the first epoch.
    """

    ROWS: ClassVar[str] = "epochs"

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
