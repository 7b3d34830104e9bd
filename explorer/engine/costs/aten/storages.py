"""Answers a model's queries about the memory of tensors, and detects code that reads this memory.

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

from explorer.base.replacement import Replacement
from explorer.engine.compat.torch import (
    branches_on_device,
    list_script_classes,
    list_text_functions,
    replace_attributes,
    storage_key,
)
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

_SPECIAL_READERS = (
    *("__getitem__", "__setitem__", "__iter__", "__copy__", "__deepcopy__", "__reduce__"),
    *("_share_filename_cpu_", "_share_fd_cpu_", "_write_file"),
)
_ALIGNMENT = 64
"""Bytes to which torch aligns the memory of a tensor on the CPU."""


class _ThreadCallback(threading.local):
    """The function that receives the name of a method that reads memory in this thread, or None."""

    report: Callable[[str], None] | None = None


_CALLBACK = _ThreadCallback()


def answer_memory_query(func: Any, args: tuple[Any, ...]) -> Any:
    """Returns the result of a memory query on meta tensors as on the CPU.

    The result is None for other functions, and for an address that code may use for more than comparisons.
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
    return _get_address(tensor.untyped_storage()) + int(tensor.storage_offset()) * tensor.element_size()


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
"""Functions that torch refuses on the meta device or answers with 0, with functions that answer as on the
CPU."""


def _get_address(storage: Any) -> int:
    return storage_key(storage) * _ALIGNMENT


def _is_compared_address(frame: FrameType) -> bool:
    return is_only_compared(frame.f_code, frame.f_lasti, without_calls=True)


def _find_watched_caller() -> FrameType | None:
    """Returns the frame that uses a replaced attribute, or None if it is not code of a watched model.

    Only the replacements may call this function, directly: it looks at the caller of its caller.
    """
    frame = sys._getframe(2)
    return frame if _CALLBACK.report is not None and is_model_code(frame) else None


def _report_read(name: str) -> None:
    """Reports to the watching run that a method reads the memory of a storage."""
    if _CALLBACK.report is not None:
        _CALLBACK.report(name)


def _replace_reader(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method that reports each read by a watched model; a compared address is answered."""

    @functools.wraps(method)
    def report_and_read(storage: Any, *args: Any, **kwargs: Any) -> Any:
        frame = _find_watched_caller()
        if frame is not None:
            if name == "data_ptr" and storage.device.type == "meta" and _is_compared_address(frame):
                return _get_address(
                    storage if isinstance(storage, torch.UntypedStorage) else storage.untyped()
                )
            _report_read(name)
        return method(storage, *args, **kwargs)

    return report_and_read


def _copy_shallow(tensor: torch.Tensor) -> torch.Tensor:
    """Returns another tensor with the same memory, as `copy.copy` does."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _replace_reduce(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method for serialization that reports its calls in the run of a watched model.

    The caller is `pickle` or `torch.save`, and the library that calls these on behalf of the model.
    """

    @functools.wraps(method)
    def report_and_reduce(tensor: Any, protocol: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__") == "copy":
            return _copy_shallow, (tensor,)
        if _CALLBACK.report is not None:
            _report_read("__reduce_ex__")
        return method(tensor, protocol)

    return report_and_reduce


def _replace_device(storage_class: Any, original: Any) -> property:
    """Returns a property that gives a watched model the CPU in place of the meta device."""

    def get_device(storage: Any) -> torch.device:
        device: torch.device = original.__get__(storage, storage_class)
        return CPU if device.type == "meta" and _find_watched_caller() is not None else device

    return property(get_device)


def _replace_type(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method that names the type of a storage, and reports conversions by a watched model."""

    @functools.wraps(method)
    def get_type(storage: Any, *args: Any, **kwargs: Any) -> Any:
        if _find_watched_caller() is not None:
            if args or kwargs:
                _report_read("type")  # a conversion copies the numbers
            elif storage.device.type == "meta":
                return f"torch.{storage.pickle_storage_type()}"
        return method(storage, *args, **kwargs)

    return get_type


def _replace_storage_type(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method that gives a watched model the storage type that the tensor has on the CPU."""

    @functools.wraps(method)
    def get_storage_type(tensor: torch.Tensor) -> Any:
        is_replaced = tensor.is_meta and _find_watched_caller() is not None
        return method(torch.empty(0, dtype=tensor.dtype) if is_replaced else tensor)

    return get_storage_type


def _replace_script_call(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a call of a TorchScript function that fails if the function asks for devices.

    Questions about devices inside of TorchScript cannot be answered here. The call raises a RuntimeError if a
    branch of the function depends on the device.
    """

    @functools.wraps(method)
    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        if _CALLBACK.report is not None and branches_on_device(function):
            raise RuntimeError(
                f"TorchScript '{function.name}' branches on the device of a tensor, and shapes have none:"
                " count its Python function, or the saved file"
            )
        return method(function, *args, **kwargs)

    return call


def _list_replacements() -> Iterator[tuple[Any, str, Any]]:
    """Yields the class, the name and the replacement of each attribute that is watched."""
    for storage_class in _STORAGES:
        device = inspect.getattr_static(storage_class, "device")
        yield storage_class, "device", _replace_device(storage_class, device)
        for name in dir(storage_class):
            method = inspect.getattr_static(storage_class, name)
            is_reader = name in _SPECIAL_READERS or not name.startswith("_")
            if is_reader and name not in _METADATA and callable(method):
                yield storage_class, name, _replace_reader(name, method)
    yield torch.Tensor, "__reduce_ex__", _replace_reduce(torch.Tensor.__reduce_ex__)
    for owner, name in list_text_functions():
        yield owner, name, _replace_reader(name, getattr(owner, name))
    yield torch.TypedStorage, "type", _replace_type(torch.TypedStorage.type)
    yield torch.Tensor, "storage_type", _replace_storage_type(torch.Tensor.storage_type)
    for cls in list_script_classes():
        yield cls, "__call__", _replace_script_call(cls.__call__)
    for name, tensor_class in TENSOR_CLASSES.items():
        yield torch, name, TensorClass(tensor_class, lambda: _CALLBACK.report is not None)


_REPLACEMENT = Replacement(_list_replacements)


@contextmanager
def watch_storages(report: Callable[[str], None]) -> Iterator[None]:
    """Calls `report` with the method's name whenever a model's code in this thread reads a storage."""
    outer_report = _CALLBACK.report
    with replace_attributes(_REPLACEMENT):
        _CALLBACK.report = report
        try:
            yield
        finally:
            _CALLBACK.report = outer_report
