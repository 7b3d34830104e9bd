"""Evaluation of states and of other models on a data file."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from explorer.base.checked import Count, PathText
from explorer.base.errors import Misuse
from explorer.engine.evaluate import data_file
from explorer.engine.evaluate.data_file import DataFile
from explorer.engine.evaluate.evaluate import evaluate
from explorer.engine.evaluate.predictor import Predictor, Run, of_graph
from explorer.engine.runtime.input_files import InputSpec
from explorer.facts.evaluate.evaluation import Evaluation, Task
from explorer.session.files import opened
from explorer.session.parts.models import Cancel, Models, OnProgress, State


def evaluated(
    states: Sequence[State],
    data: str,
    *,
    labels: str = "",
    inputs: Sequence[str] = (),
    output: str = "",
    batch: int = 64,
    task: Task | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Evaluation:
    """Score models on the samples of a file; see `Session.evaluate`."""
    columns = [name for name in inputs if "=" not in name]
    file = data_file.read(data, labels=labels, inputs=columns, width=lambda: _width(states[0]))
    models = [_predictor(state, file, inputs, output, on_progress) for state in states]
    return evaluate(
        file, models, batch=batch, task=task, named=inputs, on_progress=on_progress, cancel=cancel
    )


def _width(state: State) -> int | None:
    """Number of elements in a sample of a model's only input; None where that is unknown."""
    models, at = state
    try:
        inputs = models.examined(at).info.model.inputs
    except Misuse:
        return None
    shape = inputs[0].shape if len(inputs) == 1 else None
    if not shape or not all(isinstance(size, int) for size in shape[1:]):
        return None
    return math.prod(size for size in shape[1:] if isinstance(size, int))


def _predictor(
    state: State, data: DataFile, named: Sequence[str], output: str, on_progress: OnProgress
) -> Predictor:
    models, at = state
    name = models.label(at)
    opened: Any = models.opened(at, on_progress)
    if not hasattr(opened, "loaded"):
        return of_graph(models.graph(at, on_progress), name, output, models.random_weights())
    bound_module, specs = module_inputs(opened, data, named)
    fallback = next((info.shape[0] for info in bound_module.inputs if info.shape), None)
    run = _named(opened.runner(), specs, _outputs(models, at))
    return Predictor(name, specs, run, output=output, fallback=fallback, notes=models.random_weights())


def module_inputs(opened: Any, data: DataFile, named: Sequence[str]) -> tuple[Any, list[InputSpec]]:
    """The inputs of a module, taken from the data where the module does not state them."""
    free = [part for part in data.parts if part != data.labels and (not named or part in named)]
    kinds = {part: "float32" if data.table else str(data.parts[part].dtype) for part in free}
    described = {part: (kinds[part], (2, *data.parts[part].shape)) for part in free}
    bound_module = opened.taken(described)
    # a module accepts any shape its layers do; the rows of a table get the shape of the input
    specs = [
        InputSpec(info.name, info.dtype, ("batch", *info.shape[1:]) if data.table and info.shape else None)
        for info in bound_module.inputs
    ]
    return bound_module, specs


def _outputs(models: Models, at: int) -> list[str]:
    """Names of a module's outputs from its analysis; empty where it cannot be analyzed."""
    try:
        return [info.name for info in models.examined(at).info.model.outputs]
    except Misuse:
        return []


def _named(
    run: Callable[[Sequence[Any]], Sequence[Any]], inputs: Sequence[InputSpec], outputs: Sequence[str]
) -> Run:
    """A function that returns a module's outputs by name, or by position where the names are unknown."""

    def named(feeds: Mapping[str, Any]) -> dict[str, Any]:
        values = run([feeds[spec.name] for spec in inputs])
        if len(values) != len(outputs):
            return {f"output.{place}" if len(values) > 1 else "output": v for place, v in enumerate(values)}
        return dict(zip(outputs, values, strict=True))

    return named


def evaluate_files(
    *sources: str | os.PathLike[str],
    data: PathText,
    labels: str = "",
    inputs: Sequence[str] = (),
    scores: str = "",
    batch: Count = 64,
    task: Task | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Any,
) -> Evaluation:
    """How well models do on the samples of a file, side by side; arguments as for `Session.evaluate`.

    `options` as for `explorer.session.Session`; a dimension or input need only exist in one of the models.
    """
    with opened(sources, options, on_progress) as sessions:
        return evaluated(
            [(session.parts.models, 0) for session in sessions],
            data,
            labels=labels,
            inputs=inputs,
            output=scores,
            batch=batch,
            task=task,
            on_progress=on_progress,
            cancel=cancel,
        )
