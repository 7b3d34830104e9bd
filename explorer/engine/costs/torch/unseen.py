"""Detects work that a run on shapes misses: outside torch, in another thread, or after the run.

Each detection makes the totals lower bounds and adds a row with the reason. Four observations count as missed
work:

- The model starts work in another thread or process, or leaves code that may compute later.
- An operator reads a tensor that no recorded operator produced.
- Python or NumPy reads numbers of a tensor. This does not count if the numbers return unchanged, or if the
  model only compares them.
- The model returns a generator, a function, or an object without a tensor of the run, which may compute
  later.
"""

from __future__ import annotations

import datetime
import decimal
import dis
import enum
import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import PurePath
from types import AsyncGeneratorType, BuiltinFunctionType, CodeType, CoroutineType, FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from explorer.engine.compat.torch import storage_key
from explorer.engine.costs.aten.compared_numbers import is_only_compared
from explorer.engine.costs.torch.data_dependence import find_query_frame
from explorer.engine.costs.torch.model_code import is_library_class, is_library_name
from explorer.engine.costs.torch.module_state import read_cell
from explorer.engine.formats.torch_module.modules import find_held_tensors, read_attributes, walk_contents

_FOREIGN_TENSOR = (
    "a tensor comes from another thread or from native code, where operators are not counted: the figures are"
    " lower bounds"
)
_STARTED_WORK = (
    "the model starts work in another thread or process, where operators are not counted: the figures are"
    " lower bounds"
)
LATER_WORK = (
    "later",
    "the model leaves code that may compute after its run, where operators are not counted: the figures are"
    " lower bounds",
)
"""Name and reason of code that outlives the run."""
_OUTSIDE_TORCH = (
    "numbers leave torch as {form}, and work outside torch is not counted: the figures are lower bounds"
)
_DEFERRED = "the model returns a {type}, which computes when it is read: the figures are lower bounds"
_NO_TENSOR = "the model returns a {type} without a computed tensor: its later computation is not counted"

EXPORTING_METHODS = {
    "data_ptr": "an address",
    "apply_": "Python numbers",
    "map_": "Python numbers",
    "__repr__": "text",
    "__format__": "text",
    "_str": "text",
    "__reduce_ex__": "bytes",
}
"""Tensor methods that pass numbers to code outside torch, with the form of these numbers."""

_PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None))
_VALUE_TYPES = (
    type, enum.Enum, range, slice, type(...), decimal.Decimal, datetime.date, datetime.time,
    datetime.timedelta, PurePath, np.generic, np.dtype, torch.dtype, torch.device, torch.layout,
    torch.memory_format, torch.Generator,
)  # fmt: skip
"""Types of values, other than `_PLAIN_TYPES`, that compute nothing with tensors."""

_LAZY_TYPES = (Generator, Iterator, CoroutineType, AsyncGeneratorType)
_FUNCTION_TYPES = (FunctionType, MethodType, BuiltinFunctionType, functools.partial)

_PASSIVE_METHODS = ("__init__", "__new__", "__post_init__", "__repr__", "__eq__", "__hash__", "__replace__")
"""Methods that compute nothing with tensors; a dataclass has most of them."""

_CONTAINERS = (Mapping, list, tuple, set, frozenset)

_MULTIPLYING_NAMES = frozenset(
    f"{prefix}{name}"
    for prefix in ("", "_")
    for name in (
        *(
            "matmul",
            "mm",
            "bmm",
            "mv",
            "dot",
            "vdot",
            "addmm",
            "addmv",
            "addbmm",
            "baddbmm",
            "inner",
            "outer",
        ),
        *("einsum", "tensordot", "linear", "bilinear", "multi_dot", "chain_matmul", "matrix_power", "kron"),
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("scaled_dot_product_attention", "multi_head_attention_forward", "cdist"),
    )
)
"""Names of functions and methods of torch that multiply matrices."""

_ARRAY_FORM, _NUMBERS_FORM = "a NumPy array", "Python numbers"
"""Forms in which numbers leave torch."""


class _Array(NamedTuple):
    """A NumPy array that the model got from a tensor, and a copy of its initial contents."""

    values: Any
    initial_values: Any

    def contains_address(self, address: int) -> bool:
        """Whether `address` is within the array's memory."""
        start: int = self.values.__array_interface__["data"][0]
        return bool(start <= address < start + max(self.values.nbytes, 1))

    @property
    def is_untouched(self) -> bool:
        """Whether the array still has its initial contents."""
        return bool(np.array_equal(self.values, self.initial_values))


