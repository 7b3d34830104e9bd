"""Handles calls that mix tensors with values and meta tensors, by dropping the values.

A model that runs on shapes may create tensors on the CPU itself, such as a mask or an initial state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from explorer.engine.compat.torch import map_tensors

_META = torch.device("meta")

_MAX_ZEROS = 1 << 24
"""Maximum number of elements of the zeros on which an operator runs."""


def is_mixed(args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether some tensors have values and others do not. Scalar tensors fit both kinds."""
    kinds: set[bool] = set()

    def note(tensor: torch.Tensor) -> None:
        if tensor.is_meta or _is_movable(tensor):
            kinds.add(tensor.is_meta)

    map_tensors((tuple(args), dict(kwargs)), note)
    return len(kinds) > 1


def call_without_values(
    function: Callable[..., Any],
    args: Any,
    kwargs: Mapping[str, Any],
    *,
    integers: bool = True,
    scalars: bool = False,
) -> Any:
    """Calls a function with tensors that have values replaced by meta tensors.

    If the call writes into a tensor and returns it, the original is returned.

    Args:
        function: Function to call.
        args: Positional arguments.
        kwargs: Keyword arguments.
        integers: Whether integer tensors, which may be lengths, also lose their values.
        scalars: Whether scalars, which fit tensors of any device in most operators, also lose their values.
    """
    originals: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def make_meta_copy(tensor: torch.Tensor) -> torch.Tensor:
        is_integer = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)
        is_movable = _is_movable(tensor) or (scalars and tensor.is_cpu and not tensor.dim())
        if not is_movable or (is_integer and not integers):
            return tensor
        meta_copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_META)
        originals[id(meta_copy)] = tensor, meta_copy
        return meta_copy

    positional, named = map_tensors((tuple(args), dict(kwargs)), make_meta_copy)
    result = function(*positional, **named)
    return map_tensors(result, lambda tensor: originals.get(id(tensor), (tensor,))[0])


def run_on_zeros(function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Runs an operator without a meta kernel on zeros, and returns meta tensors of the same shapes.

    Raises:
        NotImplementedError: The tensors are too large.
    """
    twins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    elements = 0

    def fill(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal elements
        elements += tensor.numel()
        if elements > _MAX_ZEROS:
            raise NotImplementedError(f"{function} has no kernel for tensors without values")
        zeros = torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
        twins[id(zeros)] = zeros, tensor
        return zeros

    positional, named = map_tensors((tuple(args), dict(kwargs)), fill)

    def drop_values(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in twins:
            return twins[id(tensor)][1]
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_META)

    return map_tensors(function(*positional, **named), drop_values)


def _is_movable(tensor: torch.Tensor) -> bool:
    """Whether a tensor has values that a meta copy would drop: dense, with at least one dimension."""
    return not tensor.is_meta and tensor.layout is torch.strided and tensor.dim() > 0
