"""Tensor subclasses that hold their numbers in other tensors: torchao's, DTensor, MaskedTensor, users' own.

Such a tensor has its own shape and type. Its bytes are those of its inner tensors, and its numbers are known
if the subclass can convert itself into a plain tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from explorer.base.units import many_text
from explorer.engine.compat.torch import storage_key

DEPTH = 16
"""Most levels of nested subclasses."""

_CONVERSIONS = ("dequantize", "full_tensor", "to_tensor", "get_data", "get_original_weight")
"""Methods that convert a subclass into a plain tensor, in the order of trial: torchao's, DTensor's,
MaskedTensor's, and that of torchao's NF4Tensor."""

_FILLED = {"to_tensor": (0,)}
"""Arguments of those methods: the fill value of a MaskedTensor."""


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of a subclass that holds its numbers in other tensors."""
    return type(tensor) is not torch.Tensor and bool(_parts(tensor))


def inner_tensors(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """The plain tensors that hold a tensor subclass's numbers; none for a plain tensor."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return ()
    return tuple(_plain(tensor, 0))


def _plain(tensor: torch.Tensor, depth: int) -> Iterator[torch.Tensor]:
    for part in _parts(tensor):
        if depth < DEPTH and is_wrapper(part):
            yield from _plain(part, depth + 1)
        else:
            yield part


def _parts(tensor: Any) -> list[torch.Tensor]:
    """The inner tensors that a subclass declares, else those in its attributes."""
    kind = type(tensor)
    if kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
        return []  # a subclass that holds its own numbers
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        names, _ = flatten()
        parts = [getattr(tensor, name) for name in names]
    else:
        parts = list(vars(tensor).values())
    return [part for part in parts if isinstance(part, torch.Tensor)]


def wrappers_note(tensors: Iterable[torch.Tensor]) -> str:
    """A note on the tensor subclasses among a model's tensors; empty if there are none."""
    counts: dict[str, int] = {}
    for tensor in tensors:
        if is_wrapper(tensor):
            counts[type(tensor).__name__] = counts.get(type(tensor).__name__, 0) + 1
    if not counts:
        return ""
    named = ", ".join(f"{many_text(count, 'tensor')} of {kind}" for kind, count in counts.items())
    return (
        f"{named} kept as other tensors: parameters are those of the whole, bytes those of the inner tensors;"
        " what needs values computes with plain tensors made of them"
    )


def distinct(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Tensors without repetitions of the same part of the same storage."""
    return tuple({place(tensor): tensor for tensor in reversed(tensors)}.values())


def place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Key of the part of a storage that a plain tensor covers."""
    storage = storage_key(tensor.untyped_storage())
    return storage, tensor.storage_offset(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def dequantized(tensor: torch.Tensor) -> torch.Tensor | None:
    """The numbers of a tensor subclass as a plain tensor; None if the subclass cannot give them."""
    for name in (*_CONVERSIONS, "mul"):
        method = getattr(tensor, name, None)
        arguments = (1,) if name == "mul" else _FILLED.get(name, ())
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
            # a subclass in another one, such as a distributed tensor of quantized tensors
            return dequantized(plain)
    return None
