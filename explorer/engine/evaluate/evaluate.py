"""Evaluation of models on a data file: every batch through every model, figures added up, nothing held."""

from __future__ import annotations

import time
from collections.abc import Sequence

from explorer.base.errors import Misuse
from explorer.base.units import shape_text
from explorer.engine.evaluate.data_file import DataFile
from explorer.engine.evaluate.predictor import Predictor
from explorer.engine.evaluate.score import Metrics, choices, metrics_of, task_of
from explorer.engine.progress import Cancel, OnProgress, stop_if
from explorer.engine.runtime.input_files import Array
from explorer.engine.values.agreement import Agreement
from explorer.facts import Progress
from explorer.facts.evaluate.evaluation import LOSSES, Evaluation, ModelAgreement, ModelScore, Task


def evaluate(
    data: DataFile,
    models: Sequence[Predictor],
    *,
    batch: int = 64,
    task: Task | None = None,
    named: Sequence[str] = (),
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Evaluation:
    """Models side by side on the samples of a file.

    Args:
        data: The samples.
        models: The first is the one that the others agree with or not.
        batch: Samples that run together.
        task: What the labels say; None: told by their type and the shape of the output.
        named: Which part of the data goes into which input; see `DataFile.assigned`.
        on_progress: Told how many samples are done.
        cancel: Asked at every batch; True stops.

    Raises:
        Misuse: The data does not fit a model, a label is out of range, a number is NaN or Inf.
        BadModel: A model fails.
        Cancelled: `cancel` said so.
    """
    began = time.perf_counter()
    _assign(data, models, named)
    metrics: Sequence[Metrics] = ()
    beside, chosen, done, outputs = [Agreement() for _ in models[1:]], task, 0, 0
    for samples in data.batches(batch):
        stop_if(cancel)
        if on_progress is not None:
            on_progress(Progress("evaluating", done, data.count))
        found = [model.predict(samples) for model in models]
        labels = samples[data.labels] if data.labels else None
        chosen = chosen or (task_of(labels, found[0]) if labels is not None else "agreement")
        for agreement, model, output in zip(beside, models[1:], found[1:], strict=True):
            _agree(agreement, found[0], output, labels, models[0], model)
        outputs = outputs or _outputs(found[0], labels, chosen)
        if labels is not None:
            metrics = metrics or [metrics_of(chosen) for _ in models]
            for one, output in zip(metrics, found, strict=True):
                one.add(output, labels, data.path, done)
        done += len(found[0])
    assert chosen is not None  # a file without samples was refused
    taken = data.columns or tuple(dict.fromkeys(part for model in models for part in model.parts.values()))
    return Evaluation(
        data.path,
        data.count,
        chosen,
        LOSSES[chosen],
        taken,
        data.labels,
        batch,
        outputs,
        tuple(_score(model, at, metrics, beside, chosen) for at, model in enumerate(models)),
        time.perf_counter() - began,
    )


def _assign(data: DataFile, models: Sequence[Predictor], named: Sequence[str]) -> None:
    """Gives every model its parts of the data, if there is something to score it by."""
    if not data.labels and len(models) < 2:
        what = "it has no labels, and one model agrees with itself"
        raise Misuse(what, where=data.path, hint="name them with --labels NAME, or a second model")
    for model in models:
        if not model.parts:
            model.parts = data.assigned(model.inputs, named, model.name)


def _score(
    model: Predictor, at: int, metrics: Sequence[Metrics], beside: Sequence[Agreement], task: Task
) -> ModelScore:
    """What was added up of the model at a place."""
    agreement = _agreement(beside[at - 1], task) if at else None
    found = metrics[at].figures() if metrics else {}
    return ModelScore(
        model.name, model.output, agreement=agreement, seconds=model.seconds, notes=model.notes, **found
    )


def _outputs(output: Array, labels: Array | None, task: Task) -> int:
    """Classes, or numbers of a sample."""
    if task == "regression":
        return int(output[0].size)
    return int(choices(output, labels).shape[1]) if output.ndim > 1 else 1


def _agree(
    agreement: Agreement, first: Array, output: Array, labels: Array | None, a: Predictor, b: Predictor
) -> None:
    if first.shape != output.shape:
        texts = shape_text(output.shape[1:]), shape_text(first.shape[1:])
        what = f"its output is {texts[0]} a sample and that of {a.name} {texts[1]}"
        raise Misuse(what, where=b.name, hint="name the output that is scored with --scores NAME")
    agreement.add(choices(first, labels), choices(output, labels)) if first.ndim > 1 else agreement.add(
        first, output
    )


def _agreement(found: Agreement, task: Task) -> ModelAgreement:
    some = bool(found.elements)
    chosen = task != "regression"
    return ModelAgreement(
        found.snr_db,
        found.cosine,
        found.rms,
        found.max_abs if some else None,
        found.top1 if chosen else None,
        found.top5 if chosen else None,
    )
