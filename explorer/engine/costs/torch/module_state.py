"""Reads the state that a model's code keeps between two calls: attributes, globals, closure variables.

A model may count its calls or keep a result, and then do other work at its next call. A comparison of two
snapshots, before and after the run, shows whether the run changed state that the next call can read.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import itertools
import os
import random
import sys
import threading
from array import array
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from contextvars import ContextVar
from types import FunctionType, GeneratorType, MemberDescriptorType, MethodType, ModuleType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
import torch
from torch import nn

from explorer.engine.compat.torch import buffers_of, children_of, is_of_torch, parameters_of
from explorer.engine.costs.torch.model_code import is_library_object

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SEQUENCES = (list, tuple, deque, set, frozenset)
_ITERATORS = (itertools.count, itertools.cycle, itertools.islice, itertools.repeat)
_WEAK_DICTS = (WeakKeyDictionary, WeakValueDictionary)
_CODE_TYPES = (FunctionType, MethodType, ModuleType, type, nn.Module)
_CACHED_FUNCTION: Any = type(functools.cache(int))

_MAX_DEPTH = 3
"""Maximum depth of nested containers and objects that are read."""
_MAX_PARTS = 64
"""Maximum number of elements of a container that are read. Of a larger container, only its size is read."""

_MAX_VALUES = 100_000
"""Maximum number of values that a snapshot reads. Of further values, only the identity is compared."""

_OWN_ATTRIBUTES = frozenset(vars(nn.Module()))
"""Attributes that every module has; torch changes some of them in each call."""


def take_snapshot(
    modules: Iterable[nn.Module], functions: Sequence[FunctionType], code_modules: Sequence[ModuleType]
) -> list[Hashable]:
    """Returns the state that the next call can read, as a list that equals another list of equal state.

    Args:
        modules: Modules of the model. Layers of torch keep nothing between calls, apart from buffers, and
            attributes that the model's code sets.
        functions: Functions of the model's code.
        code_modules: Python modules that define these functions.
    """
    reader = _Reader()
    snapshot: list[Hashable] = [tuple(os.environ.items())]
    for shared in (sys, builtins):  # their containers, such as sys.modules, change in any call
        snapshot += [(name, value) for name, value in vars(shared).items() if isinstance(value, _PLAIN)]
    classes: dict[type, None] = {}
    for module in modules:
        attributes = {name: value for name, value in vars(module).items() if name not in _OWN_ATTRIBUTES}
        buffers = buffers_of(module).values()
        snapshot += [module.training, *(id(child) for child in children_of(module).values())]
        parameters = [p for p in parameters_of(module).values() if p is not None]
        snapshot += [reader.read_names(vars(p), 0) for p in parameters if vars(p)]
        if is_of_torch(module):
            snapshot += [id(buffer) for buffer in buffers]
            snapshot += [value for value in attributes.values() if isinstance(value, _PLAIN)]
        else:
            classes[type(module)] = None
            snapshot += [reader.read(buffer, 0) for buffer in buffers]
            snapshot.append(reader.read_names(attributes, 0))
    snapshot += [reader.read_names(dict(vars(kind)), 0) for kind in classes]
    for function in functions:
        snapshot.append(reader.read_names(dict(function.__dict__), 0))
        snapshot += [reader.read(default, 0) for default in function.__defaults__ or ()]
        snapshot += [reader.read(read_cell(cell), 0) for cell in function.__closure__ or ()]
    snapshot += [reader.read_names(dict(vars(module)), 0) for module in code_modules]
    return snapshot


def read_cell(cell: Any) -> Any:
    """Returns the value of a closure's variable, or None if the variable is not set yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


