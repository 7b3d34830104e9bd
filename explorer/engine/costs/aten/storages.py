"""Answers a model's questions about the memory of tensors, and detects code that reads this memory.

A model may ask for the device or the size of a storage: `x.untyped_storage().device`. These answers are
known, so the run follows the model. A method of a storage that is not in `_METADATA` reads or changes the
numbers outside torch's operators. An address that the model only compares is answered: two tensors
have the same address if they share their memory.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from explorer.engine.compat.torch import replace_attributes, storage_key
from explorer.engine.costs.aten.compared_numbers import is_only_compared
from explorer.engine.costs.aten.device_questions import (
    CPU,
    TENSOR_CLASSES,
    TensorClass,
    find_asking_frame,
    is_model_code,
)

_STORAGES: tuple[Any, ...] = (torch.UntypedStorage, torch.TypedStorage)
_PROPERTIES = ("device", "dtype", "is_cuda", "is_hpu", "is_sparse", "is_sparse_csr")
_QUESTIONS = ("element_size", "get_device", "is_pinned", "is_shared", "nbytes", "resizable", "size", "type")
_METADATA = frozenset((*_PROPERTIES, *_QUESTIONS, "pickle_storage_type", "untyped"))
"""Attributes and methods that need no numbers of a storage."""

_SPECIAL_READERS = ("__getitem__", "__setitem__", "__iter__", "__copy__", "__deepcopy__")
_ALIGNMENT = 64
"""Bytes to which torch aligns the memory of a tensor on the CPU."""


class _ThreadCallback(threading.local):
    """The function that receives the name of a method that reads memory in this thread, or None."""

    report: Callable[[str], None] | None = None


_CALLBACK = _ThreadCallback()


def answer(func: Any, args: tuple[Any, ...]) -> Any:
    """Returns the answer of the processor to a question about the memory of meta tensors.

    The answer is None for other functions, and for an address that code may use for more than comparisons.
    """
    if func is torch.device and args and args[0] is CPU:
        return CPU
    name = getattr(func, "__name__", "")
    if name not in _ANSWERS or not all(isinstance(t, torch.Tensor) and t.is_meta for t in args):
        return None
    return _ANSWERS[name](*args)


def _answer_address(tensor: torch.Tensor) -> int | None:
    frame = find_asking_frame()
    if frame is None or not is_model_code(frame) or not _is_compared_address(frame):
        return None
    if not tensor.numel():
        return 0
    return _address(tensor.untyped_storage()) + int(tensor.storage_offset()) * tensor.element_size()


def _is_set_to(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    first, second = (
        (storage_key(t.untyped_storage()), t.storage_offset(), t.shape, t.stride()) for t in (tensor, other)
    )
    return first == second


_ANSWERS: dict[str, Callable[..., Any]] = {
    "__dlpack_device__": lambda tensor: torch.empty(0).__dlpack_device__(),
    "data_ptr": _answer_address,
    "is_set_to": _is_set_to,
}
"""Functions that torch refuses on the meta device or answers with 0, with their results on the CPU."""


def _address(storage: Any) -> int:
    return storage_key(storage) * _ALIGNMENT


def _is_compared_address(frame: FrameType) -> bool:
    return is_only_compared(frame.f_code, frame.f_lasti, without_calls=True)


def _reading(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def reading_method(storage: Any, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        if _CALLBACK.report is not None and is_model_code(frame):
            if name == "data_ptr" and storage.device.type == "meta" and _is_compared_address(frame):
                return _address(storage if isinstance(storage, torch.UntypedStorage) else storage.untyped())
            _CALLBACK.report(name)
        return method(storage, *args, **kwargs)

    return reading_method


def _answering_device(kind: Any, original: Any) -> property:
    def device(storage: Any) -> torch.device:
        actual: torch.device = original.__get__(storage, kind)
        is_asked = _CALLBACK.report is not None and is_model_code(sys._getframe(1))
        return CPU if is_asked and actual.type == "meta" else actual

    return property(device)


def _answering_type(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def type_method(storage: Any, *args: Any, **kwargs: Any) -> Any:
        is_asked = _CALLBACK.report is not None and is_model_code(sys._getframe(1))
        if is_asked and not args and not kwargs and storage.device.type == "meta":
            return f"torch.{storage.pickle_storage_type()}"
        if is_asked and (args or kwargs) and _CALLBACK.report is not None:
            _CALLBACK.report("type")  # a conversion copies the numbers
        return method(storage, *args, **kwargs)

    return type_method


def _answering_storage_type(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def storage_type_method(tensor: torch.Tensor) -> Any:
        is_asked = _CALLBACK.report is not None and is_model_code(sys._getframe(1))
        return method(torch.empty(0, dtype=tensor.dtype) if is_asked and tensor.is_meta else tensor)

    return storage_type_method


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    """Yields the class, the name and the replacement of each attribute that is watched."""
    for kind in _STORAGES:
        yield kind, "device", _answering_device(kind, inspect.getattr_static(kind, "device"))
        for name in dir(kind):
            method = inspect.getattr_static(kind, name)
            is_reader = name in _SPECIAL_READERS or not name.startswith("_")
            if is_reader and name not in _METADATA and callable(method):
                yield kind, name, _reading(name, method)
    yield torch.TypedStorage, "type", _answering_type(torch.TypedStorage.type)
    yield torch.Tensor, "storage_type", _answering_storage_type(torch.Tensor.storage_type)
    for name, tensor_class in TENSOR_CLASSES.items():
        yield torch, name, TensorClass(tensor_class, lambda: _CALLBACK.report is not None)


@contextmanager
def watch_storages(report: Callable[[str], None]) -> Iterator[None]:
    """Calls `report` with the method's name whenever a model's code in this thread reads a storage."""
    outer = _CALLBACK.report
    with replace_attributes(_replacements):
        _CALLBACK.report = report
        try:
            yield
        finally:
            _CALLBACK.report = outer
