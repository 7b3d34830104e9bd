"""Tensors of a KV cache: finds the tensors in a cache object of any class and library.

Modules pass their cache as an opaque object. Its tensors live as long as the cache, and a layer that uses
them counts as reading them.
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
"""Maximum depth of attributes, list items and dictionary values at which an object is searched."""


class CacheTensor(Struct, frozen=True):
    """A tensor of a cache.

    Attributes:
        layer: Index of the cache layer that contains the tensor, or -1 if the cache has no layers.
        name: Name in that layer: 'keys', 'conv_states.0'.
        tensor: Tensor on the meta device.
    """

    layer: int
    name: str
    tensor: torch.Tensor

    @property
    def is_key_or_value(self) -> bool:
        """Whether the tensor holds keys, values or a compressed form of them, and not a recurrent state."""
        return "state" not in self.name and self.tensor.is_floating_point()

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's own elements, even if it is a view of a longer tensor."""
        return self.tensor.numel() * self.tensor.element_size()


def list_cache_tensors(cache: Any) -> tuple[CacheTensor, ...]:
    """Returns each distinct tensor of a cache, in the order of its layers."""
    cache_tensors = []
    for path, tensor in _list_tensors(cache, ()):
        index = next((index for index, part in enumerate(path) if part.isdigit()), -1)
        # the name of a container other than a list of layers is part of the tensor's name: 'rnn_state.0'
        container = (
            ("state",) if len(path) == 1 else () if path[index - 1] == "layers" else path[index - 1 : index]
        )
        name = ".".join((*container, *path[index + 1 :]))
        cache_tensors.append(CacheTensor(int(path[index]) if index >= 0 else -1, name, tensor))
    distinct: dict[int, CacheTensor] = {}
    for cache_tensor in cache_tensors:
        distinct.setdefault(id(cache_tensor.tensor), cache_tensor)
    return tuple(distinct.values())


def _list_tensors(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
    """Yields the (path, tensor) of each tensor in nested containers and object attributes."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _list_tensors(part, (*path, str(name)))
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield from _list_tensors(part, (*path, str(index)))
    elif (
        len(path) < _DEPTH
        and type(value).__module__ not in ("builtins", "torch")
        and hasattr(value, "__dict__")
    ):
        for name, part in vars(value).items():
            if not name.startswith("_") and not isinstance(part, (nn.Module, type)):
                yield from _list_tensors(part, (*path, name))


def find_cache_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors of the caches among the arguments or results of a call."""
    parts = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    )
    for part in parts:
        if is_cache(part):
            yield from (cache_tensor.tensor for cache_tensor in list_cache_tensors(part))


def copy_caches(value: Any) -> Any:
    """Copies the caches in arguments, so that a run does not change the originals; the tensors are shared."""
    if isinstance(value, Mapping):
        return {name: _copy_cache(part) for name, part in value.items()}
    return tuple([_copy_cache(part) for part in value])


def _copy_cache(value: Any) -> Any:
    if not is_cache(value):
        return value
    return copy.deepcopy(
        value, {id(cache_tensor.tensor): cache_tensor.tensor for cache_tensor in list_cache_tensors(value)}
    )