class UnseenWork:
    """Collector of the work that a run on shapes may miss.

    Attributes:
        work_by_path: Missed work by the path of the module that does it: a name for the row, and the reason.
            The name is a method, a type, 'elsewhere' or 'later'. Each module has only the first reason.
    """

    def __init__(self) -> None:
        self.work_by_path: dict[str, tuple[str, str]] = {}
        self._first_read: tuple[str, str] | None = None
        self._read_count = 0  # numbers that Python or NumPy read
        self._arrays: list[_Array] = []
        # reads whose numbers may return unchanged, by the index of the array; a read without an array has a
        # negative key
        self._pending_reads: dict[int, tuple[str, str, str]] = {}
        self._read_offsets: dict[int, set[int]] = {}  # positions of read elements, by storage
        self._reads_by_location: Counter[tuple[str, CodeType, int]] = Counter()

    def note_foreign_tensor(self, path: str) -> None:
        """Records that the module at `path` uses a tensor that no recorded operator produced."""
        self.work_by_path.setdefault(path, ("elsewhere", _FOREIGN_TENSOR))

    def note_started_work(self, path: str) -> None:
        """Records that the module at `path` starts work in another thread or process, or runs in one."""
        self.work_by_path.setdefault(path, ("elsewhere", _STARTED_WORK))

    def note_later_work(self, path: str) -> None:
        """Records that the module at `path` leaves code that may compute after the run."""
        self.work_by_path.setdefault(path, LATER_WORK)

    def note_memory_access(self, path: str, method: str) -> None:
        """Records that the module at `path` reads numbers through a method of a tensor or of a storage."""
        form = EXPORTING_METHODS.get(method, "memory")
        self.work_by_path.setdefault(path, (method, _OUTSIDE_TORCH.format(form=form)))

    def note_values_read(self, path: str, method: str, tensor: torch.Tensor, values: Any = None) -> None:
        """Records that Python or NumPy reads the values of a tensor.

        Args:
            path: Path of the module that reads the values.
            method: Name of the method: 'numpy', 'tolist' or 'item'.
            tensor: Tensor that is read.
            values: Return value of the method.
        """
        is_inexact = tensor.is_floating_point() or tensor.is_complex()
        if isinstance(values, np.ndarray):
            # the model may return the array unchanged; this reference keeps its address from another array
            self._arrays.append(_Array(values, values.copy()))
            if is_inexact and tensor.numel() > 1:
                self._pending_reads[len(self._arrays) - 1] = path, method, _ARRAY_FORM
        elif not is_inexact and tensor.dim() < 2:
            return  # a scalar or vector of integers holds sizes, positions or counts
        elif is_inexact and method == "tolist" and tensor.numel() > 1:
            self._pending_reads[-1 - len(self._pending_reads)] = path, method, _NUMBERS_FORM
        elif is_inexact and method == "item":
            self._note_number_read(path, tensor)
        self._read_count += tensor.numel()
        self._first_read = self._first_read or (path, method)

    def _note_number_read(self, path: str, tensor: torch.Tensor) -> None:
        """Records that the module at `path` reads a single number.

        A number that the model only compares does not count. The first read at each place in the code does
        not count either, unless it reads another element of a tensor that was read before: a model may read
        single numbers, but many reads suggest a loop over a tensor.
        """
        frame = find_query_frame()
        if frame is None or is_only_compared(frame.f_code, frame.f_lasti):
            return
        location = path, frame.f_code, frame.f_lasti
        self._reads_by_location[location] += 1
        if self._reads_by_location[location] > 1 or self._is_further_element(tensor):
            self.work_by_path.setdefault(path, ("item", _OUTSIDE_TORCH.format(form=_NUMBERS_FORM)))

    def note_number_text(self, path: str, method: str, tensor: torch.Tensor) -> None:
        """Records that the module at `path` formats a single number as text.

        One such text is usually part of a message. Texts of several elements of one tensor count as missed
        work.
        """
        if self._is_further_element(tensor):
            self.note_memory_access(path, method)

    def _is_further_element(self, tensor: torch.Tensor) -> bool:
        """Whether another element of the memory of a tensor was read before."""
        offsets = self._read_offsets.setdefault(storage_key(tensor.untyped_storage()), set())
        offsets.add(int(tensor.storage_offset()))
        return len(offsets) > 1

    def note_values_returned(self, tensor: torch.Tensor) -> None:
        """Records that the model creates a tensor from numbers of Python or NumPy."""
        # a tensor of one number, or from a single number that was read, is not the result of missed work
        if self._first_read is None or self._read_count < 2 or tensor.numel() < 2:
            return
        if self._settle_read_of_array(tensor.data_ptr()):
            return
        if not self._arrays and not tensor.is_floating_point() and tensor.dim() < 2:
            return  # a scalar or vector of integers holds positions or counts
        path, method = self._first_read
        form = _ARRAY_FORM if self._arrays else _NUMBERS_FORM
        self.work_by_path.setdefault(path, (method, _OUTSIDE_TORCH.format(form=form)))

    def finish(self, result: Any, inputs: Any, is_computed: Callable[[torch.Tensor], bool]) -> None:
        """Checks the model's return value, and records numbers that left torch and did not return.

        Args:
            result: Return value of the model.
            inputs: Arguments of the model. An object among them, such as a cache, may be returned as it is.
            is_computed: Function that returns whether the run computed a tensor.
        """
        input_ids = set(map(id, _flatten(inputs)))
        for value in _flatten(result, with_containers=True):
            if isinstance(value, np.ndarray):
                self._check_returned_array(value)
            elif reason := _find_later_work(value, is_computed, is_input=id(value) in input_ids):
                type_name = type(value).__name__
                self.work_by_path.setdefault("", (type_name, reason.format(type=type_name)))
        for path, method, form in self._pending_reads.values():
            self.work_by_path.setdefault(path, (method, _OUTSIDE_TORCH.format(form=form)))

    def _check_returned_array(self, array: Any) -> None:
        """Records missed work if the model returns an array other than the unchanged memory of a tensor."""
        address = array.__array_interface__["data"][0]
        if not self._settle_read_of_array(address) and self._first_read is not None:
            self.work_by_path.setdefault("", (self._first_read[1], _OUTSIDE_TORCH.format(form=_ARRAY_FORM)))

    def _settle_read_of_array(self, address: int) -> bool:
        """Settles the read of an array that contains `address` and is unchanged; returns whether one exists.

        The read of this array missed no work, so it is no longer pending.
        """
        for index, array in enumerate(self._arrays):
            if array.contains_address(address) and array.is_untouched:
                self._pending_reads.pop(index, None)
                return True
        return False


