"""Tensors of a KV cache: the tensors in a cache object of any class and library.

A module passes its cache on as an opaque object. Its tensors live as long as the cache, and count as read in
the layer that reads them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from msgspec import Struct
from torch import nn

from explorer.engine.compat.transformers import is_cache

_DEPTH = 6
"""Most levels of attributes, lists and dicts in a cache."""


class CacheTensor(Struct, frozen=True):
    """A tensor of a cache.

    Attributes:
        layer: Index of the cache layer that holds it; -1 if the cache has no layers.
        name: Its name there: 'keys', 'conv_states.0'.
        tensor: The tensor, on the meta device.
    """

    layer: int
    name: str
    tensor: torch.Tensor

    @property
    def keys(self) -> bool:
        """Whether it holds keys, values or a substitute for them, and no recurrent state."""
        return "state" not in self.name and self.tensor.is_floating_point()

    @property
    def nbytes(self) -> int:
        """Bytes of its own elements, also for a view of a longer tensor."""
        return self.tensor.numel() * self.tensor.element_size()


def tensors_of(cache: Any) -> tuple[CacheTensor, ...]:
    """The tensors of a cache, in the order of its layers."""
    cache_tensors = []
    for path, tensor in _tensors(cache, ()):
        at = next((at for at, piece in enumerate(path) if piece.isdigit()), -1)
        # a container that is no list of layers names its tensors itself: 'rnn_state.0'
        kind = ("state",) if len(path) == 1 else () if path[at - 1] == "layers" else path[at - 1 : at]
        name = ".".join((*kind, *path[at + 1 :]))
        cache_tensors.append(CacheTensor(int(path[at]) if at >= 0 else -1, name, tensor))
    distinct: dict[int, CacheTensor] = {}
    for cache_tensor in cache_tensors:
        distinct.setdefault(id(cache_tensor.tensor), cache_tensor)
    return tuple(distinct.values())


def _tensors(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _tensors(part, (*path, str(name)))
    elif isinstance(value, (list, tuple)):
        for at, part in enumerate(value):
            yield from _tensors(part, (*path, str(at)))
    elif (
        len(path) < _DEPTH
        and type(value).__module__ not in ("builtins", "torch")
        and hasattr(value, "__dict__")
    ):
        for name, part in vars(value).items():
            if not name.startswith("_") and not isinstance(part, (nn.Module, type)):
                yield from _tensors(part, (*path, name))


def within(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of the caches among arguments or results."""
    parts = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    )
    for part in parts:
        if is_cache(part):
            yield from (cache_tensor.tensor for cache_tensor in tensors_of(part))


def unshared(value: Any) -> Any:
    """Arguments with copies of their caches that hold the same tensors, so a run changes no other cache."""
    if isinstance(value, Mapping):
        return {name: _copied(part) for name, part in value.items()}
    return tuple([_copied(part) for part in value])


def _copied(value: Any) -> Any:
    if not is_cache(value):
        return value
    return copy.deepcopy(
        value, {id(cache_tensor.tensor): cache_tensor.tensor for cache_tensor in tensors_of(value)}
    )
