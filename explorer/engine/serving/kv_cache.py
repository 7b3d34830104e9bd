"""KV cache of a served model: the tensors that its own code keeps, by groups of equal layers.

(For a decode step outside serving: `costs.decode.module_cache`, `costs.decode.onnx_cache`.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from explorer.engine.compat.transformers import window
from explorer.engine.formats.torch_module.cache_tensors import CacheTensor
from explorer.engine.serving.closed_forms import over_context
from explorer.engine.serving.passes import Passes
from explorer.facts.serving.forms import ClosedForm
from explorer.facts.serving.serving import CacheGroup, ServedCache

_FEW = 5
"""Tokens behind which every layer still grows."""


def windows(layers: Sequence[Any]) -> tuple[int, ...]:
    """Tokens from which on some layers keep no more, ascending; a window of w tokens has w - 1 behind it."""
    sizes = {window(layer) for layer in layers}
    return tuple(sorted({size - 1 for size in sizes if size is not None and size > 2}))


def element_bits(tensor: CacheTensor, bits: float | None) -> float:
    """Bits of an element: `bits` for keys and values, else those of its type."""
    return bits if bits is not None and tensor.keys else 8 * tensor.tensor.element_size()


def nbytes(tensors: Sequence[CacheTensor], bits: float | None) -> int:
    """Bytes of tensors of a cache, with `bits` per element of keys and values."""
    return round(sum(tensor.tensor.numel() * element_bits(tensor, bits) for tensor in tensors) / 8)


def served_cache(passes: Passes, context: int, most: int, bits: float | None, weights: int) -> ServedCache:
    """The cache of one sequence: its groups of layers, its size, and its closed form.

    Args:
        passes: The model's.
        context: Tokens at which shapes are reported.
        most: The largest context of interest.
        bits: Of an element of keys and values; None takes the model's own types.
        weights: Bytes of all weights.
    """
    layers, _ = passes.cache(_FEW)
    form = over_context(lambda size: nbytes(passes.cache(size)[1], bits), windows(layers), most)
    few, more = (nbytes(passes.cache(size)[1], bits) for size in (_FEW, _FEW + 1))
    token = more - few
    states = [tensor for tensor in passes.cache(_FEW)[1] if not tensor.keys]
    return ServedCache(
        groups(passes, context), token, form, nbytes(states, bits), first_beyond(form, weights, 1)
    )


def groups(passes: Passes, context: int) -> tuple[CacheGroup, ...]:
    """Groups of layers with equal caches, in the order of their first layers."""
    layers, cache_tensors = passes.cache(context)
    few = _elements(passes.cache(_FEW)[1])
    more = _elements(passes.cache(_FEW + 1)[1])
    by_layer: dict[int, list[CacheTensor]] = {}
    for tensor in cache_tensors:
        by_layer.setdefault(tensor.layer, []).append(tensor)
    counts: dict[tuple[Any, ...], int] = {}
    for at, tensors in by_layer.items():
        layer = layers[at] if 0 <= at < len(layers) else None
        shapes = tuple([(tensor.name, tuple(tensor.tensor.shape[1:])) for tensor in tensors])
        most_kept = window(layer)
        kind = type(layer).__name__ if layer is not None else "states"
        elements = sum(tensor.tensor.numel() for tensor in tensors)
        key = kind, shapes, more.get(at, 0) - few.get(at, 0), most_kept, elements
        counts[key] = counts.get(key, 0) + 1
    return tuple(
        [
            CacheGroup(kind, count, shapes, growing, most_kept, elements * count)
            for (kind, shapes, growing, most_kept, elements), count in counts.items()
        ]
    )


def _elements(tensors: Sequence[CacheTensor]) -> dict[int, int]:
    elements_by_layer: dict[int, int] = {}
    for tensor in tensors:
        if tensor.keys:
            elements_by_layer[tensor.layer] = elements_by_layer.get(tensor.layer, 0) + tensor.tensor.numel()
    return elements_by_layer


def first_beyond(form: ClosedForm, room: float, batch: int) -> int | None:
    """The least context at which the caches of a batch take more than some bytes; None if they never do.

    A cache never shrinks, so a bisection finds the place.
    """
    if not form.pieces:
        return None
    end = form.pieces[-1]
    if len([c for c in end.coefficients[1:] if c]) == 0 and (form.at(end.first) or 0) * batch <= room:
        return None
    low, high = 0, max(end.first, 1)
    while (form.at(high) or 0) * batch <= room:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if (form.at(middle) or 0) * batch <= room else (low, middle)
    return high
