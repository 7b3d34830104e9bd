"""Session methods that score models on a data file, and train a module on one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from explorer.base.checked import Count, PathText
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import Cancel, OnProgress

if TYPE_CHECKING:
    from explorer.facts.evaluate.evaluation import Evaluation, Task
    from explorer.facts.evaluate.training_run import TrainingRun
    from explorer.session.parts.keywords import TrainingKeywords


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
    """Score states of the session, and other models, on the samples of a file.

    Args:
        data: Path of an .npz, .npy or .csv file with one sample per row.
        labels: Name of the array or column with the labels. The default is labels, label, y, targets or
            target, or the last column.
        inputs: Names of the input arrays, in the order of the model's inputs or as 'input=array', or columns
            of a table. The default is the arrays named like the inputs, or all remaining ones.
        scores: Name of the output to score; the default is the first output.
        batch: Number of samples per run, if the model leaves the batch open.
        task: Kind of task. None derives it from the labels and the output.
        states: Indices of states of the history; empty selects the current state.
        others: Paths or names of further models. They are opened with the session's options.
        on_progress: Callback that receives the number of completed samples.
        cancel: Callback that is polled at every batch; the work stops when it returns True.

    Raises:
        Misuse: The data does not fit a model, a label is out of range, or a number is NaN or Inf.
        BadModel: A model fails.
        Cancelled: `cancel` returned True.
    """
    from explorer.features.training.evaluate import score_models  # imports onnxruntime

    own_models = session.parts.models
    other_models = [own_models.open_other(source) for source in others]
    own_states = [(own_models, own_models.resolve_index(state)) for state in states or (None,)]
    other_states = [(models, 0) for models in other_models]
    try:
        return score_models(
            [*own_states, *other_states],
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
        for models in other_models:
            models.close()


def train(session: Facade, data: PathText, **options: Unpack[TrainingKeywords]) -> TrainingRun:
    """Train a copy of the opened module on the samples of a file. It is meant for small modules.

    Args:
        data: Path of the data file, as for `evaluate`. The data is held in memory.
        options: `labels`, `inputs` and `task` are those of `evaluate`. `epochs` is the number of passes over
            the samples (20), `rate` the learning rate (0.01), `batch` the number of samples per step (64),
            `optimizer` is 'adam', 'sgd', or 'momentum' of 0.9. `seed` (0) sets the shuffling, the held-out
            samples and the random numbers of the model. `held` is the share of held-out samples (0.2), which
            decide which epoch is best. `output` is a checkpoint file for the weights of the best epoch, which
            `weights_file` accepts; `overwrite` permits replacing it. `on_progress` is called after every
            epoch. `cancel` is polled at every batch; if it returns True, the training stops and no file is
            written.

    Raises:
        Misuse: The model is not a module, the data does not fit it, or the loss is NaN.
        MissingExtra: PyTorch Lightning is not installed.
        BadModel: The model fails.
        Cancelled: `cancel` returned True.
    """
    from explorer.features.training.train import train_module  # imports torch and lightning

    return train_module(session.parts.models, data, **options)


def module_digest(session: Facade) -> str:
    """Return a digest of the opened module: of its layers, its values, and the files of its classes.

    Raises:
        Misuse: The model is not a module.
    """
    from explorer.features.training.train import module_digest  # imports torch

    return module_digest(session.parts.models)
