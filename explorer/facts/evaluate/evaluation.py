"""Facts about an evaluation: the scores of models on the samples of a file, side by side."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from explorer.base.checked import Count, Spec
from explorer.base.fact import Fact, TableFact
from explorer.base.options import option
from explorer.base.units import join_values

Task = Literal["classification", "regression", "agreement"]
"""Meaning of the labels: a class, numbers to predict, or 'agreement' if there are no labels."""
LOSSES = {"classification": "cross entropy", "regression": "squared error", "agreement": ""}
"""Name of the loss for each `Task`."""


class SampleSpec(Spec, frozen=True):
    """Samples of a data file, as the user requests them.

    Attributes:
        data: Path of the file, with one sample per row.
        labels: Name of the array or column with the labels, or '' for the usual names.
        inputs: Names of the arrays or columns that the model reads, or empty for the usual ones.
        task: Meaning of the labels. None derives it from the labels and the output.
    """

    data: Annotated[
        str,
        option(
            "an .npz, .npy or .csv with a sample in each row",
            manual="an `.npz` (arrays with a sample in each row), `.npy` or `.csv` (a sample in each line)",
            metavar="FILE",
        ),
    ] = ""
    labels: Annotated[
        str,
        option(
            "the array or column with the labels (default: labels, label, y, targets, target; the last"
            " column)",
            manual="array or column with the labels (default: `labels`, `label`, `y`, `targets` or"
            " `target`, or the last column of a table)",
            metavar="NAME",
        ),
    ] = ""
    inputs: Annotated[
        tuple[str, ...],
        option(
            "input arrays or columns, separated by commas, or input=array (default: by name, or the rest)",
            manual="input arrays or columns, separated by commas, in the order of the model's inputs or as"
            " `input=array` (default: those with the names of the inputs, or all others)",
            metavar="NAMES",
            reader="names",
            joined=True,
            write=join_values,
        ),
    ] = ()
    task: Annotated[
        Literal["classification", "regression"] | None,
        option("kind of labels (default: whole numbers are classes)"),
    ] = None


class EvaluateSpec(SampleSpec, frozen=True):
    """An evaluation as the user requests it.

    Attributes:
        scores: Name of the output to score, or '' for the first output.
        batch: Number of samples per run, if the model leaves the batch open.
    """

    scores: Annotated[str, option("the output that is scored (default: the first)", metavar="NAME")] = ""
    batch: Annotated[Count, option("samples that run together", metavar="N")] = 64


class ClassScore(Fact, frozen=True):
    """Score of one class: the number of its samples, and the number that a model classified correctly."""

    label: int
    samples: int
    correct: int


class Confusion(Fact, frozen=True):
    """Number of samples of one class that a model assigned to another class."""

    label: int
    predicted: int
    count: int


class ModelAgreement(Fact, frozen=True):
    """Comparison of the scored output with the first model's.

    Attributes:
        snr_db: Signal-to-noise ratio in dB, 10 log10(sum first**2 / sum (this - first)**2). Infinite if
            nothing differs, minus infinity if NaN or Inf occur in only one of the two, None if there is
            nothing to compare.
        cosine: Cosine of the angle between the two outputs, or None if one is zero throughout or NaN or Inf
            occur in only one of the two.
        rms: Root mean square of the difference: infinite if NaN or Inf occur in only one of the two, None if
            there is nothing to compare.
        max_abs: Largest absolute difference, infinite or None as `rms`.
        top1: Share of samples for which both models choose the same class, or None if the output does not
            choose a class.
        top5: Share of samples for which the first model's class is among the five best, or None if there are
            too few classes.
    """

    snr_db: float | None
    cosine: float | None
    rms: float | None
    max_abs: float | None
    top1: float | None
    top5: float | None


class ModelScore(Fact, frozen=True):
    """Score of one model.

    Attributes:
        source: Name of the model, as the user typed it.
        output: Name of the scored output.
        accuracy: Share of labels that are the best class, 0 to 1.
        top5: Share of labels that are among the five best classes, or None for five classes or fewer.
        loss: Mean loss over the labels, computed in float64: cross entropy in nats, or squared error.
        scores: Kind of the output of a classification: 'probabilities' if every row is a distribution, or
            'logits', to which a softmax is applied.
        mean_absolute: Mean absolute error of a regression.
        r2: Coefficient of determination of a regression: the mean over the predicted numbers with varying
            labels, or None if no label varies.
        undefined: Number of labels for which the output is NaN or Inf. They count as wrong and have no loss.
        agreement: Comparison with the first model, or None for the first model itself.
        classes: Scores of the classes that occur in the labels.
        confusions: Most frequent confusions, at most 100.
        confused: Number of wrong labels in all confusions.
        seconds: Seconds of the model's runs.
        notes: Further remarks, for example that the weights are random.
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


class Evaluation(TableFact, frozen=True):
    """Scores of models side by side on the samples of a file.

    Attributes:
        data: Path of the data file.
        samples: Number of samples in the file, one per row.
        task: Meaning of the labels.
        loss: Name of the loss ('cross entropy', 'squared error').
        inputs: Names of the arrays or columns that the models read.
        labels: Name of the array or column of labels, or '' for none.
        batch: Number of samples per run, unless the model fixes it.
        outputs: Number of classes, or of predicted numbers for each sample.
        models: Scores of the models in the order in which the user named them.
    """

    ROWS: ClassVar[str] = "models"

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
