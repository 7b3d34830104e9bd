"""Scores states and other models on a data file."""

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
from explorer.engine.evaluate.predictor import Predictor, Run, create_graph_predictor
from explorer.engine.runtime.input_files import InputSpec
from explorer.facts.evaluate.evaluation import Evaluation, Task
from explorer.session.files import open_sessions
from explorer.session.parts.models import Cancel, Models, OnProgress, State


def score_models(
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
    file = data_file.read(data, labels=labels, inputs=columns, width=lambda: _count_input_elements(states[0]))
    models = [_make_predictor(state, file, inputs, output, on_progress) for state in states]
    return evaluate(
        file, models, batch=batch, task=task, chosen_parts=inputs, on_progress=on_progress, cancel=cancel
    )


def _count_input_elements(state: State) -> int | None:
    """Return the number of elements in a sample of a model's only input, or None if unknown."""
    models, index = state
    try:
        inputs = models.examine(index).info.model.inputs
    except Misuse:
        return None
    shape = inputs[0].shape if len(inputs) == 1 else None
    if not shape or not all(isinstance(size, int) for size in shape[1:]):
        return None
    return math.prod(size for size in shape[1:] if isinstance(size, int))


def _make_predictor(
    state: State, data: DataFile, named: Sequence[str], output: str, on_progress: OnProgress
) -> Predictor:
    models, index = state
    name = models.label(index)
    opened: Any = models.open_state(index, on_progress)
    if not hasattr(opened, "loaded"):
        return create_graph_predictor(
            models.load_graph(index, on_progress), name, output, models.list_weight_notes()
        )
    bound_module, specs = module_inputs(opened, data, named)
    fallback = next((info.shape[0] for info in bound_module.inputs if info.shape), None)
    run = _name_outputs(opened.runner(), specs, _list_outputs(models, index))
    return Predictor(name, specs, run, output=output, fallback=fallback, notes=models.list_weight_notes())


def module_inputs(opened: Any, data: DataFile, named: Sequence[str]) -> tuple[Any, list[InputSpec]]:
    """Return a module bound to input shapes, and its inputs. The data gives undeclared types and shapes."""
    input_parts = [part for part in data.parts if part != data.labels and (not named or part in named)]
    dtypes = {part: "float32" if data.is_table else str(data.parts[part].dtype) for part in input_parts}
    declarations = {part: (dtypes[part], (2, *data.parts[part].shape)) for part in input_parts}
    bound_module = opened.bind_arrays(declarations)
    # a module accepts any shape that its layers accept; rows of a table are reshaped to the input
    specs = [
        InputSpec(info.name, info.dtype, ("batch", *info.shape[1:]) if data.is_table and info.shape else None)
        for info in bound_module.inputs
    ]
    return bound_module, specs


def _list_outputs(models: Models, index: int) -> list[str]:
    """Return the names of a module's outputs, or an empty list if the module cannot be analyzed."""
    try:
        return [info.name for info in models.examine(index).info.model.outputs]
    except Misuse:
        return []


def _name_outputs(
    run: Callable[[Sequence[Any]], Sequence[Any]], inputs: Sequence[InputSpec], outputs: Sequence[str]
) -> Run:
    """Return a function that runs a module and names its outputs, by position if the numbers differ."""

    def run_by_name(inputs_by_name: Mapping[str, Any]) -> dict[str, Any]:
        values = run([inputs_by_name[spec.name] for spec in inputs])
        if len(values) != len(outputs):
            return {f"output.{index}" if len(values) > 1 else "output": v for index, v in enumerate(values)}
        return dict(zip(outputs, values, strict=True))

    return run_by_name


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
    """Score models on the samples of a file; the arguments are those of `Session.evaluate`.

    `options` are those of `explorer.session.Session`. A dimension or input needs to exist in only one of the
    models.
    """
    with open_sessions(sources, options, on_progress) as sessions:
        return score_models(
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
