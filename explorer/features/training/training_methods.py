"""Data files in a session: scores of its models on them, and training on one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from explorer.base.checked import Count, PathText
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import Cancel, OnProgress

if TYPE_CHECKING:
    from explorer.facts.evaluate.evaluation import Evaluation, Task
    from explorer.facts.evaluate.training_run import TrainingRun
    from explorer.session.keywords import TrainingKeywords


def evaluate(
    session: Facade,
    data: PathText,
    *,
    labels: str = "",
    inputs: Sequence[str] = (),
    scores: str = "",
    batch: Count = 64,
    task: Task | None = None,
    states: Sequence[int] = (),
    others: Sequence[str] = (),
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Evaluation:
    """How well states of the session, and other models, do on the samples of a file, side by side.

    Args:
        data: An .npz, .npy or .csv with a sample in each row.
        labels: The array or column that is to be met; by default one that is called labels, label, y,
            targets or target, or the last column.
        inputs: Arrays that go in, in the order of the model's inputs or as 'input=array'; columns of a
            table. By default what is called like the inputs, or what is left.
        scores: The output that is scored; by default the first.
        batch: Samples that run together, where the model does not fix that.
        task: What the labels say; by default told by them and the output.
        states: Models of the history; none means the current one.
        others: Further models, opened as this one was.
        on_progress: Told how many samples are done.
        cancel: Asked at every batch; True stops.

    Raises:
        Misuse: The data does not fit a model, a label is out of range, a number is NaN or Inf.
        BadModel: A model fails.
        Cancelled: `cancel` said so.
    """
    from explorer.features.training.evaluate import evaluated  # onnxruntime

    session_models, beside = session.parts.models, [session.parts.models.beside(source) for source in others]
    every = [(session_models, session_models.at(at)) for at in states or (None,)] + [
        (models, 0) for models in beside
    ]
    try:
        return evaluated(
            every,
            data,
            labels=labels,
            inputs=inputs,
            output=scores,
            batch=batch,
            task=task,
            on_progress=on_progress,
            cancel=cancel,
        )
    finally:
        for models in beside:
            models.close()


def train(session: Facade, data: PathText, **how: Unpack[TrainingKeywords]) -> TrainingRun:
    """Trains a copy of the module that was opened, a small one, on the samples of a file.

    Args:
        data: As for `evaluate`; it is held in memory.
        how: `labels`, `inputs`, `task`, as for `evaluate`; `epochs` (20 passes over the samples), `rate`
            (0.01), `batch` (64 samples a step), `optimizer` ('adam', 'sgd', or 'momentum' of 0.9), `seed`
            (0: of the shuffling, of what is held out, of what the model draws), `held` (0.2, the share
            that is held out, and says which epoch is best); `output`, a checkpoint for the weights of the
            best epoch, which `weights_file` takes, and if it may `overwrite` one; `on_progress`, told
            after every epoch, and `cancel`, asked at every batch: True stops, and nothing is written.

    Raises:
        Misuse: It is no module, the data does not fit it, or the loss is NaN.
        MissingExtra: PyTorch Lightning is not installed.
        BadModel: The model fails.
        Cancelled: `cancel` said so.
    """
    from explorer.features.training.train import trained  # torch, lightning

    return trained(session.parts.models, data, **how)


def module_digest(session: Facade) -> str:
    """Digest of the module that was opened: its layers, its numbers, the files its classes are in.

    Raises:
        Misuse: It is no module.
    """
    from explorer.features.training.train import module_digest  # torch

    return module_digest(session.parts.models)