def _find_later_work(value: Any, is_computed: Callable[[torch.Tensor], bool], *, is_input: bool) -> str:
    """Returns the message if a returned value may compute after the run, or ''.

    Args:
        value: Value that the model returns, other than a NumPy array.
        is_computed: Function that returns whether the run computed a tensor.
        is_input: Whether the value is an argument of the model.
    """
    if _is_lazy(value) or _computes_with_layers(type(value)):
        return _DEFERRED
    if isinstance(value, _PLAIN_TYPES):
        return ""
    methods = _list_methods(value)
    module_types = (nn.Module,) if is_input or isinstance(value, torch.Tensor) else (nn.Module, nn.Parameter)
    code_types = (*_FUNCTION_TYPES, *_LAZY_TYPES, *(module_types if methods else ()))
    is_container = isinstance(value, _CONTAINERS)
    # each element of a container is checked as a returned object of its own
    attributes = (
        walk_contents(read_attributes(value)) if is_container or isinstance(value, torch.Tensor) else ()
    )
    if any(isinstance(part, code_types) or _creates_elements(part) for _, part in attributes):
        return _DEFERRED
    if isinstance(value, (torch.Tensor, *_VALUE_TYPES)) or (is_container and not methods):
        return _DEFERRED if _creates_elements(value) else ""
    parts = [part for _, part in walk_contents(value)]
    if any(isinstance(part, module_types if is_container else code_types) for part in parts) or any(
        map(_creates_elements, parts)
    ):
        return _DEFERRED
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    if not is_input and tensors and any(map(_calls_multiplication, methods)):
        return _DEFERRED
    is_result = is_input or is_container or any(map(is_computed, tensors))
    return "" if is_result else _NO_TENSOR


def _creates_elements(value: Any) -> bool:
    """Whether a dictionary calls a function for each key that it lacks."""
    return isinstance(value, defaultdict) and _is_lazy(value.default_factory)


def _is_lazy(value: Any) -> bool:
    """Whether a value computes only when it is read or called."""
    return isinstance(value, _LAZY_TYPES) or (
        callable(value) and not isinstance(value, (nn.Module, type, torch.Tensor))
    )


def _computes_with_layers(class_: type) -> bool:
    """Whether methods of a class read modules or tensors from variables of the function that defines it."""
    for member in vars(class_).values():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        for cell in getattr(function, "__closure__", None) or ():
            if isinstance(read_cell(cell), (nn.Module, torch.Tensor)):
                return True
    return False


def _list_methods(value: Any) -> list[FunctionType]:
    """Returns the functions of the methods and properties that a class of the user's code defines."""
    classes = [base for base in type(value).__mro__ if not is_library_class(base)]
    members = {name: member for base in reversed(classes) for name, member in vars(base).items()}
    functions = []
    for name, member in members.items():
        if isinstance(member, property):
            member = member.fget
        elif isinstance(member, functools.cached_property):
            member = member.func
        elif not isinstance(member, FunctionType):
            member = getattr(type(member), "__get__", None)  # a descriptor of the user's code
        # the methods of a named tuple are those of Python's library
        if (
            isinstance(member, FunctionType)
            and name not in _PASSIVE_METHODS
            and not is_library_name(member.__globals__.get("__name__"))
        ):
            functions.append(member)
    return functions


def _calls_multiplication(function: FunctionType) -> bool:
    """Whether the code of a function multiplies matrices: by an operator, or by a function of torch."""
    names = _MULTIPLYING_NAMES.intersection(function.__code__.co_names)
    return bool(names) or any(
        step.opname.endswith("MATRIX_MULTIPLY") or step.argrepr in ("@", "@=")
        for step in dis.get_instructions(function)
    )


def find_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors in nested containers and object attributes, such as the layers of a cache."""
    return (tensor for _, tensor in find_held_tensors(value))


def _flatten(value: Any, *, with_containers: bool = False) -> Iterator[Any]:
    """Yields the elements of nested tuples, lists, sets and dicts, and the containers if requested."""
    if with_containers and isinstance(value, _CONTAINERS):
        yield value
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        for part in value:
            yield from _flatten(part, with_containers=with_containers)
    else:
        yield value
