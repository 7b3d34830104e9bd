"""One decode step of an nn.Module that runs over whole texts, and its pass over one; it runs with torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from explorer.engine.costs.decode.step import Inputs, check_past, step_behind, text_shapes
from explorer.engine.costs.memory.liveness import AnalysisResult
from explorer.engine.costs.torch import analyse
from explorer.engine.costs.torch.signature import bind
from explorer.engine.formats.torch_module.loaded import LoadedModule


def step_of_module(
    loaded: LoadedModule,
    past: int,
    dims: Mapping[str, int],
    input_shapes: Inputs,
    **told: Any,
) -> AnalysisResult:
    """Everything known of one decode step of an nn.Module that runs over whole texts.

    Args:
        loaded: From `torch_module.load`.
        past: Tokens before the new one.
        dims: Sizes of dimensions, where the user gave them.
        input_shapes: Inputs, where the user gave them; the length of the text in them does not matter.
        **told: `on_progress` and `cancel`.

    Raises:
        Misuse: No decode step can be derived from it.
    """
    check_past(past)
    bound = bind(loaded, input_shapes, dims)
    inputs = bound.inputs

    def of(tokens: int) -> AnalysisResult:
        return analyse.examine(loaded, input_shapes=text_shapes(inputs, tokens), detailed=True, **told)

    found = step_behind(of, past)
    # who runs or exports the model later does so with the inputs that were asked for
    loaded.bound = bound
    first = inputs[0].shape or ()
    batch = {"batch": first[0]} if len(first) > 1 else {}
    info = replace(found.info, assumptions={**found.info.assumptions, "dims": batch})
    return found.with_info(info)


def prefill_of_module(
    loaded: LoadedModule, tokens: int, dims: Mapping[str, int], input_shapes: Inputs, **told: Any
) -> AnalysisResult:
    """A pass of an nn.Module over a whole text.

    Raises:
        Misuse: It takes no text.
    """
    bound = bind(loaded, input_shapes, dims)
    found = analyse.examine(loaded, input_shapes=text_shapes(bound.inputs, tokens), **told)
    loaded.bound = bound
    return found
