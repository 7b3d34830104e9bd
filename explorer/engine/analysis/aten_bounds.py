"""What operators answer that need values, when there are none: the largest output possible, or a guess.

The size of what nonzero, nms or unique return depends on values, and so does every program that asks a
tensor for a number. Where a largest output exists it is the answer, and what is computed from it is an
upper bound. Where none exists (a number may be anything) the answer is an assumption, and says that word:
what is computed after it may be more or less.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from explorer.engine.analysis import macs

__all__ = ["BOUNDS", "REFUSED", "VALUES", "VALUES_BESIDE", "answer", "guess"]


def _all_indices(args: Sequence[Any]) -> Any:
    source = args[0]
    return source.new_empty((source.numel() if source.dim() else 1, source.dim()), dtype=torch.long)


def _keep_all(args: Sequence[Any]) -> Any:
    return args[0].new_empty((args[0].shape[0],), dtype=torch.long)


def _all_distinct(args: Sequence[Any]) -> Any:
    source = args[0]
    count = source.numel()
    return (
        source.new_empty((count,)),
        source.new_empty(source.shape, dtype=torch.long),
        source.new_empty((count,), dtype=torch.long),
    )


def _all_distinct_slices(args: Sequence[Any]) -> Any:
    source = args[0]
    count = source.shape[args[1]]
    return (
        source.new_empty(source.shape),
        source.new_empty((count,), dtype=torch.long),
        source.new_empty((count,), dtype=torch.long),
    )


def _all_selected(args: Sequence[Any]) -> Any:
    """Indexing with a mask returns at most every element that the mask covers."""
    source, indices = args[0], list(args[1])
    at = next((i for i, t in enumerate(indices) if _is_mask(t)), None)
    if at is None:
        return None
    mask = indices[at]
    if any(t is not None for i, t in enumerate(indices) if i != at):
        return None
    lead, rest = source.shape[:at], source.shape[at + mask.dim() :]
    return source.new_empty((*lead, mask.numel(), *rest))


def _is_mask(tensor: Any) -> bool:
    return tensor is not None and tensor.dtype in (torch.bool, torch.uint8)


def _masked(args: Sequence[Any]) -> Any:
    shape = macs.broadcast(tuple(args[0].shape), tuple(args[1].shape))
    return args[0].new_empty((math.prod(d for d in shape if isinstance(d, int)),))


def _full_length(args: Sequence[Any]) -> Any:
    """A padded batch as a packed sequence in which every sequence has the full length."""
    source, lengths, batch_first = args[:3]
    if not lengths.is_meta:
        return None
    batch, steps = (int(d) for d in (source.shape[:2] if batch_first else source.shape[1::-1]))
    sizes = torch.full((steps,), batch, dtype=torch.long, device="cpu")
    return source.new_empty((steps * batch, *source.shape[2:])), sizes


def _repeated_once(args: Sequence[Any]) -> Any:
    repeats = args[0]
    return repeats.new_empty((repeats.numel(),))


def _least_bins(args: Sequence[Any]) -> Any:
    least = next((a for a in args[2:3] if isinstance(a, int)), 0)
    weights = args[1] if len(args) > 1 and args[1] is not None else None
    kind = (
        torch.long if weights is None else weights.dtype if weights.dtype.is_floating_point else torch.float64
    )
    return args[0].new_empty((max(least, 1),), dtype=kind)


def _value(args: Sequence[Any]) -> Any:
    kind = args[0].dtype
    return True if kind == torch.bool else 1.0 if kind.is_floating_point else 1


_ASKED = "assumed: a value of a tensor was asked for and taken as 1 or true; what follows may depend on it"

BOUNDS: dict[str, tuple[Callable[[Sequence[Any]], Any], str]] = {
    "aten::nonzero": (_all_indices, "nonzero: every element taken as nonzero"),
    "torchvision::nms": (_keep_all, "nms: every box taken as kept"),
    "aten::_unique2": (_all_distinct, "unique: every value taken as distinct"),
    "aten::unique_consecutive": (_all_distinct, "unique: every value taken as distinct"),
    "aten::unique_dim": (_all_distinct_slices, "unique: every slice taken as distinct"),
    "aten::unique_dim_consecutive": (_all_distinct_slices, "unique: every slice taken as distinct"),
    "aten::index": (_all_selected, "indexing with a mask: everything taken as selected"),
    "aten::masked_select": (_masked, "masked_select: everything taken as selected"),
    "aten::_pack_padded_sequence": (_full_length, "packed sequence: every length taken as the longest"),
    "aten::repeat_interleave": (_repeated_once, "assumed: every element is repeated once"),
    "aten::bincount": (_least_bins, "assumed: no value reaches beyond the least number of bins"),
    "aten::_local_scalar_dense": (_value, _ASKED),
    "aten::is_nonzero": (lambda args: True, _ASKED),
    "aten::equal": (lambda args: True, "assumed: two tensors that were compared are equal"),
}
"""Answers of operators that need values, and the bound or the assumption in words."""

VALUES = frozenset(("aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal"))
"""Operators that hand a value over to Python: whatever comes after it may depend on it."""


VALUES_BESIDE = frozenset(("aten::_pack_padded_sequence", "aten::_pad_packed_sequence"))
"""Operators that read one argument (the lengths) whatever the others have: it keeps its values."""

REFUSED = "assumed: a value of a tensor was asked for and taken as false, because the model fails otherwise"

_MOST_VALUES = 1_000_000


def _ones(tensor: Any) -> Any:
    """As many ones as a tensor has elements, in nested lists of its shape."""
    made: Any = _value((tensor,))
    for size in reversed(tuple(tensor.shape)):
        made = [copy.deepcopy(made) for _ in range(size)]
    return made


def guess(name: str, args: Sequence[Any]) -> tuple[Any, str] | None:
    """What a function of a tensor without values that hands out all its values is taken to return.

    Returns:
        None for any other function, or when there would be too many values.
    """
    if name not in ("tolist", "numpy", "__array__") or not args or not getattr(args[0], "is_meta", False):
        return None
    tensor = args[0]
    if tensor.numel() > _MOST_VALUES or (name != "tolist" and tensor.dtype == torch.bfloat16):
        return None
    if name == "tolist":
        return _ones(tensor), _ASKED
    return torch.ones(tuple(tensor.shape), dtype=tensor.dtype, device="cpu").numpy(), _ASKED


def answer(func: Any, args: Sequence[Any]) -> tuple[Any, str] | None:
    """The upper bound of an operator that would need values, and what it assumes.

    Returns:
        None for an operator that runs without values.
    """
    row = BOUNDS.get(func._schema.name)
    if row is None or not any(_no_values(a) for a in args):
        return None
    result = row[0](args)
    return None if result is None else (result, row[1])


def _no_values(argument: Any) -> bool:
    if isinstance(argument, (tuple, list)):
        return any(_no_values(a) for a in argument)
    return bool(getattr(argument, "is_meta", False))
