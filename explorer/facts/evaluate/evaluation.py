"""Facts of an evaluation: how well models do on the samples of a file, side by side."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Task = Literal["classification", "regression", "agreement"]
"""What labels say: a class, numbers to be met, or (without labels) nothing."""
LOSSES = {"classification": "cross entropy", "regression": "squared error", "agreement": ""}


class ClassScore(Struct, frozen=True):
    """The samples of one class, and how many of them a model put there."""

    label: int
    samples: int
    correct: int


class Confusion(Struct, frozen=True):
    """How often samples of one class were taken for another."""

    label: int
    predicted: int
    count: int


class ModelAgreement(Struct, frozen=True):
    """The scored output beside that of the first model.

    Attributes:
        snr_db: 10 log10(sum first**2 / sum (this - first)**2); infinite if nothing differs, minus infinity
            where one has NaN or Inf and the other has not; None if there is nothing to compare.
        cosine: Of the angle between both; None if one is zero throughout.
        rms, max_abs: Of the difference; None if there is nothing to compare.
        top1: Share of choices that are the same; top5: where the first model's is among the five best. None
            where the output is no choice, or one among few.
    """

    snr_db: float | None
    cosine: float | None
    rms: float | None
    max_abs: float | None
    top1: float | None
    top5: float | None


class ModelScore(Struct, frozen=True):
    """How well one model does.

    Attributes:
        source: What the user calls it.
        output: The output that was scored.
        accuracy, top5: Shares of the labels that are the best class, or among the five best; top5 is None of
            five classes or fewer.
        loss: Mean over the labels, computed in float64: cross entropy in nats, or squared error.
        scores: What the output holds of a classification: 'logits', of which a softmax is taken, or
            'probabilities', where every row is a distribution.
        mean_absolute: Mean absolute error of a regression; r2: its coefficient of determination, the mean
            of those of each number of a sample whose labels vary, None where none does.
        undefined: Labels for which the output is NaN or Inf: they are wrong, and have no loss.
        agreement: With the first model; None for itself.
        classes: Those that the labels name.
        confusions: The most frequent ones, at most 100.
        confused: Wrong labels, of all kinds of confusion.
        seconds: That its runs took.
        notes: What else there is to know: that the weights are random.
    """

    source: str
    output: str
    accuracy: float | None = None
    top5: float | None = None
    loss: float | None = None
    scores: str = ""
    mean_absolute: float | None = None
    r2: float | None = None
    undefined: int = 0
    agreement: ModelAgreement | None = None
    classes: tuple[ClassScore, ...] = ()
    confusions: tuple[Confusion, ...] = ()
    confused: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


class Evaluation(Struct, frozen=True):
    """Models side by side on the samples of a file.

    Attributes:
        data: The file; `samples` are the rows in it.
        task: What the labels say; `loss` is the name of the loss ('cross entropy', 'squared error').
        inputs: Arrays or columns of the file that went in; `labels`: the one that was met, '' for none.
        batch: Samples that ran together, where the model does not fix that.
        outputs: Classes, or numbers that are to be met for each sample.
        models: In the order in which they were named.
    """

    data: str
    samples: int
    task: Task
    loss: str
    inputs: tuple[str, ...]
    labels: str
    batch: int
    outputs: int
    models: tuple[ModelScore, ...]
    seconds: float
