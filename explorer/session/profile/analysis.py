"""Analysis for a profile: what is counted of a model at the sizes at which it is timed."""

from __future__ import annotations

from msgspec.structs import replace

from explorer.engine.progress import Cancel, OnProgress
from explorer.engine.runtime.random_inputs import InputShapes
from explorer.facts import Analysis
from explorer.session.parts.models import Models


def analysis_at(
    models: Models,
    at: int,
    dims: dict[str, int],
    shapes: InputShapes,
    on_progress: OnProgress,
    cancel: Cancel,
) -> Analysis:
    """What is counted at other sizes of the inputs; the session keeps those that it has."""
    opened = models.opened(at, on_progress)
    usual = opened.options
    opened.options = replace(usual, dims=dims, input_shapes={**usual.input_shapes, **shapes})
    try:
        return opened.examine(on_progress=on_progress, cancel=cancel).analysis
    finally:
        opened.options = usual
