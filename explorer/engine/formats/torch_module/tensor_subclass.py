"""Tensor subclasses that hold their numbers in other tensors: torchao's, DTensor, MaskedTensor, a user's own.

To its users such a tensor has a shape and a type of its own. Its bytes are those of its inner tensors, and
its numbers are known where the subclass can turn itself into a plain tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from explorer.base.units import many_text
from explorer.engine.compat.torch import storage_key

DEPTH = 16
"""Levels of subclasses inside each other that are looked into."""

_CONVERSIONS = ("dequantize", "full_tensor", "to_tensor", "get_data", "get_original_weight")
"""Methods by which subclasses turn themselves into plain tensors, in the order in which they are tried:
torchao's, DTensor's, MaskedTensor's, and that of torchao's NF4Tensor."""

_FILLED = {"to_tensor": (0,)}
"""Arguments of those methods: what stands at the places that a MaskedTensor masks."""


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
    """The tensors that a subclass says it is made of, else those that it holds as attributes."""
    kind = type(tensor)
    if kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__:
        return []  # a subclass with numbers of its own
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        names, _ = flatten()
        parts = [getattr(tensor, name) for name in names]
    else:
        parts = list(vars(tensor).values())
    return [part for part in parts if isinstance(part, torch.Tensor)]


def wrappers_note(tensors: Iterable[torch.Tensor]) -> str:
    """What to say of the tensor subclasses among a model's tensors; empty where there are none."""
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
    """Tensors without those that are the same part of the same storage as one before."""
    return tuple({place(tensor): tensor for tensor in reversed(tensors)}.values())


def place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Which part of which storage a plain tensor is."""
    storage = storage_key(tensor.untyped_storage())
    return storage, tensor.storage_offset(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def dequantized(tensor: torch.Tensor) -> torch.Tensor | None:
    """The numbers of a tensor subclass as a plain tensor; None where the subclass cannot tell them."""
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
            # one subclass in another, such as a distributed tensor of quantized ones
            return dequantized(plain)
    return None