class _Reader:
    """Reads the contents of objects, up to `_MAX_VALUES` values."""

    def __init__(self) -> None:
        self._remaining = _MAX_VALUES
        self._contents: dict[int, Hashable] = {}  # of each object that was read, by its id

    def read_names(self, values: dict[Any, Any], depth: int) -> Hashable:
        """Returns the contents of a dict, without code and without the names that Python itself sets."""
        return tuple(
            (name if isinstance(name, str) else self.read(name, depth + 1), self.read(value, depth + 1))
            for name, value in list(dict.items(values))
            if not (isinstance(name, str) and name.startswith("__")) and not isinstance(value, _CODE_TYPES)
        )

    def read(self, value: Any, depth: int) -> Hashable:
        """Returns a value that changes if the content of `value` changes."""
        self._remaining -= 1
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, torch.Tensor):
            return id(value), _read_numbers(value)
        if isinstance(value, _CODE_TYPES) or depth > _MAX_DEPTH or self._remaining < 0:
            return id(value)
        if isinstance(value, (dict, *_SEQUENCES)) and len(value) > _MAX_PARTS:
            return id(value), len(value)
        if id(value) not in self._contents:
            self._contents[id(value)] = id(value)  # ends the recursion if the object contains itself
            self._contents[id(value)] = self._read_content(value, depth)
        return self._contents[id(value)]

    def _read_content(self, value: Any, depth: int) -> Hashable:
        """Returns the contents of a container, an object of the user, or a generator."""
        if isinstance(value, dict):
            return self.read_names(value, depth)
        if isinstance(value, _SEQUENCES):
            return tuple(self.read(part, depth + 1) for part in list(value))
        if isinstance(value, SimpleNamespace):
            return id(value), self.read_names(dict(vars(value)), depth)
        if isinstance(value, GeneratorType):
            frame = value.gi_frame
            return frame and (frame.f_lasti, self.read_names(dict(frame.f_locals), depth))
        if isinstance(value, _WEAK_DICTS):
            return self.read_names({id(key): part for key, part in value.items()}, depth)
        if isinstance(value, threading.local):
            return self.read_names(dict(vars(value)), depth)
        if isinstance(value, ContextVar):
            return self.read(value.get(None), depth + 1)
        # skip objects of libraries: their attributes are caches, on which no count depends
        if hasattr(value, "__dict__") and not is_library_object(value):
            return id(value), self.read_names({**_read_slots(value), **vars(value)}, depth)
        if not is_library_object(value) and (slots := _read_slots(value)):
            return id(value), self.read_names(slots, depth)
        return _read_state(value)


def _read_slots(value: Any) -> dict[str, Any]:
    """Returns the attributes of an object whose classes name them in `__slots__`."""
    names = [
        name
        for kind in type(value).__mro__
        for name, member in vars(kind).items()
        if isinstance(member, MemberDescriptorType)
    ]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _read_numbers(tensor: torch.Tensor) -> Hashable:
    """Returns the numbers of a small tensor, such as a counter. A tensor on the meta device has none."""
    if type(tensor) not in (torch.Tensor, nn.Parameter, nn.Buffer) or tensor.device.type != "cpu":
        return None
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.numel() > _MAX_PARTS:
        return None
    return repr(tensor.tolist())


def _read_state(value: Any) -> Hashable:
    """Returns the state of a generator of random numbers, an array, a buffer, an iterator or a cache."""
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, torch.Generator):
        return bytes(value.get_state().numpy())
    if isinstance(value, np.ndarray):
        return (id(value), value.tobytes()) if value.size <= _MAX_PARTS else id(value)
    if isinstance(value, (bytearray, array)):
        return id(value), bytes(value[:_MAX_PARTS]), len(value)
    if isinstance(value, (io.StringIO, io.BytesIO)):
        return id(value), None if value.closed else (value.tell(), len(value.getvalue()))
    if isinstance(value, io.IOBase):  # a file that the model opened earlier
        with contextlib.suppress(OSError, ValueError):
            return id(value), value.tell()
    if isinstance(value, _ITERATORS):
        return repr(value)
    if isinstance(value, _CACHED_FUNCTION):
        return id(value), value.cache_info().currsize
    return id(value)
