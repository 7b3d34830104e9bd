"""Slabs: the numbers of a tensor as everything here sees them, whatever they are kept in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.engine.progress import Cancel, stop_if

Array = np.ndarray[Any, np.dtype[Any]]
Slabs = Callable[[], Iterator[Array]]

SLAB = 1 << 24
"""Bytes of a tensor that are looked at together, at most."""

_CHUNK = 1 << 17
"""Numbers that are converted to float64 together: 1 MiB, which stays in the processor's cache."""


class Scales(Struct, frozen=True):
    """What integers stand for: number = scale x (integer - zero point).

    Attributes:
        scale: Makes the scales: of one element for the whole tensor; one-dimensional along `axis`; or, with
            `block`, of the tensor's rank, one for each `block` elements along `axis`.
        zero: Makes the zero points, of the same shape; None: all are 0.
        axis: See `scale`; negative from behind.
        block: See `scale`; 0 for none.
    """

    scale: Callable[[], Array]
    zero: Callable[[], Array] | None = None
    axis: int = 0
    block: int = 0


class StoredCodes(Struct, frozen=True):
    """What lies in the places of a tensor's numbers: number = scale x (code - zero point) + offset.

    Attributes:
        codes, scales, offsets: In the order of the numbers; None: every offset is 0.
        zero: The zero point, or that of each number in their order.
    """

    codes: Numbers
    scales: Numbers
    offsets: Numbers | None
    zero: int | Numbers


class Numbers(Struct, frozen=True):
    """The numbers of one tensor, without holding them.

    Attributes:
        name: Of the tensor.
        dtype: As stored, in numpy's (or ml_dtypes') spelling.
        shape: Concrete.
        nbytes: As stored.
        slabs: Yields all elements in order, as one-dimensional arrays of at most `SLAB` bytes; can be
            called again. Packed types come unpacked, one number a byte.
        layer: Path of the layer that the tensor belongs to; empty if that has to be looked up.
        identity: The same for names that are one stored tensor; None if it is nobody else's.
        trainable: Whether it is a parameter with requires_grad; None if the format does not say.
        zeros: Elements that are zero without being stored (sparse tensors); `slabs` yields the others.
        raw: Yields the bytes as stored, where `slabs` makes other numbers of them (blocks of integers that
            share a scale); None where they are the same.
        part: Yields the elements from one place in this order to before another, where those before them need
            not be gone through; None where they have to.
        scales: What its integers stand for, if the model says so; None if they are what they are.
        coded: What lies in their places, where `slabs` makes the numbers of it; None where that is not known.
        uncoded: Why it is not, in a line for the user; '' where there is nothing to say.
        opened: Makes of several numbers that are packed in one (MatMulNBits) the tensor that they are, K x N,
            or N x K where it is told so; None where nothing is packed so.
        by_rows: Whether it is N x K, a row for each output (Gemm with transB).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    slabs: Slabs
    layer: str = ""
    identity: Any = None
    trainable: bool | None = None
    zeros: int = 0
    raw: Slabs | None = None
    part: Callable[[int, int], Iterator[Array]] | None = None
    scales: Scales | None = None
    coded: StoredCodes | None = None
    uncoded: str = ""
    opened: Callable[..., Numbers] | None = None
    by_rows: bool = False

    @property
    def elements(self) -> int:
        """How many there are."""
        return math.prod(self.shape)


def slabs_of(array: Array) -> Slabs:
    """The slabs of an array that is in memory or mapped; an array in C order is not copied."""
    step = max(SLAB // max(array.itemsize, 1), 1)

    def slabs() -> Iterator[Array]:
        flat = array.reshape(-1)
        for at in range(0, flat.size, step):
            yield flat[at : at + step]

    return slabs


def rows_in_slabs(values: Any) -> Iterator[Any]:
    """An array or a tensor of torch's, which may not lie in one piece, in parts of at most `SLAB` bytes."""
    size = math.prod(values.shape) * values.itemsize
    if not size:
        return
    rows = SLAB * values.shape[0] // size if size > SLAB else 0
    if size <= SLAB:
        yield values
    elif not rows:
        for part in values:
            yield from rows_in_slabs(part)
    else:
        yield from (values[at : at + rows] for at in range(0, values.shape[0], rows))


def file_type(dtype: str) -> np.dtype[Any]:
    """The type in a file of numpy's: of a type that it has no word for float32, or 8 bits."""
    try:
        kind = np.dtype(dtype)  # finds ml_dtypes' types, too, and says so
        if kind.isbuiltin != 2:
            return kind
    except TypeError:
        pass
    return np.dtype({"int": np.int8, "uin": np.uint8}.get(dtype[:3], np.float32))


def behind(slabs: Iterator[Array], start: int, stop: int) -> Iterator[Array]:
    """Of elements in slabs those from `start` to before `stop`."""
    at = 0
    for slab in slabs:
        if at >= stop:
            return
        piece = slab[max(start - at, 0) : stop - at]
        at += slab.size
        if piece.size:
            yield piece


def chunks(numbers: Numbers, cancel: Cancel = None) -> Iterator[Array]:
    """The elements of a tensor in pieces that are quick to work on.

    Raises:
        Cancelled: `cancel`, asked at every slab, said so.
    """
    for slab in numbers.slabs():
        stop_if(cancel)
        for at in range(0, slab.size, _CHUNK):
            yield slab[at : at + _CHUNK]
