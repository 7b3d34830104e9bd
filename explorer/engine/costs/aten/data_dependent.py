"""Creates results of data-dependent operators on meta tensors: the largest output, or an assumed output.

The output size of nonzero, nms or unique depends on values, and some models read a number from a tensor. If
an operator has a largest output, this output is the result, and the figures computed from it are upper
bounds. Otherwise, as for a number, the result is an assumption, and the real figures may be larger or
smaller. The reason of such figures begins with 'assumed'.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from explorer.engine.compat.torch import schema_of
from explorer.engine.costs.assumption import Assumption
from explorer.engine.costs.aten.expert_routing import EVENLY, Classes
from explorer.engine.formats.torch_module.meta_copy import MAX_KEPT_ELEMENTS
from explorer.engine.operators import cost_formulas

AssumeCount = Callable[[int, Any], int]
"""Returns an assumed count from its maximum and the mask whose elements are counted (None without a mask)."""


def _assume_all_indices(args: Sequence[Any], assume_count: AssumeCount) -> Any:
    source = args[0]
    count = assume_count(source.numel() if source.dim() else 1, source)
    return source.new_empty((count, source.dim()), dtype=torch.long)


def _keep_all(args: Sequence[Any], assume_count: AssumeCount) -> Any:
    return args[0].new_empty((assume_count(args[0].shape[0], None),), dtype=torch.long)


def _assume_all_distinct(args: Sequence[Any], assume_count: AssumeCount) -> Any:
    source = args[0]
    count = assume_count(source.numel(), None)
    return (
        source.new_empty((count,)),
        source.new_empty(source.shape, dtype=torch.long),
        source.new_empty((count,), dtype=torch.long),
    )


def _assume_all_distinct_slices(args: Sequence[Any], assume_count: AssumeCount) -> Any:
    source, axis = args[0], args[1]
    size = source.shape[axis]
    count = assume_count(size, None)
    shape = list(source.shape)
    shape[axis] = count
    return (
        source.new_empty(shape),
        source.new_empty((size,), dtype=torch.long),
        source.new_empty((count,), dtype=torch.long),
    )


def _assume_all_selected(args: Sequence[Any], assume_count: AssumeCount) -> Any:
    """Returns the result of indexing with a mask that selects every element, or None for other indices."""
    source, indices = args[0], list(args[1])
    mask_index = next((i for i, t in enumerate(indices) if _is_mask(t)), None)
    if mask_index is None:
        return None
    mask = indices[mask_index]
    if any(t is not None for i, t in enumerate(indices) if i != mask_index):
        return None
    leading, trailing = source.shape[:mask_index], source.shape[mask_index + mask.dim() :]
    return source.new_empty((*leading, assume_count(mask.numel(), mask), *trailing))


def _is_mask(tensor: Any) -> bool:
    return tensor is not None and tensor.dtype in (torch.bool, torch.uint8)


def _assume_all_masked(args: Sequence[Any], assume_count: AssumeCount) -> Any:
    shape = cost_formulas.broadcast(tuple(args[0].shape), tuple(args[1].shape))
    count = math.prod(d for d in shape if isinstance(d, int))
    return args[0].new_empty((assume_count(count, args[1] if args[1].numel() == count else None),))


def _assume_full_length(args: Sequence[Any], assume_count: AssumeCount) -> Any:
    """Packs a padded batch as if every sequence had the full length."""
    source, lengths, batch_first = args[:3]
    if not lengths.is_meta:
        return None
    batch, steps = (int(d) for d in (source.shape[:2] if batch_first else source.shape[1::-1]))
    steps = assume_count(steps, None)
    sizes = torch.full((steps,), batch, dtype=torch.long, device="cpu")
    return source.new_empty((steps * batch, *source.shape[2:])), sizes


def _assume_repeated_once(args: Sequence[Any], assume_count: AssumeCount) -> Any:
    repeats = args[0]
    # no largest count exists, so the run with other sizes adds one element
    return repeats.new_empty((repeats.numel() + (assume_count(2, None) == 1),))


def _assume_fewest_bins(args: Sequence[Any], assume_count: AssumeCount) -> Any:
    min_length = next((a for a in args[2:3] if isinstance(a, int)), 0)
    weights = args[1] if len(args) > 1 and args[1] is not None else None
    dtype = (
        torch.long if weights is None else weights.dtype if weights.dtype.is_floating_point else torch.float64
    )
    # no largest count exists, so the run with other sizes adds one bin
    return args[0].new_empty((max(min_length, 1) + (assume_count(2, None) == 1),), dtype=dtype)


def _assume_one(args: Sequence[Any], assume_count: AssumeCount | None = None) -> Any:
    dtype = args[0].dtype
    return True if dtype == torch.bool else 1.0 if dtype.is_floating_point else 1


ASKED = Assumption(
    "assumed: the model read a value of a tensor, taken to be 1 or true; later figures may depend on it"
)

EQUAL = Assumption("assumed: two tensors that were compared are equal")

BOUNDS: dict[str, tuple[Callable[[Sequence[Any], AssumeCount], Any], str]] = {
    "aten::nonzero": (_assume_all_indices, "nonzero: every element counts as nonzero"),
    "torchvision::nms": (_keep_all, "nms: every box counts as kept"),
    "aten::_unique2": (_assume_all_distinct, "unique: every value counts as distinct"),
    "aten::unique_consecutive": (_assume_all_distinct, "unique: every value counts as distinct"),
    "aten::unique_dim": (_assume_all_distinct_slices, "unique: every slice counts as distinct"),
    "aten::unique_dim_consecutive": (_assume_all_distinct_slices, "unique: every slice counts as distinct"),
    "aten::index": (_assume_all_selected, "indexing with a mask: every element counts as selected"),
    "aten::masked_select": (_assume_all_masked, "masked_select: every element counts as selected"),
    "aten::_pack_padded_sequence": (
        _assume_full_length,
        "packed sequence: every length counts as the longest",
    ),
    "aten::repeat_interleave": (_assume_repeated_once, Assumption("assumed: every element is repeated once")),
    "aten::bincount": (
        _assume_fewest_bins,
        Assumption("assumed: no value reaches beyond the least number of bins"),
    ),
    "aten::_local_scalar_dense": (_assume_one, ASKED),
    "aten::is_nonzero": (lambda args, assume_count: True, ASKED),
    "aten::equal": (lambda args, assume_count: True, EQUAL),
    "aten::allclose": (lambda args, assume_count: True, EQUAL),
}
"""For each operator that needs values: a function that creates its result, and the bound or assumption."""

VALUES = frozenset(("aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::allclose"))
"""Operators that pass a value to Python; everything after them may depend on it."""


VALUES_BESIDE = frozenset(("aten::_pack_padded_sequence", "aten::_pad_packed_sequence"))
"""Operators that need the values of one argument only, the lengths; this argument keeps its values."""

REFUSED = Assumption(
    "assumed: the model read a value of a tensor, taken to be false, because the model fails otherwise"
)

_MAX_VALUES = 1_000_000
"""Maximum number of values that are returned as Python numbers."""


def _fill_with_ones(tensor: Any) -> Any:
    """Returns a nested list in the shape of a tensor, filled with the assumed value (1 or True)."""
    ones: Any = _assume_one((tensor,))
    for size in reversed(tuple(tensor.shape)):
        ones = [copy.deepcopy(ones) for _ in range(size)]
    return ones


def assume_values(name: str, args: Sequence[Any]) -> tuple[Any, str] | None:
    """Returns the assumed result of a function that returns all values of a meta tensor.

    Returns:
        The result and the assumption, or None for any other function, or if there are too many values.
    """
    if name not in ("tolist", "numpy", "__array__") or not args or not getattr(args[0], "is_meta", False):
        return None
    tensor = args[0]
    if tensor.numel() > _MAX_VALUES or (name != "tolist" and tensor.dtype == torch.bfloat16):
        return None
    if name == "tolist":
        return _fill_with_ones(tensor), ASKED
    return torch.ones(tuple(tensor.shape), dtype=tensor.dtype, device="cpu").numpy(), ASKED


def assume_result(
    func: Any, args: Sequence[Any], classes: Classes, *, least: bool = False, valued: bool = False
) -> tuple[Any, str] | None:
    """Returns the assumed result of an operator that needs values, and the bound or assumption.

    Args:
        func: Operator.
        args: Positional arguments of the call.
        classes: Known class sizes, which may be below the upper bound.
        least: Whether to return the smallest output in place of the largest.
        valued: Whether the result gets the values that the assumption determines.

    Returns:
        The result and its reason, or None for an operator that runs without values.
    """
    bound = BOUNDS.get(schema_of(func).name)
    if bound is None or not any(_lacks_values(a) for a in args):
        return None
    reason = bound[1]

    def assume_count(count: int, mask: Any) -> int:
        nonlocal reason
        shared = None if mask is None else classes.count_true(mask)
        if shared is not None:
            reason = EVENLY
            return shared
        return min(count - 1, 1) if least and count else count

    result = bound[0](args, assume_count)
    if result is None:
        return None
    if valued and not least and reason is bound[1] and schema_of(func).name == "aten::nonzero":
        # if every element is nonzero, the indices are known
        source = args[0]
        if 0 < result.numel() <= MAX_KEPT_ELEMENTS:
            result = torch.ones(tuple(source.shape), device="cpu").nonzero()
    return result, reason


def _lacks_values(argument: Any) -> bool:
    """Whether an argument is a meta tensor, or contains one."""
    if isinstance(argument, (tuple, list)):
        return any(_lacks_values(a) for a in argument)
    return bool(getattr(argument, "is_meta", False))
