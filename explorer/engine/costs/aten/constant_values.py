"""Keeps the values of small constant tensors in a run on shapes: tensors that do not depend on an input.

Examples are positions, masks and lists of sizes that the forward creates itself, or moves to its input's
device. A tensor keeps its values if it is created on the CPU instead of the meta device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from explorer.engine.formats.torch_module.meta_copy import MAX_KEPT_ELEMENTS

LISTS = frozenset(("tensor", "as_tensor", "new_tensor", "scalar_tensor"))
"""Functions that create a tensor from Python numbers."""

_FILLING_OPERATORS = frozenset(f"aten::{name}" for name in ("full", "zeros", "ones"))
_CPU = torch.device("cpu")


def choose_device(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the keyword arguments of an operator, with device 'cpu' if its result should keep its values.

    Args:
        name: Name of the operator.
        args: Positional arguments of a call that takes no tensor, or copies one.
        kwargs: Keyword arguments of the call.
    """
    device = kwargs.get("device")
    if device is None or torch.device(device).type != "meta":
        return kwargs
    if name == "aten::_to_copy":
        keep_values = not args[0].is_meta and args[0].numel() <= MAX_KEPT_ELEMENTS
    elif name == "aten::arange":
        numbers = [a for a in args if isinstance(a, (int, float))]
        keep_values = len(numbers) == len(args) and sum(map(abs, numbers[:2])) <= MAX_KEPT_ELEMENTS
    elif name == "aten::scalar_tensor":
        keep_values = True
    elif name == "aten::linspace":
        keep_values = kwargs.get("steps", args[2] if len(args) > 2 else 0) <= MAX_KEPT_ELEMENTS
    elif name in _FILLING_OPERATORS:
        kind = kwargs.get("dtype") or (torch.float32 if name != "aten::full" else _choose_dtype(args[1]))
        keep_values = (
            not (kind.is_floating_point or kind.is_complex) and math.prod(args[0]) <= MAX_KEPT_ELEMENTS
        )
    else:
        keep_values = False
    return {**kwargs, "device": _CPU} if keep_values else kwargs


def is_new_floating_point(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator creates a floating-point or complex tensor, uninitialized or of one number."""
    if name not in _FILLING_OPERATORS and name != "aten::empty":
        return False
    default = torch.get_default_dtype() if name != "aten::full" else _choose_dtype(args[1])
    dtype = kwargs.get("dtype") or default
    return bool(dtype.is_floating_point or dtype.is_complex)


def _choose_dtype(value: Any) -> torch.dtype:
    return (
        torch.complex64
        if isinstance(value, complex)
        else torch.float32
        if isinstance(value, float)
        else torch.int64
    )


def convert_masks(args: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the arguments of `aten::index`, with masks that have values replaced by positions."""
    indices: list[Any] = []
    for index in args[1]:
        if index is not None and not index.is_meta and index.dtype in (torch.bool, torch.uint8):
            indices += index.nonzero().unbind(1)
        else:
            indices.append(index)
    return args[0], indices, *args[2:]
