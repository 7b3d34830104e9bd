"""Predicts times of passes: the sum over layer rows of kernel times that were measured on the machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.engine.profile.predict import TimeModel
from explorer.engine.serving.passes import Passes
from explorer.facts import Layer
from explorer.facts.profile.machine import MeasuredMachine
from explorer.facts.serving.serving import ServingTime


def add_predictions(
    times: Sequence[ServingTime], passes: Passes, prompt: int, weights: int, measured: MeasuredMachine
) -> tuple[ServingTime, ...]:
    """Returns the times with predictions for prompt and step; None if a layer row cannot be predicted.

    Args:
        times: Times of the requested contexts and batches.
        passes: The passes of the model.
        prompt: Tokens of the prompt.
        weights: Bytes of all weights. If they exceed the processor's caches, a pass reads them from memory.
        measured: Measurements of the machine.
    """
    model = TimeModel(measured, weights)
    first = {row.batch: _predict_prompt(model, passes, prompt, row.batch) for row in times}
    return tuple(
        [
            replace(
                row,
                first_token_predicted=first[row.batch],
                token_predicted=_predict_step(model, passes, row.context, row.batch),
            )
            for row in times
        ]
    )


def _predict_step(model: TimeModel, passes: Passes, context: int, batch: int) -> float | None:
    """Returns the predicted seconds of a decode step, or None if they cannot be predicted."""
    if not passes.can_predict(batch):
        return None
    return _predict_seconds(model, passes.run_step(context, batch).analysis.layers)


def _predict_prompt(model: TimeModel, passes: Passes, tokens: int, batch: int) -> float | None:
    """Returns the predicted seconds of the prompts of a batch, or None if they cannot be predicted."""
    if not passes.can_count(tokens) or (tokens == 1 and not passes.can_predict(batch)):
        return None
    try:
        return _predict_seconds(model, passes.run_prompts(tokens, batch))
    except BadModel:
        return None


def _predict_seconds(model: TimeModel, layers: Iterable[Layer]) -> float | None:
    """Returns the sum of the predicted seconds of rows, or None if a row cannot be predicted."""
    times = [model.predict(layer) for layer in layers if not layer.group and layer.counted and layer.calls]
    known_times = [seconds for seconds in times if seconds is not None]
    return sum(known_times) + model.call if known_times and len(known_times) == len(times) else None
