"""One decode step of a language model: one new token behind N others, for every figure.

A graph that takes its cache as inputs is analysed at the sizes of one step (`cache_inputs`). A model that
runs over a whole text is not made for one step: what a step with a cache would do is derived from passes
over whole texts (`derived`), and every row that is derived says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from explorer.engine.analysis import cache_inputs
from explorer.engine.analysis.memory import Examined
from explorer.engine.graph import Model
from explorer.errors import Misuse
from explorer.facts import Shape

__all__ = ["step_of_graph"]

Inputs = Mapping[str, tuple[str | None, Shape]]


class Examine(Protocol):
    """Analyses a model at some sizes."""

    def __call__(self, *, dims: Mapping[str, int], input_shapes: Inputs) -> Examined: ...


def step_of_graph(
    model: Model,
    past: int,
    dims: Mapping[str, int],
    input_shapes: Inputs,
    examine: Examine,
) -> Examined:
    """Everything known of one decode step of an ONNX model.

    Args:
        model: With its cache as inputs.
        past: Tokens in the cache.
        dims: Sizes of dimensions, where the user gave them.
        input_shapes: Inputs, where the user gave them.
        examine: Analyses the model with dimensions and inputs of such sizes.

    Raises:
        Misuse: It has no step of one token, or a size has to be given.
    """
    cache = cache_inputs.find(model)
    if not cache.slots:
        raise Misuse(
            "it takes no key-value cache", where="--past", hint="leave --decode out for the whole pass"
        )
    step = cache_inputs.bind(model, cache, past, dims, input_shapes)
    both = examine(dims=dims, input_shapes=step.input_shapes)
    return replace(both, analysis=cache_inputs.with_cache(both.analysis, cache, step, past))
