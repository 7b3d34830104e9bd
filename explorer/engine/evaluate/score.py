"""Metrics of outputs against labels, accumulated by batch: accuracy, top-5, cross entropy, squared error.

All sums are in float64. The predicted class is the argmax; of equal scores, the lower index wins. If every
row is a distribution, scores are probabilities, otherwise logits. Both losses are summed, because a later
row can show that the scores are logits.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
from msgspec import Struct, field

from explorer.base.errors import Misuse
from explorer.base.units import shape_text
from explorer.engine.runtime.input_files import Array
from explorer.engine.values.agreement import find_unordered, rank_classes
from explorer.facts.evaluate.evaluation import ClassScore, Confusion, Task

_MAX_CONFUSIONS = 100
"""Maximum number of confusions that are listed."""
_PROBABILITY_TOLERANCE = 1e-3
"""Tolerance of a sum of probabilities around 1, also for half precision."""


def suggest_task(labels: Array, output: Array) -> Task:
    """Suggests a task for labels and output.

    Integer labels are classes if a sample has more scores than labels, or if its labels are one-hot.
    """
    if not bool((labels == np.floor(labels)).all()) or math.prod(output.shape[1:]) == 1:
        return "regression"
    if math.prod(labels.shape[1:]) == math.prod(output.shape[1:]):
        return "classification" if _is_one_hot(labels) else "regression"
    return "classification"


def _is_one_hot(labels: Array) -> bool:
    if labels.ndim < 2 or labels.shape[-1] < 2:
        return False
    return bool(((labels == 0) | (labels == 1)).all() and (labels.sum(axis=-1) == 1).all())


def arrange_scores(output: Array, labels: Array | None) -> Array:
    """Returns the scores of an output with the classes on the last axis: [rows, classes].

    The classes are the axis that the labels lack: [N, classes, H, W] for labels [N, H, W]. Without such an
    axis, they are the last axis.
    """
    label_shape = None if labels is None else labels.shape
    if label_shape is not None and output.ndim > 2 and label_shape == (output.shape[0], *output.shape[2:]):
        output = np.moveaxis(output, 1, -1)
    return output.reshape(-1, output.shape[-1])


class ClassMetrics(Struct):
    """Accumulated metrics of a classification.

    Attributes:
        rows: Number of classified rows.
        hits: Number of rows whose label has the highest score.
        top5_hits: Number of rows whose label is among the five highest scores.
        classes: Number of classes.
        undefined: Number of rows whose largest score is NaN or Inf. They have no loss.
        are_distributions: Whether every row so far is a distribution.
        logit_loss, probability_loss: Sums of the cross entropy for either meaning of the scores.
        seen, correct: Numbers of rows and of hits by class.
        wrong_pairs: Numbers of wrong rows by label and prediction.
    """

    rows: int = 0
    hits: int = 0
    top5_hits: int = 0
    classes: int = 0
    undefined: int = 0
    are_distributions: bool = True
    logit_loss: float = 0.0
    probability_loss: float = 0.0
    seen: Counter[int] = field(default_factory=Counter)
    correct: Counter[int] = field(default_factory=Counter)
    wrong_pairs: Counter[tuple[int, int]] = field(default_factory=Counter)

    def add(self, output: Array, labels: Array, where: str, first: int) -> None:
        """Adds a batch.

        Args:
            output: Scores: [rows, classes], or with the classes on another axis (`arrange_scores`).
            labels: One class per row, or one-hot rows.
            where: Path of the data file for messages.
            first: Index of the batch's first sample in the file.

        Raises:
            Misuse: A label is not a class, or the shapes do not match.
        """
        if labels.shape == output.shape and _is_one_hot(labels):
            labels = labels.argmax(axis=-1)
        elif labels.shape == (len(output), 1) and output.ndim == 2:
            labels = labels[:, 0]
        scores = arrange_scores(output, labels).astype(np.float64)
        if scores.shape[0] != labels.size or scores.shape[1] < 2:
            texts = shape_text(labels.shape), shape_text(output.shape)
            raise Misuse(f"labels {texts[0]} do not go with an output {texts[1]}", where=where)
        truth = labels.reshape(-1)
        is_invalid = (truth < 0) | (truth >= scores.shape[1]) | (truth != np.floor(truth))
        if is_invalid.any():
            index = int(np.argmax(is_invalid))
            sample = first + index * len(labels) // max(truth.size, 1) + 1
            label, classes = truth[index], scores.shape[1]
            message = f"the label {label:.12g} in sample {sample:,} is not a class: there are {classes:,}"
            raise Misuse(message, where=where, hint=f"classes are 0 to {scores.shape[1] - 1}")
        self.classes = scores.shape[1]
        self._count(scores, truth.astype(np.int64))

    def _count(self, scores: Array, truth: Array) -> None:
        """Adds the scores of a batch, of shape (rows, classes), and their true classes to the metrics."""
        rank = rank_classes(scores, truth)
        is_undefined = ~np.isfinite(scores.max(axis=1))
        self.rows += len(truth)
        self.hits += int(np.count_nonzero(rank == 0))
        self.top5_hits += int(np.count_nonzero((rank >= 0) & (rank < 5)))
        self.undefined += int(np.count_nonzero(is_undefined))
        self.seen.update(truth.tolist())
        self.correct.update(truth[rank == 0].tolist())
        is_missed = (rank != 0) & ~find_unordered(scores)
        self.wrong_pairs.update(
            zip(truth[is_missed].tolist(), scores[is_missed].argmax(axis=1).tolist(), strict=True)
        )
        valid_scores, valid_truth = scores[~is_undefined], truth[~is_undefined]
        if not len(valid_scores):
            return
        true_scores = valid_scores[np.arange(len(valid_scores)), valid_truth]
        largest_scores = valid_scores.max(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_sums = largest_scores + np.log(np.exp(valid_scores - largest_scores[:, None]).sum(axis=1))
            self.logit_loss += float((log_sums - true_scores).sum())
            self.probability_loss -= float(np.log(np.maximum(true_scores, 0)).sum())
        total = valid_scores.sum(axis=1)
        self.are_distributions &= bool(
            ((valid_scores >= 0).all(axis=1) & (np.abs(total - 1) <= _PROBABILITY_TOLERANCE)).all()
        )

    def compute_figures(self) -> dict[str, Any]:
        """Returns the fields of `ModelScore` for these metrics."""
        defined = self.rows - self.undefined
        are_probabilities = self.are_distributions and defined > 0
        loss = (
            (self.probability_loss if are_probabilities else self.logit_loss) / defined if defined else None
        )
        return {
            "accuracy": self.hits / self.rows,
            "top5": self.top5_hits / self.rows if self.classes > 5 else None,
            "loss": loss,
            "scores": "probabilities" if are_probabilities else "logits",
            "undefined": self.undefined,
            "classes": tuple(ClassScore(c, self.seen[c], self.correct[c]) for c in sorted(self.seen)),
            "confusions": tuple(Confusion(*pair, n) for pair, n in _list_frequent_pairs(self.wrong_pairs)),
            "confused": sum(self.wrong_pairs.values()),
        }


def _list_frequent_pairs(pairs: Counter[tuple[int, int]]) -> list[tuple[tuple[int, int], int]]:
    """Lists the most frequent pairs. Equal counts are ordered by label, so the batch order has no effect."""
    return sorted(pairs.items(), key=lambda pair_and_count: (-pair_and_count[1], pair_and_count[0]))[
        :_MAX_CONFUSIONS
    ]


class NumberMetrics(Struct):
    """Accumulated metrics of a regression.

    Attributes:
        elements: Numbers of finite outputs, by element of a sample.
        undefined: Number of NaN or Inf in the outputs.
        squares: Sums of squared errors, by element of a sample.
        absolute: Sum of absolute errors.
        spread: Sums of squared deviations of the labels from their mean, by element of a sample.
        mean: Means of the labels, by element of a sample.
    """

    elements: Any = 0
    undefined: int = 0
    squares: Any = 0.0
    absolute: float = 0.0
    spread: Any = 0.0
    mean: Any = 0.0

    def add(self, output: Array, labels: Array, where: str, first: int) -> None:
        """Adds a batch of outputs and labels with equally many numbers per sample.

        Raises:
            Misuse: A sample has more or fewer labels than outputs.
        """
        predicted, true = (np.asarray(a, np.float64) for a in (output, labels))
        if predicted.shape != true.shape and math.prod(predicted.shape[1:]) != math.prod(true.shape[1:]):
            texts = shape_text(labels.shape), shape_text(output.shape)
            raise Misuse(f"labels {texts[0]} do not go with an output {texts[1]}", where=where)
        predicted, true = predicted.reshape(len(predicted), -1), true.reshape(len(true), -1)
        is_finite = np.isfinite(predicted)
        self.undefined += int(np.count_nonzero(~is_finite))
        error = np.where(is_finite, predicted - true, 0)
        self.squares = self.squares + (error**2).sum(axis=0)
        self.absolute += float(np.abs(error).sum())
        # Chan, Golub and LeVeque's update of the sum of squared deviations from a running mean
        count = is_finite.sum(axis=0)
        mean = np.where(is_finite, true, 0).sum(axis=0) / np.maximum(count, 1)
        shift, total_count = mean - self.mean, self.elements + count
        share = count / np.maximum(total_count, 1)
        batch_spread = (np.where(is_finite, true - mean, 0) ** 2).sum(axis=0)
        self.spread = self.spread + batch_spread + shift**2 * self.elements * share
        self.mean = self.mean + shift * share
        self.elements = total_count

    def compute_figures(self) -> dict[str, Any]:
        """Returns the fields of `ModelScore` for these metrics."""
        count, squares = int(np.sum(self.elements)), np.atleast_1d(self.squares)
        varied = np.atleast_1d(self.spread) > 0
        r2_values = 1 - squares[varied] / np.atleast_1d(self.spread)[varied]
        return {
            "loss": float(squares.sum()) / count if count else None,
            "mean_absolute": self.absolute / count if count else None,
            "r2": float(r2_values.mean()) if r2_values.size else None,
            "undefined": self.undefined,
        }


Metrics = ClassMetrics | NumberMetrics


def create_metrics(task: Task) -> Metrics:
    """Returns the accumulator of a task's metrics."""
    return ClassMetrics() if task == "classification" else NumberMetrics()
