"""Reports the device of meta tensors to a model's own code as the CPU.

A module may branch on the device: `if x.device.type == "cuda"`. On shapes all tensors are on the meta device,
and the model would take a branch that it takes on no real device. The model's code therefore gets the object
`CPU` as device. When the model passes this object back to create a tensor, it is replaced by `meta`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch

CPU = torch.device("cpu")
"""The device that meta tensors report."""

_META = torch.device("meta")
_TENSOR: Any = torch.Tensor
_ANSWERS = {_TENSOR.device: CPU, _TENSOR.is_cpu: True, _TENSOR.is_meta: False}
"""Reported values by getter of the tensor attribute. Other device checks (`is_cuda`) are False anyway."""

_GUARDED: Mapping[Any, torch.device] = {
    ("torch.nn.attention.flex_attention", "_validate_device"): torch.device("cuda"),
    # a block mask may exist before the run, and its tensors are then on the CPU
    ("torch.nn.attention.flex_attention", "flex_attention"): CPU,
}
"""Devices reported to torch's own functions that reject meta tensors, by module and function name.

If a name changes in torch, the model fails with torch's error, and its row shows it.
"""

_LIBRARIES = ("torch", "explorer")
_METHOD_MODULES = ("torch._tensor", "torch.overrides")
"""Modules of torch with tensor methods that are written in Python, such as `__repr__`."""

_MODE = "__torch_function__"
"""The method of Explorer's function mode that torch calls in place of a function."""


def report_device(func: Any, tensor: Any) -> Any:
    """Returns the value to report for an attribute or `type()` of a meta tensor, or None to keep its own.

    Args:
        func: Getter of the attribute, or the method.
        tensor: Tensor whose attribute is read.
    """
    is_type = func == _TENSOR.type
    fixed_answer = None if is_type else _ANSWERS.get(getattr(func, "__self__", None))
    if (fixed_answer is None and not is_type) or not tensor.is_meta:
        return None
    frame = find_asking_frame()
    if frame is not None and frame.f_code is torch.typename.__code__:
        frame = frame.f_back  # the function hands the answer to its caller
    if not is_model_code(frame):
        caller = frame and (frame.f_globals.get("__name__"), frame.f_code.co_name)
        return _GUARDED.get(caller) if fixed_answer is CPU else None
    return torch.empty(0, dtype=tensor.dtype, device="cpu").type() if is_type else fixed_answer


def find_asking_frame() -> FrameType | None:
    """Returns the frame that calls the current torch function, or None outside a run on shapes."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_mode(frame):
        frame = frame.f_back
    return None if frame is None else frame.f_back


def is_model_asking() -> bool:
    """Whether a model's code calls the current torch function, also through a tensor method in Python."""
    frame = find_asking_frame()
    while frame is not None and frame.f_globals.get("__name__") in _METHOD_MODULES:
        frame = frame.f_back
    return is_model_code(frame) and not _is_described_by_asyncio(frame)


def _is_described_by_asyncio(frame: FrameType | None) -> bool:
    """Whether asyncio formats a task and its result as text, which no model reads."""
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package == "asyncio" or package not in sys.stdlib_module_names:
            return bool(package == "asyncio")
        frame = frame.f_back
    return False


def _is_mode(frame: FrameType) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    return frame.f_code.co_name == _MODE and name.startswith("explorer.")


def is_model_code(frame: FrameType | None) -> bool:
    """Whether a frame belongs neither to torch nor to Explorer."""
    return frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES


def replace_cpu(func: Any, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, Any, Mapping[str, Any]]:
    """Returns a function and its arguments, with the CPU replaced by the meta device.

    A move of a meta tensor to the CPU copies nothing, as on the CPU. A random generator in the arguments is
    removed, because it belongs to the CPU.
    """
    name = getattr(func, "__name__", "")
    if name in _MOVES and args and getattr(args[0], "is_meta", False):
        if name == "cpu":
            func, args = _TENSOR.to, (args[0], _META, *args[1:])
        elif name == "type":
            target = _CPU_TYPES.get(args[1]) if len(args) > 1 else None
            func, args = (func, args) if target is None else (_TENSOR.to, (args[0], target, *args[2:]))
        else:
            args = (args[0], *(_META if _is_cpu(value) else value for value in args[1:]))
            kwargs = {key: _META if _is_cpu(value) else value for key, value in kwargs.items()}
        return func, args, kwargs
    if any(value is CPU for value in kwargs.values()):
        kwargs = {
            key: _META if value is CPU else value for key, value in kwargs.items() if key != "generator"
        }
    if any(value is CPU for value in args):
        args = tuple(_META if value is CPU else value for value in args)
    return func, args, kwargs


class TensorClass:
    """Replaces a class of torch such as `torch.FloatTensor`, and accepts meta tensors as tensors on the CPU.

    Args:
        actual_class: The class of torch. Calls, attributes and comparisons go to it.
        is_watching: Returns whether a model runs in this thread.
    """

    def __init__(self, actual_class: Any, is_watching: Callable[[], bool]) -> None:
        self._actual_class = actual_class
        self._is_watching = is_watching

    def __instancecheck__(self, value: object) -> bool:
        is_asked = self._is_watching() and is_model_code(sys._getframe(1))
        if is_asked and isinstance(value, torch.Tensor) and value.is_meta:
            return value.layout == torch.strided and bool(value.dtype == self._actual_class.dtype)
        return isinstance(value, self._actual_class)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns a new tensor of the class."""
        return self._actual_class(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._actual_class, name)

    def __eq__(self, other: object) -> bool:
        return self._actual_class is (other._actual_class if isinstance(other, TensorClass) else other)

    def __hash__(self) -> int:
        return hash(self._actual_class)


_MOVES = ("to", "cpu", "type")
"""Tensor methods that may move a tensor to the CPU."""

_CPU_TYPES: Mapping[Any, torch.dtype] = {
    key: dtype
    for dtype in (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    )
    for name in (torch.empty(0, dtype=dtype, device="cpu").type(),)
    for key in (name, getattr(torch, name.removeprefix("torch.")))
}
"""Element types by the name and the class of a tensor on the CPU, such as 'torch.FloatTensor'."""

TENSOR_CLASSES: Mapping[str, Any] = {key.__name__: key for key in _CPU_TYPES if not isinstance(key, str)}
"""Classes of torch for tensors on the CPU, by their name in `torch`."""


def _is_cpu(value: Any) -> bool:
    """Whether an argument selects the CPU."""
    return value is CPU or (isinstance(value, (str, torch.device)) and str(value).partition(":")[0] == "cpu")
