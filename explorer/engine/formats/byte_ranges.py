"""Byte ranges of tensors that are views of one storage, so that shared bytes are counted once.

Views of one storage may be equal, disjoint, or overlap in part: a slice of a weight, a transpose, every
second column. This module divides overlapping views into pieces. All bytes of a piece belong to the same
views, so counting each piece once counts each byte once.

This module imports only the standard library, because headers are printed before the engine is loaded.
"""

from __future__ import annotations

from math import prod

from explorer.base.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence
    from typing import TypeVar

    Name = TypeVar("Name", bound=Hashable)

    Piece = tuple[Hashable, int, int]
    """A piece: its key for counting it once, its number of elements, and its bytes."""

MANY_RUNS = (
    "parameters and bytes are upper bounds: {name} is a view whose bytes lie in too many pieces to compare"
)
"""Note for a model with tensors whose bytes are only an upper bound."""

RUNS = 1 << 20
"""Maximum number of contiguous runs of a tensor that are computed. A tensor with more counts as one run, from
its first byte to its last."""

MEMBERS = 1 << 20
"""Maximum sum of the numbers of pieces of a storage's tensors. Above it, no pieces are returned."""


@record
class TensorView:
    """A tensor as a view of a storage.

    Args:
        storage: Key of the storage.
        start: Offset of the tensor's first byte in the storage.
        width: Bytes of an element.
        shape: Sizes of the axes, in elements.
        strides: Steps of the axes, in elements.
        nbytes: Bytes of the tensor as stored in the file. They may differ from `width` times the number of
            elements.
    """

    storage: Hashable
    start: int
    width: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    nbytes: int

    @property
    def bytes_key(self) -> Hashable:
        """A key. Views with equal keys cover the same bytes, for example a matrix and its transpose."""
        return self.storage, self.start, self.width, tuple(_list_axes(self.shape, self.strides))

    @property
    def span(self) -> int:
        """Number of bytes from the first byte of the tensor to its last."""
        steps = sum((size - 1) * step for size, step in zip(self.shape, self.strides, strict=True))
        return (steps + 1) * self.width if prod(self.shape) else 0

    @property
    def has_overlapping_elements(self) -> bool:
        """Whether elements must overlap, as in an expanded tensor or in overlapping windows."""
        return self.span < prod(self.shape) * self.width


