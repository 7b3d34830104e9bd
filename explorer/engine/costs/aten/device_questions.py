"""Reports the device of meta tensors to a model's own code as the CPU.

A module may branch on the device: `if x.device.type == "cuda"`. On shapes all tensors are on the meta device,
and the model would take a branch that no user sees. The model's code therefore gets the object `CPU` as
device. When the model passes this object back to create a tensor, it is replaced by `meta`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
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
}
"""Devices reported to torch's own functions that reject meta tensors, by module and function name.

If a name changes in torch, the model fails with torch's error, and its row shows it.
"""

_LIBRARIES = ("torch", "explorer")
_MODE = "__torch_function__"
"""The method of Explorer's function mode that torch calls in place of a function."""


def answer(func: Any, tensor: Any) -> Any:
    """The reported value of an attribute, or of `type()`, of a meta tensor; None to ask the tensor itself.

    Args:
        func: Getter of the attribute, or the method.
        tensor: Tensor whose attribute is read.
    """
    is_type = func == _TENSOR.type
    fixed_answer = None if is_type else _ANSWERS.get(getattr(func, "__self__", None))
    if (fixed_answer is None and not is_type) or not tensor.is_meta:
        return None
    frame = find_asking_frame()
    if not is_model_code(frame):
        caller = frame and (frame.f_globals.get("__name__"), frame.f_code.co_name)
        return _GUARDED.get(caller) if fixed_answer is CPU else None
    return torch.empty(0, dtype=tensor.dtype, device="cpu").type() if is_type else fixed_answer


def find_asking_frame() -> FrameType | None:
    """Returns the frame that calls the current torch function."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_mode(frame):
        frame = frame.f_back
    return None if frame is None else frame.f_back


def _is_mode(frame: FrameType) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    return frame.f_code.co_name == _MODE and name.startswith("explorer.")


def is_model_code(frame: FrameType | None) -> bool:
    """Whether a frame belongs neither to torch nor to Explorer."""
    return frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES


def replace_cpu(args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Returns the arguments of a call, with `CPU` replaced by the meta device.

    A random generator is dropped with it, because it belongs to another device.
    """
    if any(value is CPU for value in kwargs.values()):
        kwargs = {
            name: _META if value is CPU else value for name, value in kwargs.items() if name != "generator"
        }
    if any(value is CPU for value in args):
        args = tuple(_META if value is CPU else value for value in args)
    return args, kwargs
