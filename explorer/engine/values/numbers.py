"""Slabs: the numbers of a tensor in one form, whatever file or object holds them."""

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
    """Scales and zero points of integers: number = scale x (integer - zero point).

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
    """Codes in the places of a tensor's numbers: number = scale x (code - zero point) + offset.

    Attributes:
        codes, scales, offsets: In the order of the numbers; None: every offset is 0.
        zero: The zero point, or the zero point of each number in order.
    """

    codes: Numbers
    scales: Numbers
    offsets: Numbers | None
    zero: int | Numbers


class Numbers(Struct, frozen=True):
    """The numbers of one tensor, without holding them.

    Attributes:
        name: Name of the tensor.
        dtype: The stored type, in the spelling of numpy (or ml_dtypes).
        shape: Concrete.
        nbytes: Stored bytes.
        slabs: Yields all elements in order, as one-dimensional arrays of at most `SLAB` bytes; can be
            called again. Packed types come unpacked, one number a byte.
        layer: Path of the layer that the tensor belongs to; empty if that has to be looked up.
        identity: The same for all names of one stored tensor; None if the tensor has one name.
        trainable: Whether it is a parameter with requires_grad; None if the format does not say.
        zeros: Elements that are zero without being stored (sparse tensors); `slabs` yields the others.
        raw: Yields the stored bytes, where `slabs` computes other numbers from them (blocks of integers that
            share a scale); None where they are the same.
        part: Yields the elements between two places without reading the elements before; None if it cannot.
        scales: Scales of its integers, if the model gives them; None if the integers are the numbers.
        coded: Its codes, where `slabs` computes numbers from codes; None if they are unknown.
        uncoded: The reason why the codes are unknown, in a line for the user; '' for none.
        opened: Unpacks numbers that are packed together (MatMulNBits) to a tensor, K x N, or N x K on
            request; None where nothing is packed.
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
        """The count of all elements."""
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
        kind = np.dtype(dtype)  # also finds ml_dtypes' types
        if kind.isbuiltin != 2:
            return kind
    except TypeError:
        pass
    return np.dtype({"int": np.int8, "uin": np.uint8}.get(dtype[:3], np.float32))


def behind(slabs: Iterator[Array], start: int, stop: int) -> Iterator[Array]:
    """The elements `[start, stop)` of slabs."""
    at = 0
    for slab in slabs:
        if at >= stop:
            return
        piece = slab[max(start - at, 0) : stop - at]
        at += slab.size
        if piece.size:
            yield piece


def chunks(numbers: Numbers, cancel: Cancel = None) -> Iterator[Array]:
    """The elements of a tensor, in pieces that fit the processor's cache.

    Raises:
        Cancelled: `cancel`, called at every slab, returned True.
    """
    for slab in numbers.slabs():
        stop_if(cancel)
        for at in range(0, slab.size, _CHUNK):
            yield slab[at : at + _CHUNK]
