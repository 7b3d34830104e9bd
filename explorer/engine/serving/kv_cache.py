"""Describes the KV cache of a served model: the tensors that its own code caches, grouped by equal layers.

See `costs.decode.module_cache` and `costs.decode.onnx_cache` for the cache of a single decode step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from explorer.engine.compat.transformers import get_window
from explorer.engine.formats.torch_module.cache_tensors import CacheTensor
from explorer.engine.serving.closed_forms import fit_contexts
from explorer.engine.serving.passes import Passes
from explorer.facts.serving.forms import ClosedForm
from explorer.facts.serving.serving import CacheGroup, ServedCache

_GROWING_TOKENS = 5
"""Number of tokens at which the cache of every layer still grows."""


def list_windows(layers: Sequence[Any]) -> tuple[int, ...]:
    """Returns the context sizes at which the cache of some layers stops growing, ascending.

    A layer with a window of w tokens caches w - 1 tokens.
    """
    sizes = {get_window(layer) for layer in layers}
    return tuple(sorted({size - 1 for size in sizes if size is not None and size > 2}))


def get_element_bits(tensor: CacheTensor, bits: float | None) -> float:
    """Returns the bits of an element of a cache tensor: `bits` for keys and values, else its type's width."""
    return bits if bits is not None and tensor.is_key_or_value else 8 * tensor.tensor.element_size()


def count_bytes(tensors: Sequence[CacheTensor], bits: float | None) -> int:
    """Returns the bytes of cache tensors, with `bits` per element of keys and values."""
    return round(sum(tensor.tensor.numel() * get_element_bits(tensor, bits) for tensor in tensors) / 8)


def describe_cache(
    passes: Passes, context: int, max_context: int, bits: float | None, weights: int
) -> ServedCache:
    """Describes the cache of one sequence: its groups of layers, its size and its closed form.

    Args:
        passes: The passes of the model.
        context: Number of cached tokens at which shapes are reported.
        max_context: Largest context of interest.
        bits: Bits of an element of keys and values, or None for the width of their own types.
        weights: Bytes of all weights, to find the context at which the cache exceeds them.
    """
    layers, _ = passes.build_cache(_GROWING_TOKENS)
    form = fit_contexts(
        lambda size: count_bytes(passes.build_cache(size)[1], bits), list_windows(layers), max_context
    )
    bytes_at_few, bytes_with_one_more = (
        count_bytes(passes.build_cache(size)[1], bits) for size in (_GROWING_TOKENS, _GROWING_TOKENS + 1)
    )
    bytes_per_token = bytes_with_one_more - bytes_at_few
    states = [tensor for tensor in passes.build_cache(_GROWING_TOKENS)[1] if not tensor.is_key_or_value]
    return ServedCache(
        groups=group_layers(passes, context),
        token_bytes=bytes_per_token,
        bytes=form,
        state_bytes=count_bytes(states, bits),
        passes_weights=find_first_beyond(form, weights, 1),
    )


def group_layers(passes: Passes, context: int) -> tuple[CacheGroup, ...]:
    """Groups layers with equal caches, in the order of their first layers."""
    layers, cache_tensors = passes.build_cache(context)
    elements_at_few = _count_elements(passes.build_cache(_GROWING_TOKENS)[1])
    elements_with_one_more = _count_elements(passes.build_cache(_GROWING_TOKENS + 1)[1])
    by_layer: dict[int, list[CacheTensor]] = {}
    for tensor in cache_tensors:
        by_layer.setdefault(tensor.layer, []).append(tensor)
    counts: dict[tuple[Any, ...], int] = {}
    for number, tensors in by_layer.items():
        layer = layers[number] if 0 <= number < len(layers) else None
        shapes = tuple([(tensor.name, tuple(tensor.tensor.shape[1:])) for tensor in tensors])
        window_size = get_window(layer)
        kind = type(layer).__name__ if layer is not None else "states"
        elements = sum(tensor.tensor.numel() for tensor in tensors)
        key = (
            kind,
            shapes,
            elements_with_one_more.get(number, 0) - elements_at_few.get(number, 0),
            window_size,
            elements,
        )
        counts[key] = counts.get(key, 0) + 1
    return tuple(
        [
            CacheGroup(
                kind=kind,
                layers=count,
                shapes=shapes,
                growing=growing,
                window=window_size,
                elements=elements * count,
            )
            for (kind, shapes, growing, window_size, elements), count in counts.items()
        ]
    )


def _count_elements(tensors: Sequence[CacheTensor]) -> dict[int, int]:
    """Returns the number of elements of keys and values, by layer."""
    elements_by_layer: dict[int, int] = {}
    for tensor in tensors:
        if tensor.is_key_or_value:
            elements_by_layer[tensor.layer] = elements_by_layer.get(tensor.layer, 0) + tensor.tensor.numel()
    return elements_by_layer


def find_first_beyond(form: ClosedForm, limit: float, batch: int) -> int | None:
    """Returns the smallest context at which the caches of a batch exceed `limit` bytes.

    Returns None if no context exceeds the limit, or if the form is unknown. A cache never shrinks with the
    context, so a bisection finds this context.
    """
    if not form.pieces:
        return None
    last_piece = form.pieces[-1]
    is_constant_at_end = not any(last_piece.coefficients[1:])
    if is_constant_at_end and (form.at(last_piece.first) or 0) * batch <= limit:
        return None
    low, high = 0, max(last_piece.first, 1)
    while (form.at(high) or 0) * batch <= limit:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if (form.at(middle) or 0) * batch <= limit else (low, middle)
    return high
