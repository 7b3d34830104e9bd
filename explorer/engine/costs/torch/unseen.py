"""Detects work that a run on shapes cannot see: outside torch, in another thread, or deferred.

Each detection makes the totals a lower bound and adds a row that states the reason. Detected are work started
in another thread or process, and tensors that no recorded operator produced. Numbers passed to Python or
NumPy also count, unless they return unchanged or are only compared. A returned generator counts because it
computes when it is read.
"""

from __future__ import annotations

import dis
import functools
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    CodeType,
    CoroutineType,
    FunctionType,
    MethodType,
)
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from explorer.engine.costs.torch.data_dependence import asking_frame
from explorer.engine.formats.torch_module.modules import contents, held

ELSEWHERE = (
    "a tensor was made where operators are not seen (another thread, native code): the figures are the least"
)
HANDED = "work was given to another thread or process, where it is not seen: the figures are the least"
OUTSIDE = "numbers left torch as {how} and may have been worked on there: the figures are the least"
LATER = "the model returns a {kind}, which computes when it is read: the figures are the least"
NO_TENSOR = "the model returns a {kind}, in which no tensor is found: what it computes later is not counted"

WAYS_OUT = {
    "data_ptr": "an address",
    "untyped_storage": "memory",
    "storage": "memory",
    "apply_": "Python numbers",
    "map_": "Python numbers",
}
"""Tensor methods that expose its numbers to code outside torch, with the form of the numbers."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_LAZY = (Generator, Iterator, CoroutineType, AsyncGeneratorType)
_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType, functools.partial)

_ARRAY, _NUMBERS = "a NumPy array", "Python numbers"


class _Array(NamedTuple):
    """A NumPy array that a model obtained from a tensor, and a copy of its initial contents."""

    values: Any
    before: Any

    def contains_address(self, address: int) -> bool:
        """Whether `address` is within the array's memory."""
        start: int = self.values.__array_interface__["data"][0]
        return bool(start <= address < start + max(self.values.nbytes, 1))

    @property
    def is_untouched(self) -> bool:
        """Whether the contents are unchanged."""
        return bool(np.array_equal(self.values, self.before))


