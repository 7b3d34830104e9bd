"""Metrics of outputs against labels, added up batch by batch: accuracy, top-5, cross entropy, squared error.

All sums are in float64. The predicted class is that of argmax: of equal scores the lower number. If every row
is a distribution, scores are probabilities, otherwise logits; both sums are kept until all rows were read.
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
from explorer.engine.values.agreement import places, unordered
from explorer.facts.evaluate.evaluation import ClassScore, Confusion, Task

_MOST = 100
"""Confusions that are listed."""
_ONE = 1e-3
"""Tolerance of the sum of probabilities around 1, for half precision too."""


def task_of(labels: Array, output: Array) -> Task:
    """The task that labels and output suggest: whole numbers are classes if the output has several scores."""
    if not bool((labels == np.floor(labels)).all()) or math.prod(output.shape[1:]) == 1:
        return "regression"
    if math.prod(labels.shape[1:]) == math.prod(output.shape[1:]):
        return "classification" if _one_hot(labels) else "regression"
    return "classification"


def _one_hot(labels: Array) -> bool:
    if labels.ndim < 2 or labels.shape[-1] < 2:
        return False
    return bool(((labels == 0) | (labels == 1)).all() and (labels.sum(axis=-1) == 1).all())


def choices(output: Array, labels: Array | None) -> Array:
    """Scores with the classes on the last axis: [rows, classes].

    The classes lie on the axis that the labels have not: [N, classes, H, W] for labels [N, H, W].
    """
    lead = None if labels is None else labels.shape
    if lead is not None and output.ndim > 2 and lead == (output.shape[0], *output.shape[2:]):
        output = np.moveaxis(output, 1, -1)
    return output.reshape(-1, output.shape[-1])


class ClassMetrics(Struct):
    """Metrics of a classification."""

    rows: int = 0
    hits: int = 0
    fives: int = 0
    classes: int = 0
    undefined: int = 0
    distributions: bool = True
    of_logits: float = 0.0
    of_probabilities: float = 0.0
    seen: Counter[int] = field(default_factory=Counter)
    correct: Counter[int] = field(default_factory=Counter)
    pairs: Counter[tuple[int, int]] = field(default_factory=Counter)

    def add(self, output: Array, labels: Array, where: str, first: int) -> None:
        """Takes a batch in.

        Args:
            output: Scores: [rows, classes], or with the classes on another axis (`choices`).
            labels: A class for each row, or rows that are 1 at it.
            where: The data file, for messages.
            first: The index of the batch's first sample in the file.

        Raises:
            Misuse: A label is no class, or the shapes do not match.
        """
        if labels.shape == output.shape and _one_hot(labels):
            labels = labels.argmax(axis=-1)
        elif labels.shape == (len(output), 1) and output.ndim == 2:
            labels = labels[:, 0]
        scores = choices(output, labels).astype(np.float64)
        if scores.shape[0] != labels.size or scores.shape[1] < 2:
            texts = shape_text(labels.shape), shape_text(output.shape)
            raise Misuse(f"labels {texts[0]} do not go with an output {texts[1]}", where=where)
        truth = labels.reshape(-1)
        wrong = (truth < 0) | (truth >= scores.shape[1]) | (truth != np.floor(truth))
        if wrong.any():
            at = int(np.argmax(wrong))
            sample = first + at * len(labels) // max(truth.size, 1) + 1
            message = (
                f"the label {truth[at]:.12g} in sample {sample:,} is no class: there are {scores.shape[1]:,}"
            )
            raise Misuse(message, where=where, hint=f"classes are 0 to {scores.shape[1] - 1}")
        self.classes = scores.shape[1]
        self._count(scores, truth.astype(np.int64))

    def _count(self, scores: Array, truth: Array) -> None:
        place = places(scores, truth)
        bad = ~np.isfinite(scores.max(axis=1))
        self.rows += len(truth)
        self.hits += int(np.count_nonzero(place == 0))
        self.fives += int(np.count_nonzero((place >= 0) & (place < 5)))
        self.undefined += int(np.count_nonzero(bad))
        self.seen.update(truth.tolist())
        self.correct.update(truth[place == 0].tolist())
        missed = (place != 0) & ~unordered(scores)
        self.pairs.update(zip(truth[missed].tolist(), scores[missed].argmax(axis=1).tolist(), strict=True))
        good, true = scores[~bad], truth[~bad]
        if not len(good):
            return
        true_scores = good[np.arange(len(good)), true]
        top = good.max(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = top + np.log(np.exp(good - top[:, None]).sum(axis=1))
            self.of_logits += float((spread - true_scores).sum())
            self.of_probabilities -= float(np.log(np.maximum(true_scores, 0)).sum())
        total = good.sum(axis=1)
        self.distributions &= bool(((good >= 0).all(axis=1) & (np.abs(total - 1) <= _ONE)).all())

    def figures(self) -> dict[str, Any]:
        """The fields of `ModelScore` that it fills."""
        good = self.rows - self.undefined
        are_probabilities = self.distributions and good > 0
        loss = (self.of_probabilities if are_probabilities else self.of_logits) / good if good else None
        return {
            "accuracy": self.hits / self.rows,
            "top5": self.fives / self.rows if self.classes > 5 else None,
            "loss": loss,
            "scores": "probabilities" if are_probabilities else "logits",
            "undefined": self.undefined,
            "classes": tuple(ClassScore(c, self.seen[c], self.correct[c]) for c in sorted(self.seen)),
            "confusions": tuple(Confusion(*pair, n) for pair, n in _frequent(self.pairs)),
            "confused": sum(self.pairs.values()),
        }


def _frequent(pairs: Counter[tuple[int, int]]) -> list[tuple[tuple[int, int], int]]:
    """The most frequent first, and of equal ones the lower numbers: no order of batches shows."""
    return sorted(pairs.items(), key=lambda pair_and_count: (-pair_and_count[1], pair_and_count[0]))[:_MOST]


class NumberMetrics(Struct):
    """Metrics of a regression; sums for each number of a sample, as R2 needs them."""

    elements: Any = 0
    undefined: int = 0
    squares: Any = 0.0
    absolute: float = 0.0
    spread: Any = 0.0
    mean: Any = 0.0

    def add(self, output: Array, labels: Array, where: str, first: int) -> None:
        """Takes a batch in: numbers of the same shape, but for axes of size 1 at the end.

        Raises:
            Misuse: The shapes do not belong together.
        """
        predicted, true = (np.asarray(a, np.float64) for a in (output, labels))
        if predicted.shape != true.shape and math.prod(predicted.shape[1:]) != math.prod(true.shape[1:]):
            texts = shape_text(labels.shape), shape_text(output.shape)
            raise Misuse(f"labels {texts[0]} do not go with an output {texts[1]}", where=where)
        predicted, true = predicted.reshape(len(predicted), -1), true.reshape(len(true), -1)
        good = np.isfinite(predicted)
        self.undefined += int(np.count_nonzero(~good))
        gap = np.where(good, predicted - true, 0)
        self.squares = self.squares + (gap**2).sum(axis=0)
        self.absolute += float(np.abs(gap).sum())
        # Chan, Golub and LeVeque's update of a sum of squares around a mean that moves
        count = good.sum(axis=0)
        mean = np.where(good, true, 0).sum(axis=0) / np.maximum(count, 1)
        shift, both = mean - self.mean, self.elements + count
        share = count / np.maximum(both, 1)
        around = (np.where(good, true - mean, 0) ** 2).sum(axis=0)
        self.spread = self.spread + around + shift**2 * self.elements * share
        self.mean = self.mean + shift * share
        self.elements = both

    def figures(self) -> dict[str, Any]:
        """The fields of `ModelScore` that it fills."""
        some, squares = int(np.sum(self.elements)), np.atleast_1d(self.squares)
        varied = np.atleast_1d(self.spread) > 0
        each = 1 - squares[varied] / np.atleast_1d(self.spread)[varied]
        return {
            "loss": float(squares.sum()) / some if some else None,
            "mean_absolute": self.absolute / some if some else None,
            "r2": float(each.mean()) if each.size else None,
            "undefined": self.undefined,
        }


Metrics = ClassMetrics | NumberMetrics


def metrics_of(task: Task) -> Metrics:
    """The accumulator of a task's metrics."""
    return ClassMetrics() if task == "classification" else NumberMetrics()
