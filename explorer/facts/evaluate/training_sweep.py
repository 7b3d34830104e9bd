"""Facts about a training sweep: trials of one module with different settings, the best first."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from explorer.base.checked import Count, Spec
from explorer.base.fact import Fact, TableFact
from explorer.base.options import option


class TrainingSweepSpec(Spec, frozen=True):
    """Trials of a training sweep, as the user requests them.

    Attributes:
        train: Settings and their values or ranges, such as 'lr=1e-4..1e-2,batch=64,256'.
        trials: Number of trials that are drawn at random from the ranges, or None for all combinations.
    """

    train: Annotated[
        str | None,
        option(
            "train a small module with every combination of these settings, in place of tiling it:\n"
            "lr=1e-4..1e-2,batch=64,256 (lr, batch, epochs, optimizer; a range of lr multiplies by 10,\n"
            "other ranges by 2)",
            manual="train a small module on `--data` with every combination of these settings, in place of"
            " tiling it, and list the best first: `lr=1e-4..1e-2,batch=64,256` (`lr`, `batch`, `epochs`,"
            " `optimizer`; a range of `lr` multiplies by 10, other ranges by 2); `--take 1:best.ckpt` writes"
            " the weights of a row",
            metavar="VALUES",
        ),
    ] = None
    trials: Annotated[
        Count | None,
        option("number of trainings, drawn at random from the ranges of --train", metavar="N"),
    ] = None


class TrainingTrial(Fact, frozen=True, kw_only=True):
    """One training run of a sweep.

    Attributes:
        key: Digest of everything that determines the figures: module, data and training settings.
        model: Name of the model, as the user typed it.
        opening: Options with which the model was opened, as the user typed them.
        data: Path of the data file.
        seed: Seed of the random numbers.
        rate: Learning rate.
        batch: Batch size.
        epochs: Number of epochs.
        optimizer: Name of the optimizer.
        task: 'classification' or 'regression'.
        measure: Name of the loss function: 'cross entropy' or 'squared error'.
        samples: Number of training samples.
        held: Number of held-out samples.
        parameters: Number of trained parameters.
        weights: Origin of the weights at the start.
        best: Epoch with the lowest held-out loss. The figures are those of this epoch.
        loss: Value of the loss function, the mean over the held-out samples.
        accuracy: Accuracy on the held-out samples, 0 to 1, or None for a regression.
        error: Reason why the trial has no figures, or '' if it has them.
    """

    key: str
    model: str
    opening: str = ""
    data: str
    seed: int = 0
    rate: float = 1e-2
    batch: int = 64
    epochs: int = 20
    optimizer: str = "adam"
    task: str = ""
    measure: str = ""
    samples: int = 0
    held: int = 0
    parameters: int = 0
    weights: str = ""
    best: int = 0
    loss: float | None = None
    accuracy: float | None = None
    seconds: float = 0.0
    error: str = ""

    @property
    def place(self) -> tuple[object, ...]:
        """Sort key: by model and data, then the lowest loss first. Trials without a loss come last."""
        loss = math.inf if self.loss is None else self.loss
        return self.model, self.data, loss, self.rate, self.batch, self.epochs, self.optimizer, self.seed


class TrainingSweep(TableFact, frozen=True, kw_only=True):
    """The answer of `explorer sweep --train`.

    Attributes:
        source: Name of the model of the best trial.
        data: Path of the data file.
        task: 'classification' or 'regression'.
        loss: Name of the loss function, as in `TrainingTrial.measure`.
        samples: Number of training samples.
        held: Number of held-out samples.
        parameters: Number of trained parameters of the best trial.
        seed: Seed of the random numbers.
        weights: Origin of the weights at the start of the best trial.
        trials: Trials, the best first. Trials without figures come last.
        made: Number of trials that were trained now.
        kept: Number of trials that the results file already had.
        output: Path of the results file, or '' for none.
        written: Path of the file with the weights of one trial, or ''.
        workers: Number of worker processes, or 0 if this process did the work.
    """

    ROWS: ClassVar[str] = "trials"

    source: str
    data: str
    task: str
    loss: str
    samples: int
    held: int
    parameters: int
    seed: int
    weights: str
    trials: tuple[TrainingTrial, ...]
    made: int = 0
    kept: int = 0
    output: str = ""
    written: str = ""
    workers: int = 0
    seconds: float = 0.0