class UnseenWork:
    """Collects the places where a run may have missed work.

    Attributes:
        places: Name of the unseen work and the reason, by the path of the module that contains it.
    """

    def __init__(self) -> None:
        self.places: dict[str, tuple[str, str]] = {}
        self._first_read: tuple[str, str] | None = None
        self._numbers = 0
        self._arrays: list[_Array] = []
        self._pending: dict[int, tuple[str, str, str]] = {}
        self._readings: Counter[tuple[str, CodeType, int]] = Counter()

    def note_foreign_tensor(self, path: str) -> None:
        """Records that the module at `path` uses a tensor that no recorded operator produced."""
        self.places.setdefault(path, ("elsewhere", ELSEWHERE))

    def note_started_work(self, path: str) -> None:
        """Records that the module at `path` starts work in another thread or process, or runs in one."""
        self.places.setdefault(path, ("elsewhere", HANDED))

    def note_memory_access(self, path: str, method: str) -> None:
        """Records that the module at `path` reads numbers through a method in `WAYS_OUT`."""
        self.places.setdefault(path, (method, OUTSIDE.format(how=WAYS_OUT[method])))

    def note_values_read(self, path: str, method: str, tensor: torch.Tensor, values: Any = None) -> None:
        """Records that Python or NumPy gets the values of a tensor.

        Args:
            path: Path of the module that reads them.
            method: Name of the method: 'numpy', 'tolist' or 'item'.
            tensor: Tensor that is read.
            values: Return value of the method.
        """
        is_number = tensor.is_floating_point() or tensor.is_complex()
        if isinstance(values, np.ndarray):
            # the array may return unchanged; keep it alive, so that no other array gets its address
            self._arrays.append(_Array(values, values.copy()))
            if is_number and tensor.numel() > 1:
                self._pending[len(self._arrays) - 1] = path, method, _ARRAY
        elif not is_number and tensor.dim() < 2:
            return  # sizes, positions and counts
        elif is_number and method == "tolist" and tensor.numel() > 1:
            self._pending[-1 - len(self._pending)] = path, method, _NUMBERS
        elif is_number and method == "item":
            self._note_number_read(path)
        self._numbers += tensor.numel()
        self._first_read = self._first_read or (path, method)

    def _note_number_read(self, path: str) -> None:
        """Records that the module at `path` reads one number, unless it only compares the number."""
        frame = asking_frame()
        if frame is None or is_compared(frame.f_code, frame.f_lasti):
            return
        place = path, frame.f_code, frame.f_lasti
        self._readings[place] += 1
        if self._readings[place] > 1:
            self.places.setdefault(path, ("item", OUTSIDE.format(how=_NUMBERS)))

    def note_values_returned(self, tensor: torch.Tensor) -> None:
        """Records that a tensor is created from numbers that Python or NumPy holds."""
        # a single number that was read, or a constant, is not the result of unseen work
        if self._first_read is None or self._numbers < 2 or tensor.numel() < 2:
            return
        for number, array in enumerate(self._arrays):
            if array.contains_address(tensor.data_ptr()) and array.is_untouched:
                self._pending.pop(number, None)
                return
        if not self._arrays and not tensor.is_floating_point() and tensor.dim() < 2:
            return  # positions and counts
        path, method = self._first_read
        self.places.setdefault(path, (method, OUTSIDE.format(how=_ARRAY if self._arrays else _NUMBERS)))

    def finish(self, result: Any) -> None:
        """Checks the model's return value, and reports numbers that left torch and did not return."""
        for value in _flatten(result):
            kind = type(value).__name__
            if isinstance(value, np.ndarray):
                self._array_returned(value)
            elif _is_lazy(value):
                self.places.setdefault("", (kind, LATER.format(kind=kind)))
            elif not isinstance(value, (*_PLAIN, torch.Tensor)):
                parts = [part for _, part in contents(value)]
                if any(isinstance(part, (*_FUNCTIONS, *_LAZY)) for part in parts):
                    self.places.setdefault("", (kind, LATER.format(kind=kind)))
                elif not any(isinstance(part, torch.Tensor) for part in parts):
                    self.places.setdefault("", (kind, NO_TENSOR.format(kind=kind)))
        for path, method, text in self._pending.values():
            self.places.setdefault(path, (method, OUTSIDE.format(how=text)))

    def _array_returned(self, array: Any) -> None:
        address = array.__array_interface__["data"][0]
        for number, entry in enumerate(self._arrays):
            if entry.contains_address(address) and entry.is_untouched:
                self._pending.pop(number, None)
                return
        if self._first_read is not None:
            self.places.setdefault("", (self._first_read[1], OUTSIDE.format(how=_ARRAY)))


def _is_lazy(value: Any) -> bool:
    """Whether a value computes only when it is read or called."""
    return isinstance(value, _LAZY) or (
        callable(value) and not isinstance(value, (nn.Module, type, torch.Tensor))
    )


@functools.cache
def is_compared(code: CodeType, offset: int) -> bool:
    """Whether the function only compares the number read at `offset`, directly or through a variable.

    Args:
        code: Code of the function.
        offset: Byte offset of the instruction that reads the number.
    """
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "NOP")]
    index = next((number for number, step in enumerate(steps) if step.offset == offset), None)
    if index is None:
        return False
    compared = [step for step in steps if step.opname == "COMPARE_OP"]
    if any(_encloses(step, steps[index]) for step in compared):
        return True
    next_step = steps[index + 1] if index + 1 < len(steps) else None
    if next_step is None or not next_step.opname.startswith("STORE_FAST"):
        return False
    # Python 3.13 merges two consecutive instructions
    name = next_step.argval[0] if isinstance(next_step.argval, tuple) else next_step.argval
    loads = [
        step
        for step in steps
        if step.opname.startswith(("LOAD_FAST", "STORE_FAST_LOAD_FAST"))
        and name in (step.argval if isinstance(step.argval, tuple) else (step.argval,))
    ]
    return all(any(_encloses(step, load) for step in compared) for load in loads)


def _encloses(outer: dis.Instruction, inner: dis.Instruction) -> bool:
    """Whether the source range of `outer` contains that of `inner`."""
    a, b = outer.positions, inner.positions
    if a is None or b is None or None in (*a, *b):
        return False
    return (a.lineno, a.col_offset) <= (b.lineno, b.col_offset) and (b.end_lineno, b.end_col_offset) <= (
        a.end_lineno,
        a.end_col_offset,
    )


def held_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Tensors in nested containers and object attributes, such as the layers of a cache."""
    return (tensor for _, tensor in held(value))


def _flatten(value: Any) -> Iterator[Any]:
    """The elements of nested tuples, lists, sets and dicts."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        for part in value:
            yield from _flatten(part)
    else:
        yield value
