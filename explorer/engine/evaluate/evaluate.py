"""Evaluates models on a data file: runs every batch through every model and accumulates the metrics."""

from __future__ import annotations

import time
from collections.abc import Sequence

from explorer.base.errors import Misuse
from explorer.base.units import shape_text
from explorer.engine.evaluate.data_file import DataFile
from explorer.engine.evaluate.predictor import Predictor
from explorer.engine.evaluate.score import Metrics, arrange_scores, create_metrics, suggest_task
from explorer.engine.progress import Cancel, OnProgress, stop_if
from explorer.engine.runtime.input_files import Array
from explorer.engine.values.agreement import Agreement
from explorer.facts import Progress
from explorer.facts.evaluate.evaluation import LOSSES, Evaluation, ModelAgreement, ModelScore, Task


def evaluate(
    file: DataFile,
    models: Sequence[Predictor],
    *,
    batch: int = 64,
    task: Task | None = None,
    chosen_parts: Sequence[str] = (),
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Evaluation:
    """Evaluates several models on the samples of a file.

    Args:
        file: Samples and labels.
        models: Models; all others are compared with the first.
        batch: Number of samples that run together.
        task: Meaning of the labels, or None to derive it from their dtype and the output shape.
        chosen_parts: Parts of the data for the inputs; see `DataFile.assign_parts`.
        on_progress: Called with the number of finished samples.
        cancel: Called at every batch; a true result stops the evaluation.

    Raises:
        Misuse: The data does not fit a model, a label is out of range, or a number is NaN or Inf.
        BadModel: A model fails.
        Cancelled: `cancel` returned true.
    """
    began = time.perf_counter()
    _assign_parts(file, models, chosen_parts)
    metrics: Sequence[Metrics] = ()
    agreements, scored_task, finished, output_size = [Agreement() for _ in models[1:]], task, 0, 0
    for samples in file.iterate_batches(batch):
        stop_if(cancel)
        if on_progress is not None:
            on_progress(Progress("evaluating", finished, file.count))
        predictions = [model.predict(samples) for model in models]
        labels = samples[file.labels] if file.labels else None
        scored_task = scored_task or (
            suggest_task(labels, predictions[0]) if labels is not None else "agreement"
        )
        for agreement, model, output in zip(agreements, models[1:], predictions[1:], strict=True):
            _add_agreement(agreement, predictions[0], output, labels, models[0], model)
        output_size = output_size or _get_output_size(predictions[0], labels, scored_task)
        if labels is not None:
            metrics = metrics or [create_metrics(scored_task) for _ in models]
            for metric, output in zip(metrics, predictions, strict=True):
                metric.add(output, labels, file.path, finished)
        finished += len(predictions[0])
    assert scored_task is not None  # a file without samples was refused
    parts = file.columns or tuple(dict.fromkeys(part for model in models for part in model.parts.values()))
    return Evaluation(
        file.path,
        file.count,
        scored_task,
        LOSSES[scored_task],
        parts,
        file.labels,
        batch,
        output_size,
        tuple(
            _build_score(model, index, metrics, agreements, scored_task) for index, model in enumerate(models)
        ),
        time.perf_counter() - began,
    )


def _assign_parts(file: DataFile, models: Sequence[Predictor], chosen_parts: Sequence[str]) -> None:
    """Assigns every model its parts of the data.

    Raises:
        Misuse: There are neither labels nor a second model to compare with.
    """
    if not file.labels and len(models) < 2:
        message = "it has no labels, and there is no second model to compare with"
        raise Misuse(
            message, where=file.path, hint="name the labels with --labels NAME, or name a second model"
        )
    for model in models:
        if not model.parts:
            model.parts = file.assign_parts(model.inputs, chosen_parts, model.name)


def _build_score(
    model: Predictor, index: int, metrics: Sequence[Metrics], agreements: Sequence[Agreement], task: Task
) -> ModelScore:
    """Returns the score of the model at an index, from its metrics."""
    agreement = _compute_agreement(agreements[index - 1], task) if index else None
    figures = metrics[index].compute_figures() if metrics else {}
    return ModelScore(
        model.name, model.output, agreement=agreement, seconds=model.seconds, notes=model.notes, **figures
    )


def _get_output_size(output: Array, labels: Array | None, task: Task) -> int:
    """Returns the number of classes, or of elements per sample for a regression."""
    if task == "regression":
        return int(output[0].size)
    return int(arrange_scores(output, labels).shape[1]) if output.ndim > 1 else 1


def _add_agreement(
    agreement: Agreement, first: Array, output: Array, labels: Array | None, a: Predictor, b: Predictor
) -> None:
    """Adds a batch of the outputs of model `b` and of the first model `a` to the agreement of both.

    Raises:
        Misuse: The outputs have different shapes.
    """
    if first.shape != output.shape:
        texts = shape_text(output.shape[1:]), shape_text(first.shape[1:])
        message = f"its output has shape {texts[0]} for a sample, and that of {a.name} has {texts[1]}"
        raise Misuse(message, where=b.name, hint="name the output that is scored with --scores NAME")
    agreement.add(
        arrange_scores(first, labels), arrange_scores(output, labels)
    ) if first.ndim > 1 else agreement.add(first, output)


def _compute_agreement(agreement: Agreement, task: Task) -> ModelAgreement:
    """Returns the figures of an accumulated agreement; a regression has no top-1 and top-5."""
    is_classification = task != "regression"
    return ModelAgreement(
        agreement.snr_db,
        agreement.cosine,
        agreement.rms,
        agreement.largest_error,
        agreement.top1 if is_classification else None,
        agreement.top5 if is_classification else None,
    )