def _list_axes(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the (stride, size) of each axis, innermost first.

    Axes of size 1 or stride 0 are omitted, and contiguous axes are merged.
    """
    axes: list[tuple[int, int]] = []
    for step, size in sorted((s, n) for n, s in zip(shape, strides, strict=True) if n > 1 and s):
        if axes and step == axes[-1][0] * axes[-1][1]:
            axes[-1] = axes[-1][0], axes[-1][1] * size
        else:
            axes.append((step, size))
    return axes


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements are contiguous in some order of the axes."""
    axes = _list_axes(shape, strides)
    return not axes or (len(axes) == 1 and axes[0][0] == 1)


def _is_coarse(axes: Sequence[tuple[int, int]]) -> bool:
    """Whether a tensor has too many runs to compute each; `axes` are the axes outside a run."""
    return prod(size for _, size in axes) > RUNS


def _list_contiguous_runs(view: TensorView) -> list[tuple[int, int]]:
    """Returns the (begin, end) of each contiguous run of bytes of a tensor, sorted and disjoint.

    A tensor with more than `RUNS` runs is returned as one run.
    """
    if not prod(view.shape):
        return []
    axes = _list_axes(view.shape, view.strides)
    length = view.width
    if axes and axes[0][0] == 1:
        length *= axes.pop(0)[1]
    if _is_coarse(axes):
        return [(view.start, view.start + view.span)]
    begins = [view.start]
    for step, size in reversed(axes):
        jump = step * view.width
        begins = [begin + jump * index for begin in begins for index in range(size)]
    runs: list[tuple[int, int]] = []
    for begin in sorted(begins):
        if runs and begin <= runs[-1][1]:
            runs[-1] = runs[-1][0], max(runs[-1][1], begin + length)
        else:
            runs.append((begin, begin + length))
    return runs


def find_pieces(
    views: Mapping[Name, TensorView], bounded: set[Name] | None = None
) -> dict[Name, tuple[Piece, ...]]:
    """Computes the pieces of tensors in storages where views overlap in part, or elements of a view overlap.

    Args:
        views: Tensors by name. Names with the same bytes get the same pieces.
        bounded: Set to which this function adds the names of tensors whose bytes are only an upper bound,
            because their storage has too many runs or pieces.

    Returns:
        The pieces by tensor name. A tensor without an entry shares no bytes, or all of them, or its storage
        has more than `MEMBERS` pieces.
    """
    by_storage: dict[Hashable, dict[Hashable, list[Name]]] = {}
    for name, view in views.items():
        by_storage.setdefault(view.storage, {}).setdefault(view.bytes_key, []).append(name)
    shared: dict[Name, tuple[Piece, ...]] = {}
    for storage, places in by_storage.items():
        distinct = [views[names[0]] for names in places.values()]
        if not any(view.has_overlapping_elements for view in distinct) and not _has_overlap(distinct):
            continue
        pieces_by_view = _cut_pieces(storage, distinct)
        if bounded is not None and (
            not any(pieces_by_view) or any(_is_in_many_runs(view) for view in distinct)
        ):
            bounded.update(name for names in places.values() for name in names)
        for names, tensor_pieces in zip(places.values(), pieces_by_view, strict=True):
            if tensor_pieces:
                shared.update(dict.fromkeys(names, tensor_pieces))
    return shared


def _is_in_many_runs(view: TensorView) -> bool:
    """Whether `_list_contiguous_runs` treats the tensor as one run because it has too many."""
    axes = _list_axes(view.shape, view.strides)
    return bool(prod(view.shape)) and _is_coarse(axes[1:] if axes and axes[0][0] == 1 else axes)


def _has_overlap(views: Iterable[TensorView]) -> bool:
    """Whether the spans of any two tensors overlap."""
    end = -1
    for start, span in sorted((view.start, view.span) for view in views):
        if span and start < end:
            return True
        end = max(end, start + span)
    return False


def _cut_pieces(storage: Hashable, views: Sequence[TensorView]) -> list[tuple[Piece, ...]]:
    """Returns the pieces of each tensor of one storage; all are empty if there are more than `MEMBERS`."""
    changes: list[tuple[int, int]] = []
    for number, view in enumerate(views):
        changes += [(offset, number) for run in _list_contiguous_runs(view) for offset in run]
    changes.sort()
    # bit n of `covering` is set while tensor n covers the current byte
    covering, previous = 0, 0
    parts: dict[int, tuple[int, int]] = {}  # first byte and number of bytes, by the set of tensors
    for offset, number in changes:
        if covering and offset > previous:
            begin, size = parts.get(covering, (previous, 0))
            parts[covering] = begin, size + offset - previous
        covering ^= 1 << number
        previous = offset
    if sum(mask.bit_count() for mask in parts) > MEMBERS:
        return [() for _ in views]
    pieces_by_view: list[list[Piece]] = [[] for _ in views]
    for mask, (begin, size) in parts.items():
        remaining = mask
        while remaining:
            number = (remaining & -remaining).bit_length() - 1
            remaining &= remaining - 1
            view = views[number]
            dense_bytes = prod(view.shape) * view.width
            stored_size = (
                size if view.nbytes == dense_bytes or not dense_bytes else size * view.nbytes // dense_bytes
            )
            pieces_by_view[number].append(((storage, "bytes", begin), size // view.width, stored_size))
    return [tuple(tensor_pieces) for tensor_pieces in pieces_by_view]
