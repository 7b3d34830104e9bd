"""Analyzes a decode step of a language model: one new token after N cached tokens.

A graph with cache inputs is analyzed at the sizes of one step (`onnx_cache`). A module creates its cache
itself (`module_cache`). A graph without a cache has only the step for the first token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.costs.decode import onnx_cache
from explorer.engine.costs.decode.past_tokens import Inputs, check_past
from explorer.engine.costs.memory.liveness import AnalysisResult
from explorer.engine.graph.model import Model
from explorer.facts import Dim, TensorInfo


class _Examine(Protocol):
    """Analyzes an ONNX model at given sizes."""

    def __call__(self, *, dims: Mapping[str, int], input_shapes: Inputs) -> AnalysisResult: ...


def analyze_graph_step(
    model: Model, past: int, dims: Mapping[str, int], input_shapes: Inputs, examine: _Examine
) -> AnalysisResult:
    """Analyzes one decode step of an ONNX model.

    Args:
        model: Model with cache inputs, or a model that processes full texts.
        past: Number of cached tokens.
        dims: Sizes of dimensions from the user.
        input_shapes: Inputs from the user.
        examine: Analyzes the model at given sizes.

    Raises:
        Misuse: The model has no step of one token, or a size is missing.
    """
    check_past(past)
    cache = onnx_cache.find_cache(model)
    if cache:
        step = onnx_cache.bind_step(model, cache, past, dims, input_shapes)
        step_result = examine(dims=dims, input_shapes=step.input_shapes)
        return AnalysisResult.from_analysis(
            onnx_cache.add_cache_to_analysis(step_result.analysis, cache, step, past),
            step_result.schedule,
            step_result.bounds,
            lambda: step_result.flow,
        )
    shapes = onnx_cache.compute_text_shapes(model, 1, dims, input_shapes)
    if past:
        raise _build_no_cache_error()
    examined = examine(dims=dims, input_shapes=shapes)
    info = examined.info
    decode = {"past": 0, "tokens": 1, "how": "a pass over the first token, with nothing in the cache"}
    totals = replace(info.totals, kv_cache_bytes=0)
    return examined.replace_info(
        replace(info, totals=totals, assumptions={**info.assumptions, "decode": decode})
    )


def list_step_sizes(
    model: Model, past: int, dims: Mapping[str, int], input_shapes: Inputs
) -> tuple[dict[str, int], dict[str, tuple[str | None, tuple[int, ...]]]]:
    """Returns the sizes of named dimensions and of every input in one decode step of an ONNX model.

    An input comes with the dtype that the user gives, or None for the declared one.

    Raises:
        Misuse: See `analyze_graph_step`.
    """
    check_past(past)
    cache = onnx_cache.find_cache(model)
    if not cache:
        if past:
            raise _build_no_cache_error()
        return dict(dims), onnx_cache.compute_text_shapes(model, 1, dims, input_shapes)
    step = onnx_cache.bind_step(model, cache, past, dims, input_shapes)
    return dict(step.dims), dict(step.input_shapes)


def _build_no_cache_error() -> Misuse:
    return Misuse(
        "it has no KV cache, so it has no decode step",
        where="--past",
        hint="export it with its cache as inputs; of a module of transformers --decode counts its own",
        code="no_step",
    )


def analyze_prefill(
    model: Model, tokens: int, dims: Mapping[str, int], input_shapes: Inputs, examine: _Examine
) -> AnalysisResult:
    """Analyzes a pass over a text with an empty cache.

    Raises:
        Misuse: The model cannot process the text at once, or a size is missing.
    """
    cache = onnx_cache.find_cache(model)
    if cache:
        shapes = onnx_cache.bind_step(model, cache, 0, dims, input_shapes, new=tokens).input_shapes
    else:
        shapes = onnx_cache.compute_text_shapes(model, tokens, dims, input_shapes)
    return examine(dims=dims, input_shapes=shapes)


def build_text_shapes(
    inputs: Sequence[TensorInfo], tokens: int
) -> dict[str, tuple[str | None, tuple[int, ...]]]:
    """Returns dtype (None if unknown) and shape of a module's inputs for a text of another length.

    Args:
        inputs: Current inputs; the first is the text: ids (batch, length) or their embeddings.
        tokens: New length.

    Raises:
        Misuse: The model takes no text.
    """
    first = inputs[0].shape if inputs else None
    if not first or (len(first) > 2 and not (inputs[0].dtype or "").startswith("int") and len(first) != 3):
        name = inputs[0].name if inputs else "the model"
        raise Misuse("it does not take a text", where=name, hint="a text is ids (batch, length)")
    axis = 1 if len(first) > 1 else 0
    length = first[axis]
    shapes = {}
    for index, info in enumerate(inputs):
        sizes = tuple(_resize_dim(d, length, tokens, i >= axis) for i, d in enumerate(info.shape or ()))
        shapes[info.name] = info.dtype, sizes if index else (*sizes[:axis], tokens, *sizes[axis + 1 :])
    return shapes


def _resize_dim(dim: Dim, length: Dim, tokens: int, is_text_axis: bool) -> int:
    """Returns the size of an input's dimension for a text of another length."""
    size = dim if isinstance(dim, int) else 1
    return tokens if is_text_axis and dim == length else size
