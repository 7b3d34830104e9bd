"""Finds code that outlives a run and refers to tensors of the run, so it may compute with them later.

Such code is a function, a generator or an object with `__del__`, in a global variable or behind a weak
reference. A tensor that only data holds, such as a cache, is not a sign of later work.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from types import CellType, FrameType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from explorer.engine.costs.torch.model_code import is_library_code
from explorer.engine.formats.torch_module.modules import read_attributes

_CODE_TYPES = (
    *(FunctionType, MethodType, functools.partial, map, filter),
    *(Generator, Coroutine, AsyncGenerator),
)
_CONTAINERS = (list, tuple, dict, set, Iterator, CellType)
_OTHER_REFERENCES = 2
"""References to a tensor that the search itself holds: an entry of a dict and an argument."""
_REFERENCES_TO_GROUP = 5
"""References to a sequence of tensors: its record, a list, a dict, a variable and an argument."""

_MAX_DEPTH = 4
"""Maximum number of containers between a tensor and the code that refers to it."""
_MAX_HELD = 64
"""Maximum number of tensors for which the objects that hold them are searched."""


def is_held_by_code(
    groups: Sequence[Sequence[torch.Tensor]],
    get_result: Callable[[], Any],
    holders: Iterable[Any],
    is_computed: Callable[[torch.Tensor], bool],
) -> bool:
    """Whether code that outlives the run holds one of the tensors that the run computed.

    Args:
        groups: Tensors that the run recorded, in the sequences that hold them.
        get_result: Returns the return value of the model. The objects in it may hold tensors.
        holders: Other objects that may hold tensors: modules and arguments.
        is_computed: Whether the run computed a tensor.
    """
    tensors: dict[int, torch.Tensor] = {}
    references: Counter[int] = Counter()
    own_groups: set[int] = set()
    for group in {id(group): group for group in groups}.values():
        tensors.update((id(tensor), tensor) for tensor in group)
        if sys.getrefcount(group) <= _REFERENCES_TO_GROUP:  # with more references, an iterator may hold it
            references.update(map(id, group))
            own_groups.add(id(group))
    # all views of a tensor together hold one reference to the tensor
    references.update({id(tensor._base) for tensor in tensors.values() if tensor._is_view()})

    def list_held(keys: Iterable[int]) -> list[int]:
        return [key for key in keys if sys.getrefcount(tensors[key]) > references[key] + _OTHER_REFERENCES]

    referenced_keys = [key for key in list_held(tensors) if is_computed(tensors[key])]
    if not referenced_keys:
        return False
    visited: set[int] = set()
    _count_references(get_result(), references, visited)
    if not list_held(referenced_keys):  # most models keep no tensor, and the search below takes long
        return False
    for value in holders:
        _count_references(vars(value) if isinstance(value, nn.Module) else value, references, visited)
    surviving = [tensors[key] for key in list_held(referenced_keys)[:_MAX_HELD]]
    if not _find_code(surviving, {id(tensors), id(surviving), *own_groups}, 0):
        return False
    # A function that calls itself is garbage that a reference count does not show. The collector is paused
    # while a model is analyzed, so what the run created is in the youngest generation.
    gc.collect(0)
    return _find_code(surviving, {id(tensors), id(surviving), *own_groups}, 0)


def _count_references(value: Any, references: Counter[int], visited: set[int]) -> None:
    """Adds the references to tensors in nested containers and in the attributes of their objects."""
    if isinstance(value, torch.Tensor):
        references[id(value)] += 1
        return
    if id(value) in visited or isinstance(value, (nn.Module, type)):
        return
    visited.add(id(value))
    if isinstance(value, dict):
        for part in value.values():
            _count_references(part, references, visited)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for part in value:
            _count_references(part, references, visited)
    for part in read_attributes(value).values():
        _count_references(part, references, visited)


def _find_code(objects: Sequence[Any], ignored: set[int], depth: int) -> bool:
    """Whether code refers to the objects, directly or through containers and other objects."""
    if depth >= _MAX_DEPTH or not objects:
        return False
    ignored.add(id(objects))
    containers: list[Any] = []
    ignored.add(id(containers))
    referrers = gc.get_referrers(*objects)
    ignored.add(id(referrers))
    for referrer in referrers:
        if id(referrer) in ignored or isinstance(referrer, FrameType):
            continue
        ignored.add(id(referrer))
        if isinstance(referrer, FunctionType) and is_library_code(referrer.__globals__):
            continue  # torch's functions remain if the traceback of an error does
        if isinstance(referrer, _CODE_TYPES) or hasattr(type(referrer), "__del__"):
            return True
        if isinstance(referrer, _CONTAINERS) and not _is_namespace(referrer):
            containers.append(referrer)
    return _find_code(containers, ignored, depth + 1)


def _is_namespace(value: Any) -> bool:
    """Whether a dict holds the names of a Python module, whose functions refer to all of them."""
    return isinstance(value, dict) and "__name__" in value
