"""Computes the number of elements of each class in expert routing, where values decide the class.

The mask of one expert may select every token, but the masks of all experts together select a fixed number. A
router assigns a fixed number of places, whatever its values are. If a model processes every class, the class
sizes add up to that number, and the total work of equal experts is exact. Elements are divided evenly among
classes. Another run divides them unevenly, to check that the division does not change the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch

from explorer.engine.compat.torch import storage_key
from explorer.engine.costs.assumption import Assumption

EVENLY = Assumption("assumed: tokens sorted by value are spread evenly, for example over experts")

_INDEX_RESULTS = {
    "aten::topk": 1,
    "aten::sort": 1,
    "aten::max.dim": 1,
    "aten::argmax": None,
    "aten::multinomial": None,
}
"""Operators that return indices along an axis, with the index of that result (None for a single result)."""

_MASK_PRESERVING = frozenset(
    f"aten::{name}"
    for name in str.split("_to_copy clone any amax max sum gt ne logical_and bitwise_and index")
)
"""Operators on a mask that never increase the number of selected elements."""

COUNTS = frozenset(("aten::_unique2", "aten::any", "aten::bincount", "aten::count_nonzero", "aten::sum"))
"""Operators that may count the elements of each class."""

WATCHED = _MASK_PRESERVING | {
    f"aten::{name}" for name in ("topk", "sort", "mul", "argmax", "multinomial", "eq", "scatter", "scatter_")
}
"""Operators whose calls must be passed to `Classes.note`."""


class _Division:
    """The division of `total` places (elements that a router assigns) among `count` classes.

    Args:
        total: Number of places.
        count: Number of classes.
        uneven: Whether classes get different shares.
        at_most_one: Whether each class gets at most one place.
        columns: Number of columns of the table of all classes, if above `count`; further columns get nothing.
    """

    def __init__(
        self, total: int, count: int, uneven: bool, at_most_one: bool = False, columns: int | None = None
    ) -> None:
        self.total = total
        self.count = count
        self.uneven = uneven
        self.at_most_one = at_most_one
        self.columns = columns or count
        self.places: dict[Hashable, int] = {}

    def share(self, key: Hashable) -> int:
        """Returns the number of places of one class, by class index or by another key.

        Other keys get shares in the order of their first use, shares above 0 first.
        """
        if isinstance(key, int):
            return self._get_share(key)
        sizes = sorted(self.list_shares(), key=bool, reverse=True)
        return sizes[self.places.setdefault(key, len(self.places)) % len(sizes)]

    def _get_share(self, index: int) -> int:
        if index >= self.count:
            return 0
        share = self._sum_previous_shares(index + 1) - self._sum_previous_shares(index)
        return min(share, 1) if self.at_most_one else share

    def _sum_previous_shares(self, index: int) -> int:
        if self.uneven:
            return self.total * index * (index + 1) // (self.count * (self.count + 1))
        return self.total * index // self.count

    def list_shares(self) -> list[int]:
        """Returns the number of places of every column."""
        return [self._get_share(index) for index in range(self.columns)]


class Classes:
    """Records which meta tensors of one run hold classes, masks of classes, and counts.

    Attributes:
        used: Whether a division of elements has affected a result.
    """

    def __init__(self, uneven: bool, least: bool = False) -> None:
        self.uneven = uneven
        self.least = least
        self.used = False
        # all by the storage of a tensor: number of classes; tensor that it is a copy or slice of; division by
        # storage and size; division of a mask, its class (None: a table of all classes) and size of the table
        self._counts: dict[int, int] = {}
        self._roots: dict[int, int] = {}
        self._divisions: dict[tuple[int, int], _Division] = {}
        self._masks: dict[int, tuple[_Division, Hashable | None, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._counts or self._masks)

    def count_true(self, mask: Any) -> int | None:
        """Returns the number of true elements of a mask, or None if unknown."""
        entry = self._masks.get(_get_key(mask))
        if entry is None:
            return None
        division, key, elements = entry
        size = int(mask.numel())
        self.used = True
        if key is not None:
            return min(division.share(key), size)
        if size * division.columns == elements:
            # a slice of one class from the table of all classes
            return min(division.share(_find_column(mask, size, division.columns)), size)
        return min(-(-division.total * size // elements), size)

    def count_classes(self, name: str, args: Sequence[Any], make: Callable[[], Any]) -> Any:
        """Returns the result of an operator that counts the elements of classes, or lists the classes.

        Args:
            name: Name of the operator.
            args: Arguments of the call.
            make: Creates the operator's result without values.

        Returns:
            Tensors with values, or None if the classes are unknown.
        """
        if name in ("aten::bincount", "aten::_unique2"):
            count = self._counts.get(_get_key(args[0]), 0)
            division = _Division(args[0].numel(), count, self.uneven)
            if name == "aten::bincount":
                min_length = next((a for a in args[2:3] if isinstance(a, int)), 0)
                return self._build_values(division.list_shares()) if count and min_length == count else None
            if not count or division.total < count:
                return None
            inverse = args[0].new_empty(args[0].shape, dtype=torch.long)
            return self._build_values(list(range(count))), inverse, self._build_values(division.list_shares())
        entry = self._masks.get(_get_key(args[0]))
        if entry is None:
            return None
        division, key, elements = entry
        result = make()
        if key is not None and result.numel() == 1:
            return self._build_values([division.share(key)]).to(result.dtype).reshape(result.shape)
        if (
            key is None
            and name == "aten::sum"
            and result.numel() == division.columns
            and args[0].numel() == elements
        ):
            return self._build_values(division.list_shares()).to(result.dtype).reshape(result.shape)
        return None

    def _build_values(self, numbers: list[int]) -> Any:
        self.used = True
        return torch.tensor(numbers, device="cpu")

    def note(
        self, name: str, overload: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """Records the classes, masks and counts that an operator produces."""
        full = f"{name}.{overload}" if name == "aten::max" else name
        if full in _INDEX_RESULTS:
            position = _INDEX_RESULTS[full]
            axis = args[2] if name == "aten::topk" and len(args) > 2 else kwargs.get("dim", -1)
            axis = args[1] if name in ("aten::argmax", "aten::sort", "aten::max") and len(args) > 1 else axis
            if args[0].dim() and isinstance(axis, int):
                self._counts[_get_key(result if position is None else result[position])] = int(
                    args[0].shape[axis]
                )
        elif not self:
            return
        elif name == "aten::eq" and isinstance(args[0], torch.Tensor):
            self._compare(args[0], args[1], result)
        elif name in ("aten::scatter", "aten::scatter_"):
            value = kwargs.get("value", args[3] if len(args) > 3 else None)
            if isinstance(value, (int, float)) and value == 1 and len(args) > 2:
                index, columns = args[2], int(args[0].shape[args[1]])
                count = self._counts.get(self._find_root(index), columns + 1)
                if count <= columns:
                    division = _Division(index.numel(), count, self.uneven, columns=columns)
                    self._masks[_get_key(result)] = division, None, result.numel()
        elif name in _MASK_PRESERVING and isinstance(result, torch.Tensor) and args:
            self._copy_mask(args, result)
        elif name == "aten::mul":
            self._intersect_masks(args, result)

    def _copy_mask(self, args: Sequence[Any], result: Any) -> None:
        source = args[0]
        if not isinstance(source, torch.Tensor):
            return
        source_key, out_key = _get_key(source), _get_key(result)
        if source_key in self._counts and out_key != source_key:
            self._roots[out_key] = self._find_root(source)
            self._counts[out_key] = self._counts[source_key]
        entry = self._masks.get(source_key)
        if entry is None or out_key == source_key:
            return
        division, key, elements = entry
        if key is None and result.numel() * division.columns == elements:
            key = _find_selected_class(args)
            key = ("part", len(division.places), out_key) if key is None else key
        elif key is None and result.numel() != elements:
            # a reduction over the choices of each token, which are distinct
            if result.dim() == 0 or result.numel() % division.columns:
                return
            elements = result.numel()
        self._masks[out_key] = division, key, elements

    def _intersect_masks(self, args: Sequence[Any], result: Any) -> None:
        """Records a mask of all classes from which another mask removes tokens (above the capacity)."""
        for source in args[:2]:
            entry = self._masks.get(_get_key(source)) if isinstance(source, torch.Tensor) else None
            if entry is not None and entry[1] is None and result.numel() == entry[2]:
                full_division = entry[0]
                reduced_division = _Division(
                    full_division.total, full_division.count, self.uneven, self.least, full_division.columns
                )
                self._masks[_get_key(result)] = reduced_division, None, result.numel()

    def _compare(self, classes: Any, operand: Any, result: Any) -> None:
        """Records a mask of one class (compared with a number) or of all classes (with distinct numbers)."""
        if isinstance(operand, torch.Tensor) and not operand.is_meta and operand.numel() == 1:
            operand = operand.item()
        if isinstance(operand, torch.Tensor) and _get_key(classes) not in self._counts:
            classes, operand = operand, classes
        count = self._counts.get(_get_key(classes))
        if count is None:
            return
        root = self._find_root(classes)
        if isinstance(operand, int) and 0 <= operand < count:
            # columns of one table (first choice, second choice) are divided separately
            size = classes.numel()
            division = self._divisions.setdefault((root, size), _Division(size, count, self.uneven))
            self._masks[_get_key(result)] = division, operand, result.numel()
        elif isinstance(operand, torch.Tensor):
            columns = operand.numel()
            if (
                result.numel() == classes.numel() * columns
                and max(operand.shape, default=0) == columns >= count
            ):
                division = _Division(classes.numel(), count, self.uneven, columns=columns)
                self._masks[_get_key(result)] = division, None, result.numel()

    def _find_root(self, tensor: Any) -> int:
        return self._roots.get(_get_key(tensor), _get_key(tensor))


def _find_column(mask: Any, size: int, columns: int) -> int:
    """Returns the column of a table that a slice selects. The classes are on the first or last axis."""
    offset = int(mask.storage_offset())
    return offset // size if mask.is_contiguous() and size > 1 else offset % columns


def _find_selected_class(args: Sequence[Any]) -> int | None:
    """Returns the class index that selects a part of a table, or None if it has no value."""
    indices = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ()
    first = indices[0] if indices else None
    has_value = isinstance(first, torch.Tensor) and not first.is_meta and first.numel() == 1
    return int(first) if has_value and first is not None else None


def _get_key(tensor: Any) -> int:
    return storage_key(tensor.untyped_storage())
