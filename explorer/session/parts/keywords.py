"""Types of keyword arguments that several public functions share; type checkers alone import this module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from explorer.base.checked import Count, Natural, PathText, Positive
from explorer.facts.cost import Hardware, OrderName
from explorer.facts.evaluate.evaluation import Task
from explorer.session.parts.models import Cancel, InputShapes, OnProgress


class _ModelKeywords(TypedDict, total=False):
    inputs: object
    kwargs: Mapping[str, object] | None
    weights: str | None
    weights_file: PathText | None
    input_shapes: InputShapes | None
    trust: bool
    rules: PathText | None
    observe: bool
    past: Natural | None
    shapes: bool
    partial: bool
    workdir: PathText | None
    cache: bool


class OpeningKeywords(_ModelKeywords, total=False):
    """Keywords with which a function opens each of its models; `Session` explains them."""

    dims: Mapping[str, int] | None
    seed: Natural


class PairKeywords(_ModelKeywords, total=False):
    """Keywords with which a function opens two models to compare; a dimension may have several sizes."""

    dims: Mapping[str, int | Sequence[int]] | None


class FormatSweepKeywords(OpeningKeywords, total=False):
    """Keywords of `sweep_formats`: the keywords of `Session`, and settings of the sweep."""

    output: PathText | None
    scheduler: str | None
    workers: Count | None
    on_progress: OnProgress
    cancel: Cancel


class SweepKeywords(FormatSweepKeywords, total=False):
    """Keywords of `sweep_files`: those of `Session`, and those of `Session.sweep` with its seed as
    `first_seed`.
    """

    hardware: Hardware | None
    order: OrderName
    verify: bool
    draws: Count
    first_seed: Natural
    layers: bool


class _DataKeywords(TypedDict, total=False):
    labels: str
    inputs: Sequence[str]
    task: Task | None
    held: float
    seed: Natural
    output: PathText | None
    overwrite: bool
    on_progress: OnProgress
    cancel: Cancel


class TrainingKeywords(_DataKeywords, total=False):
    """Keywords of `Session.train`, which explains them and their defaults."""

    epochs: Count
    rate: Positive
    batch: Count
    optimizer: Literal["adam", "sgd", "momentum"]


class TrainingSweepKeywords(_DataKeywords, total=False):
    """Keywords of `Session.sweep_training`, which explains them."""

    trials: int | None
    take: tuple[int, str] | None
    scheduler: str | None
    workers: Count | None
