"""Byte ranges of tensors that are views of one storage: shared bytes count once.

Tensors of one storage may be equal, may lie side by side, or may share a part: a slice of a weight, a
transpose, every second column. This module cuts such tensors into pieces. All bytes of a piece belong to the
same set of tensors, so counting each piece once counts each byte once.

Only the standard library is imported: headers are printed before the engine is loaded.
"""

from __future__ import annotations

from math import prod

from explorer.base.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    Piece = tuple[Hashable, int, int]
    """A piece: the key by which it counts once, its elements, its bytes."""

MANY_RUNS = (
    "parameters and bytes are at most these: {name} is a view, and its bytes lie in more pieces than are"
    " told apart"
)
"""Note on tensors whose bytes are an upper bound."""

RUNS = 1 << 20
"""Most runs of bytes of a tensor that are examined one by one; with more, the tensor takes its whole span."""

MEMBERS = 1 << 20
"""Most pieces of all tensors of a storage together; with more, pieces are not computed."""


@record
class TensorView:
    """A tensor as a place in a storage.

    Args:
        storage: Key of the storage.
        start: First byte of the tensor in the storage.
        width: Bytes of an element.
        shape, strides: In elements.
        nbytes: Bytes of the tensor alone; they differ from those of its elements if a file stores it in
            another form.
    """

    storage: Hashable
    start: int
    width: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    nbytes: int

    @property
    def place(self) -> Hashable:
        """A key that is equal for tensors with the same bytes, as far as their axes tell."""
        return self.storage, self.start, self.width, tuple(_axes(self.shape, self.strides))

    @property
    def span(self) -> int:
        """Number of bytes from its first byte to its last."""
        steps = sum((size - 1) * step for size, step in zip(self.shape, self.strides, strict=True))
        return (steps + 1) * self.width if prod(self.shape) else 0

    @property
    def repeats(self) -> bool:
        """Whether its elements overlap: an expanded tensor, or overlapping windows."""
        return self.span < prod(self.shape) * self.width


def _axes(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """(stride, size) of the axes with a stride, innermost first; contiguous axes are merged."""
    axes: list[tuple[int, int]] = []
    for step, size in sorted((s, n) for n, s in zip(shape, strides, strict=True) if n > 1 and s):
        if axes and step == axes[-1][0] * axes[-1][1]:
            axes[-1] = axes[-1][0], axes[-1][1] * size
        else:
            axes.append((step, size))
    return axes


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements, in some order of the axes, are contiguous."""
    axes = _axes(shape, strides)
    return not axes or (len(axes) == 1 and axes[0][0] == 1)


def _is_coarse(axes: Sequence[tuple[int, int]]) -> bool:
    """Whether a tensor has too many runs (one for each step along these axes) to examine each."""
    return prod(size for _, size in axes) > RUNS


def _runs(view: TensorView) -> list[tuple[int, int]]:
    """(begin, end) of the separate runs of bytes of a tensor, in order."""
    if not prod(view.shape):
        return []
    axes = _axes(view.shape, view.strides)
    length = view.width
    if axes and axes[0][0] == 1:
        length *= axes.pop(0)[1]
    if _is_coarse(axes):
        return [(view.start, view.start + view.span)]
    begins = [view.start]
    for step, size in reversed(axes):
        jump = step * view.width
        begins = [begin + jump * at for begin in begins for at in range(size)]
    runs: list[tuple[int, int]] = []
    for begin in sorted(begins):
        if runs and begin <= runs[-1][1]:
            runs[-1] = runs[-1][0], max(runs[-1][1], begin + length)
        else:
            runs.append((begin, begin + length))
    return runs


def pieces(views: Mapping[str, TensorView], bounded: set[str] | None = None) -> dict[str, tuple[Piece, ...]]:
    """The pieces of tensors that share some bytes with others, or repeat their own elements.

    Args:
        views: Every tensor by its name; names with the same bytes get the same pieces.
        bounded: Set that gets the names of tensors whose bytes are only an upper bound, because their storage
            has too many runs or pieces.

    Returns:
        The pieces by tensor name; a tensor that is missing shares nothing, or all of its bytes.
    """
    by_storage: dict[Hashable, dict[Hashable, list[str]]] = {}
    for name, view in views.items():
        by_storage.setdefault(view.storage, {}).setdefault(view.place, []).append(name)
    shared: dict[str, tuple[Piece, ...]] = {}
    for storage, places in by_storage.items():
        distinct = [views[names[0]] for names in places.values()]
        if not any(view.repeats for view in distinct) and not _touch(distinct):
            continue
        cut = _cut(storage, distinct)
        if bounded is not None and (not any(cut) or any(_is_in_many_runs(view) for view in distinct)):
            bounded.update(name for names in places.values() for name in names)
        for names, tensor_pieces in zip(places.values(), cut, strict=True):
            if tensor_pieces:
                shared.update(dict.fromkeys(names, tensor_pieces))
    return shared


def _is_in_many_runs(view: TensorView) -> bool:
    axes = _axes(view.shape, view.strides)
    return bool(prod(view.shape)) and _is_coarse(axes[1:] if axes and axes[0][0] == 1 else axes)


def _touch(views: Iterable[TensorView]) -> bool:
    """Whether the spans of any tensors overlap."""
    reached = -1
    for start, span in sorted((view.start, view.span) for view in views):
        if span and start < reached:
            return True
        reached = max(reached, start + span)
    return False


def _cut(storage: Hashable, views: Sequence[TensorView]) -> list[tuple[Piece, ...]]:
    """The pieces of each tensor of one storage."""
    changes: list[tuple[int, int]] = []
    for number, view in enumerate(views):
        changes += [(place, number) for run in _runs(view) for place in run]
    changes.sort()
    # bit n: tensor n covers this place
    inside, before = 0, 0
    parts: dict[int, tuple[int, int]] = {}
    for place, number in changes:
        if inside and place > before:
            begin, size = parts.get(inside, (before, 0))
            parts[inside] = begin, size + place - before
        inside ^= 1 << number
        before = place
    if sum(mask.bit_count() for mask in parts) > MEMBERS:
        return [() for _ in views]
    cut: list[list[Piece]] = [[] for _ in views]
    for mask, (begin, size) in parts.items():
        rest = mask
        while rest:
            number = (rest & -rest).bit_length() - 1
            rest &= rest - 1
            view = views[number]
            dense_bytes = prod(view.shape) * view.width
            stored_size = (
                size if view.nbytes == dense_bytes or not dense_bytes else size * view.nbytes // dense_bytes
            )
            cut[number].append(((storage, "bytes", begin), size // view.width, stored_size))
    return [tuple(dense_bytes) for dense_bytes in cut]
