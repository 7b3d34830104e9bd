"""Evaluation of states and of other models on a data file: each becomes a predictor, whatever it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from explorer.base.errors import Misuse
from explorer.engine.evaluate import data_file
from explorer.engine.evaluate.data_file import DataFile
from explorer.engine.evaluate.evaluate import evaluate
from explorer.engine.evaluate.predictor import Predictor, Run, of_graph
from explorer.engine.runtime.input_files import InputSpec
from explorer.facts.evaluate.evaluation import Evaluation, Task
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
    """Models side by side on the samples of a file; see `Session.evaluate`."""
    columns = [name for name in inputs if "=" not in name]
    file = data_file.read(data, labels=labels, inputs=columns, width=lambda: _width(states[0]))
    models = [_predictor(state, file, inputs, output, on_progress) for state in states]
    return evaluate(
        file, models, batch=batch, task=task, named=inputs, on_progress=on_progress, cancel=cancel
    )


def _width(state: State) -> int | None:
    """Numbers in one sample of a model's only input, where that is known."""
    models, at = state
    try:
        taken = models.examined(at).info.model.inputs
    except Misuse:
        return None
    shape = taken[0].shape if len(taken) == 1 else None
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
    bound, specs = module_inputs(opened, data, named)
    fallback = next((info.shape[0] for info in bound.inputs if info.shape), None)
    run = _named(opened.runner(), specs, _outputs(models, at))
    return Predictor(name, specs, run, output=output, fallback=fallback, notes=models.random_weights())


def module_inputs(opened: Any, data: DataFile, named: Sequence[str]) -> tuple[Any, list[InputSpec]]:
    """The inputs of a module, settled by the data where it does not say what it takes."""
    free = [part for part in data.parts if part != data.labels and (not named or part in named)]
    kinds = {part: "float32" if data.table else str(data.parts[part].dtype) for part in free}
    told = {part: (kinds[part], (2, *data.parts[part].shape)) for part in free}
    bound = opened.taken(told)
    # a module takes what its layers can, but the rows of a table are put into the shape that it says
    specs = [
        InputSpec(info.name, info.dtype, ("batch", *info.shape[1:]) if data.table and info.shape else None)
        for info in bound.inputs
    ]
    return bound, specs


def _outputs(models: Models, at: int) -> list[str]:
    """Names of a module's outputs, if its analysis gives them."""
    try:
        return [info.name for info in models.examined(at).info.model.outputs]
    except Misuse:
        return []


def _named(
    run: Callable[[Sequence[Any]], Sequence[Any]], inputs: Sequence[InputSpec], outputs: Sequence[str]
) -> Run:
    """A module's outputs by the names that its analysis gives them, else by their places."""

    def named(feeds: Mapping[str, Any]) -> dict[str, Any]:
        found = run([feeds[spec.name] for spec in inputs])
        if len(found) != len(outputs):
            return {f"output.{place}" if len(found) > 1 else "output": v for place, v in enumerate(found)}
        return dict(zip(outputs, found, strict=True))

    return named
