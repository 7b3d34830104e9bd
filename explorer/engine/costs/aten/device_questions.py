"""The device of a tensor as a model's own code sees it: the CPU, not the meta device.

A module may do something else on a GPU: `if x.device.type == "cuda"`. On shapes, all tensors are on the meta
device, and the branch would go a way that no user's model goes. The model's code is told `CPU`, one object
that is known again: wherever it comes back, to make another tensor beside the first, it stands for `meta`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch

CPU = torch.device("cpu")
"""What the device of a tensor without values is said to be."""

_META = torch.device("meta")
_TENSOR: Any = torch.Tensor
_ANSWERS = {_TENSOR.device: CPU, _TENSOR.is_cpu: True, _TENSOR.is_meta: False}
"""What is answered, by the attribute of a tensor that asks. Other kinds of devices are denied anyway."""

_GUARDED: Mapping[Any, torch.device] = {
    ("torch.nn.attention.flex_attention", "_validate_device"): torch.device("cuda"),
}
"""What torch's own functions are told that refuse tensors without values, by module and name.

Where a name no longer holds, the model fails as it does for torch, and its row says so.
"""

_OURS = ("torch", "explorer")
_MODE = "__torch_function__"
"""The method of a function mode of ours that torch calls in place of the function."""


def answer(func: Any, tensor: Any) -> Any:
    """The answer for an attribute, or the `type()`, of a meta tensor; None where the tensor itself answers.

    Args:
        func: The getter of the attribute, or the method.
        tensor: Whose it is.
    """
    is_type = func == _TENSOR.type
    fixed_answer = None if is_type else _ANSWERS.get(getattr(func, "__self__", None))
    if (fixed_answer is None and not is_type) or not tensor.is_meta:
        return None
    frame = _asking_frame()
    if not _is_models(frame):
        at = frame and (frame.f_globals.get("__name__"), frame.f_code.co_name)
        return _GUARDED.get(at) if fixed_answer is CPU else None
    return torch.empty(0, dtype=tensor.dtype, device="cpu").type() if is_type else fixed_answer


def is_asked_by_model() -> bool:
    """Whether code of a model, not torch's or ours, calls the function of torch that is being answered."""
    return _is_models(_asking_frame())


def _asking_frame() -> FrameType | None:
    """The frame that calls the torch function that is being answered."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_mode(frame):
        frame = frame.f_back
    return None if frame is None else frame.f_back


def _is_mode(frame: FrameType) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    return frame.f_code.co_name == _MODE and name.startswith("explorer.")


def _is_models(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] not in _OURS


def without_values(args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """The arguments of a call, with `meta` in place of the device that a model was told.

    A random generator is then left out: it belongs to another device.
    """
    if any(value is CPU for value in kwargs.values()):
        kwargs = {
            name: _META if value is CPU else value for name, value in kwargs.items() if name != "generator"
        }
    if any(value is CPU for value in args):
        args = tuple(_META if value is CPU else value for value in args)
    return args, kwargs
