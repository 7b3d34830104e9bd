"""Prediction of the time of a pass from kernels that were timed alone on the same machine, row by row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.engine.profile.predict import TimeModel
from explorer.engine.serving.passes import Passes
from explorer.facts import Layer
from explorer.facts.profile.machine import MeasuredMachine
from explorer.facts.serving.serving import ServingTime


def predicted(
    times: Sequence[ServingTime], passes: Passes, prompt: int, weights: int, measured: MeasuredMachine
) -> tuple[ServingTime, ...]:
    """The times with predictions for the pass and the step; None where a row cannot be predicted.

    Args:
        times: Times of some contexts and batches.
        passes: The model's.
        prompt: Tokens of the prompt.
        weights: Bytes of all weights: a pass reads them from memory when they exceed the processor's caches.
        measured: Measurements of the machine.
    """
    model = TimeModel(measured, weights)
    first = {row.batch: _prompt(model, passes, prompt, row.batch) for row in times}
    return tuple(
        [
            replace(
                row,
                first_token_predicted=first[row.batch],
                token_predicted=_step(model, passes, row.context, row.batch),
            )
            for row in times
        ]
    )


def _step(model: TimeModel, passes: Passes, context: int, batch: int) -> float | None:
    if not passes.predictable(batch):
        return None
    return _seconds(model, passes.step(context, batch).analysis.layers)


def _prompt(model: TimeModel, passes: Passes, tokens: int, batch: int) -> float | None:
    if not passes.counted(tokens) or (tokens == 1 and not passes.predictable(batch)):
        return None
    try:
        return _seconds(model, passes.prompt_rows(tokens, batch))
    except BadModel:
        return None


def _seconds(model: TimeModel, layers: Iterable[Layer]) -> float | None:
    times = [model.seconds(layer) for layer in layers if not layer.group and layer.counted and layer.calls]
    known_times = [seconds for seconds in times if seconds is not None]
    return sum(known_times) + model.call if known_times and len(known_times) == len(times) else None
