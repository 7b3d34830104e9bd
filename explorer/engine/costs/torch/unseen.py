"""Work that a run on shapes does not see: it happens outside of torch, in another thread, or only later.

Each such place makes the totals a lower bound, and becomes a row that says why. Work that is given to another
thread or process is not seen, nor what makes a tensor that no operator of the run made. Numbers that went to
Python or NumPy may have been multiplied there, unless they came back as they were. A generator computes when
somebody reads it.
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
"""Methods by which code that is not torch's gets at the numbers of a tensor, and as what, by name."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_LAZY = (Generator, Iterator, CoroutineType, AsyncGeneratorType)
_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType, functools.partial)

_ARRAY, _NUMBERS = "a NumPy array", "Python numbers"


class _Array(NamedTuple):
    """A NumPy array that a model got for a tensor, and a copy of its first contents."""

    values: Any
    before: Any

    def holds(self, address: int) -> bool:
        """Whether memory at `address` is a part of it."""
        start: int = self.values.__array_interface__["data"][0]
        return bool(start <= address < start + max(self.values.nbytes, 1))

    @property
    def is_untouched(self) -> bool:
        """Whether its contents are unchanged."""
        return bool(np.array_equal(self.values, self.before))


class UnseenWork:
    """Where a run may have missed work.

    Attributes:
        places: Name of the work and why it was not seen, by the path of the module around it.
    """

    def __init__(self) -> None:
        self.places: dict[str, tuple[str, str]] = {}
        self._left: tuple[str, str] | None = None
        self._numbers = 0
        self._arrays: list[_Array] = []
        self._open: dict[int, tuple[str, str, str]] = {}
        self._readings: Counter[tuple[str, CodeType, int]] = Counter()

    def made_elsewhere(self, path: str) -> None:
        """The module at `path` uses a tensor that no operator of the run made."""
        self.places.setdefault(path, ("elsewhere", ELSEWHERE))

    def handed_on(self, path: str) -> None:
        """The module at `path` gives work to another thread or process, or runs in one."""
        self.places.setdefault(path, ("elsewhere", HANDED))

    def goes_out(self, path: str, method: str) -> None:
        """The module at `path` reads numbers by one of `WAYS_OUT`."""
        self.places.setdefault(path, (method, OUTSIDE.format(how=WAYS_OUT[method])))

    def leaves(self, path: str, method: str, tensor: torch.Tensor, values: Any = None) -> None:
        """The values of a tensor go to Python or NumPy.

        Args:
            path: The module that asks for them.
            method: The method: 'numpy', 'tolist', 'item'.
            tensor: Whose values they are.
            values: What the method returns.
        """
        is_number = tensor.is_floating_point() or tensor.is_complex()
        if isinstance(values, np.ndarray):
            # it may come back unchanged; keep it, so that no other array gets its address
            self._arrays.append(_Array(values, values.copy()))
            if is_number and tensor.numel() > 1:
                self._open[len(self._arrays) - 1] = path, method, _ARRAY
        elif not is_number and tensor.dim() < 2:
            return  # sizes, positions and counts
        elif is_number and method == "tolist" and tensor.numel() > 1:
            self._open[-1 - len(self._open)] = path, method, _NUMBERS
        elif is_number and method == "item":
            self._read(path)
        self._numbers += tensor.numel()
        self._left = self._left or (path, method)

    def _read(self, path: str) -> None:
        """The module at `path` reads one number, perhaps to compare it with a limit."""
        frame = asking_frame()
        if frame is None or is_compared(frame.f_code, frame.f_lasti):
            return
        place = path, frame.f_code, frame.f_lasti
        self._readings[place] += 1
        if self._readings[place] > 1:
            self.places.setdefault(path, ("item", OUTSIDE.format(how=_NUMBERS)))

    def comes_back(self, tensor: torch.Tensor) -> None:
        """A tensor is made of numbers that Python or NumPy holds."""
        # a single number that was read, or a constant, is no result of unseen work
        if self._left is None or self._numbers < 2 or tensor.numel() < 2:
            return
        for number, array in enumerate(self._arrays):
            if array.holds(tensor.data_ptr()) and array.is_untouched:
                self._open.pop(number, None)
                return
        if not self._arrays and not tensor.is_floating_point() and tensor.dim() < 2:
            return  # positions and counts
        path, method = self._left
        self.places.setdefault(path, (method, OUTSIDE.format(how=_ARRAY if self._arrays else _NUMBERS)))

    def returned(self, result: Any) -> None:
        """The model is done, and `result` is what it returned."""
        for value in _parts(result):
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
        for path, method, text in self._open.values():
            self.places.setdefault(path, (method, OUTSIDE.format(how=text)))

    def _array_returned(self, array: Any) -> None:
        address = array.__array_interface__["data"][0]
        for number, entry in enumerate(self._arrays):
            if entry.holds(address) and entry.is_untouched:
                self._open.pop(number, None)
                return
        if self._left is not None:
            self.places.setdefault("", (self._left[1], OUTSIDE.format(how=_ARRAY)))


def _is_lazy(value: Any) -> bool:
    """Whether a value computes only when it is read or called."""
    return isinstance(value, _LAZY) or (
        callable(value) and not isinstance(value, (nn.Module, type, torch.Tensor))
    )


@functools.cache
def is_compared(code: CodeType, offset: int) -> bool:
    """Whether code compares the number that the instruction at `offset` reads, there or by a variable.

    Args:
        code: Of the function.
        offset: In bytes.
    """
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "NOP")]
    at = next((number for number, step in enumerate(steps) if step.offset == offset), None)
    if at is None:
        return False
    compared = [step for step in steps if step.opname == "COMPARE_OP"]
    if any(_encloses(step, steps[at]) for step in compared):
        return True
    after = steps[at + 1] if at + 1 < len(steps) else None
    if after is None or not after.opname.startswith("STORE_FAST"):
        return False
    # Python 3.13 joins two instructions that follow each other
    name = after.argval[0] if isinstance(after.argval, tuple) else after.argval
    loads = [
        step
        for step in steps
        if step.opname.startswith(("LOAD_FAST", "STORE_FAST_LOAD_FAST"))
        and name in (step.argval if isinstance(step.argval, tuple) else (step.argval,))
    ]
    return all(any(_encloses(step, load) for step in compared) for load in loads)


def _encloses(outer: dis.Instruction, inner: dis.Instruction) -> bool:
    """Whether the source of one instruction is a part of the other's."""
    a, b = outer.positions, inner.positions
    if a is None or b is None or None in (*a, *b):
        return False
    return (a.lineno, a.col_offset) <= (b.lineno, b.col_offset) and (b.end_lineno, b.end_col_offset) <= (
        a.end_lineno,
        a.end_col_offset,
    )


def held_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Tensors in containers and in attributes of objects, however deep, as in the layers of a cache."""
    return (tensor for _, tensor in held(value))


def _parts(value: Any) -> Iterator[Any]:
    """What is in tuples, lists and dicts, one within the other."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        for part in value:
            yield from _parts(part)
    else:
        yield value
