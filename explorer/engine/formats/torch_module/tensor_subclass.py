"""Tensor subclasses whose values are in inner tensors: torchao's, DTensor, MaskedTensor, custom classes.

Such a tensor has its own shape and element type. Its bytes are the bytes of its inner tensors. Its values are
known if the class can convert it to a plain tensor.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from explorer.base.units import many_text
from explorer.engine.compat.torch import storage_key

DEPTH = 16
"""Maximum depth of nested tensor subclasses."""

_CONVERSIONS = ("dequantize", "full_tensor", "to_tensor", "get_data", "get_original_weight")
"""Methods that may convert a subclass to a plain tensor, in the order in which `dequantize` tries them. They
are from torchao, DTensor, MaskedTensor, and NF4Tensor of torchao (the last two)."""

_ARGUMENTS = {"to_tensor": (0,)}
"""Arguments by method; the other methods take none. `to_tensor` of a MaskedTensor takes a fill value."""


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of a subclass whose values are in inner tensors."""
    return type(tensor) is not torch.Tensor and bool(_list_parts(tensor))


def list_inner_tensors(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """Returns the plain inner tensors of a tensor subclass; empty for a plain tensor."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return ()
    return tuple(_find_plain_tensors(tensor, 0))


def _find_plain_tensors(tensor: torch.Tensor, depth: int) -> Iterator[torch.Tensor]:
    for part in _list_parts(tensor):
        if depth < DEPTH and is_wrapper(part):
            yield from _find_plain_tensors(part, depth + 1)
        else:
            yield part


def _list_parts(tensor: Any) -> list[torch.Tensor]:
    """Returns the inner tensors that a subclass declares, or those in its attributes if it declares none."""
    kind = type(tensor)
    if kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
        return []  # a subclass with values of its own
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        names, _ = flatten()
        parts = [getattr(tensor, name) for name in names]
    else:
        parts = list(vars(tensor).values())
    return [part for part in parts if isinstance(part, torch.Tensor)]


def describe_wrappers(tensors: Iterable[torch.Tensor]) -> str:
    """Returns a note on the tensor subclasses among a model's tensors, or '' if there are none."""
    counts: dict[str, int] = {}
    for tensor in tensors:
        if is_wrapper(tensor):
            counts[type(tensor).__name__] = counts.get(type(tensor).__name__, 0) + 1
    if not counts:
        return ""
    counts_text = ", ".join(f"{many_text(count, 'tensor')} of {kind}" for kind, count in counts.items())
    return (
        f"{counts_text} stored as other tensors: parameters are counted for the outer tensors, bytes for the"
        " inner tensors; a computation with values uses plain tensors that are made from them"
    )


def drop_equal_views(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Returns the first tensor of each distinct view of a storage, in no particular order."""
    return tuple({view_key(tensor): tensor for tensor in reversed(tensors)}.values())


def view_key(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Returns a key that is equal for plain tensors that are the same view of the same storage."""
    storage = storage_key(tensor.untyped_storage())
    return storage, tensor.storage_offset(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def dequantize(tensor: torch.Tensor) -> torch.Tensor | None:
    """Converts a tensor subclass to a plain tensor, or returns None if the class does not support it.

    After the methods of `_CONVERSIONS`, a multiplication by 1 is tried.
    """
    for name in (*_CONVERSIONS, "mul"):
        method = getattr(tensor, name, None)
        arguments = (1,) if name == "mul" else _ARGUMENTS.get(name, ())
        if method is None:
            continue
        try:
            with torch.no_grad():
                plain = method(*arguments)
        except Exception:
            continue
        if not isinstance(plain, torch.Tensor) or plain.shape != tensor.shape:
            continue
        if not is_wrapper(plain):
            return plain.detach().to(tensor.dtype)
        if type(plain) is not type(tensor):
            # the result is another subclass, such as the quantized tensor in a distributed tensor
            return dequantize(plain)
    return None


def attach_conversions(twin: torch.Tensor, tensor: torch.Tensor) -> None:
    """Gives a plain tensor the methods with which a tensor subclass converts itself to a plain tensor.

    The model's own code may call them: `weight.get_data()` of a MaskedTensor.

    Args:
        twin: Plain tensor that replaces `tensor`.
        tensor: Tensor of a subclass.
    """
    for name in _CONVERSIONS:
        if hasattr(type(tensor), name) and not hasattr(torch.Tensor, name):
            setattr(twin, name, partial(_get_twin, weakref.ref(twin)))
    if hasattr(type(tensor), "get_mask"):
        mask = torch.empty(twin.shape, dtype=torch.bool, device=twin.device)
        vars(twin)["get_mask"] = lambda: mask


def _get_twin(reference: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
    return reference()
