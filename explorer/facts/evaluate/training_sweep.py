"""Training sweep: many trainings of one module side by side, a row for each way, the best first."""

from __future__ import annotations

import math

from msgspec import Struct


class TrainingTrial(Struct, frozen=True, kw_only=True):
    """One training of several.

    Attributes:
        key: Digest of everything that the figures depend on: the module, the data, how it is trained.
        model, opening, data, seed: As the user named them.
        rate, batch, epochs, optimizer: How.
        task, measure, samples, held, parameters, weights: As of a `TrainingRun`, whose `loss` is `measure`.
        best: The epoch of the lowest held loss, whose figures these are.
        loss: Mean over the held out samples; `accuracy` is of them, too, and None of a regression.
        error: Why it has no figures; '' where it has.
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
        """What trials are sorted by: of a model and its data the lowest loss first, those without last."""
        loss = math.inf if self.loss is None else self.loss
        return self.model, self.data, loss, self.rate, self.batch, self.epochs, self.optimizer, self.seed


class TrainingSweep(Struct, frozen=True, kw_only=True):
    """The answer of `explorer sweep --train`.

    Attributes:
        source, data, task, samples, held, parameters, seed, weights: Of the best trial; `loss` its measure.
        trials: The best first; those without figures last.
        made, kept: Trials that were trained now, and that the file of results had already.
        output: That file; '' for none. `written` is where the weights of a row went.
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
    weights: str
    trials: tuple[TrainingTrial, ...]
    made: int = 0
    kept: int = 0
    output: str = ""
    written: str = ""
    workers: int = 0
    seconds: float = 0.0
