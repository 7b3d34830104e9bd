"""The numbers of a tensor, in the same form for every file format and for modules. They are read in slabs.

A slab is a one-dimensional array with at most `SLAB` bytes of a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.engine.graph.dtypes import get_numpy_type
from explorer.engine.progress import Cancel, stop_if

Array = np.ndarray[Any, np.dtype[Any]]
Slabs = Callable[[], Iterator[Array]]
"""Function that yields the slabs of a tensor in order."""

SLAB = 1 << 24
"""Maximum bytes of a tensor that are read at a time."""

_CHUNK = 1 << 17
"""Numbers that are converted to float64 at a time: 1 MiB, which stays in the processor's cache."""


class Scales(Struct, frozen=True):
    """Scales and zero points of integers: number = scale x (integer - zero point).

    Attributes:
        scale: Function that returns the scales. They have one element for the whole tensor, or one dimension
            along `axis`. With `block`, they have the tensor's rank and one scale for each `block` elements
            along `axis`.
        zero: Function that returns the zero points, of the same shape, or None if all are 0.
        axis: Axis of the scales; a negative axis counts from the last one.
        block: Number of elements along `axis` that share a scale, or 0 for no blocks.
        dtype: Type to which the numbers are rounded, or '' for that of the scales.
    """

    scale: Callable[[], Array]
    zero: Callable[[], Array] | None = None
    axis: int = 0
    block: int = 0
    dtype: str = ""

    @property
    def number_type(self) -> np.dtype[Any]:
        """Type of the numbers. Powers of two without a sign, the scales of MX formats, give float32."""
        scale_type = self.scale().dtype
        default = "float32" if scale_type.name == "float8_e8m0fnu" else scale_type.name
        return get_numpy_type(self.dtype or default)


class StoredCodes(Struct, frozen=True):
    """Codes of a tensor's numbers: number = scale x (code - zero point) + offset.

    Attributes:
        codes: Code of each number, in order.
        scales: Scale of each number, in order.
        offsets: Offset of each number, in order, or None if all are 0.
        zero: The zero point, or the zero point of each number in order.
    """

    codes: Numbers
    scales: Numbers
    offsets: Numbers | None
    zero: int | Numbers


class Numbers(Struct, frozen=True):
    """The numbers of one tensor, which are read on demand.

    Attributes:
        name: Name of the tensor.
        dtype: Stored type, in the spelling of numpy or ml_dtypes.
        shape: Shape of the tensor, without symbolic dimensions.
        nbytes: Stored bytes.
        slabs: Function that yields all elements in order, as one-dimensional arrays of at most `SLAB` bytes.
            It can be called repeatedly. Packed types are unpacked to one number per byte.
        layer: Path of the layer of the tensor, or '' if it must be looked up.
        identity: Value that is equal for all names of one stored tensor, or None if the tensor has one name.
        trainable: Whether the tensor is a parameter with requires_grad, or None if the format does not say.
        unstored_zeros: Number of zeros of a sparse tensor that are not stored. `slabs` yields the other
            elements.
        raw: Function that yields the stored bytes, or None if `slabs` yields the stored numbers. It is set if
            `slabs` computes the numbers, as from blocks of integers that share a scale.
        part: Function that yields the elements `[start, stop)` without reading earlier elements, or None.
        scales: Scales of the integers, or None if the integers are the numbers.
        stored_codes: Codes from which `slabs` computes the numbers, or None if they are unknown.
        missing_codes_reason: Reason why the codes are unknown, in one line for the user, or ''.
        unpack: Function that unpacks a packed weight (MatMulNBits) to a tensor of shape [K, N], or of shape
            [N, K] if its argument is True. None if the weight is not packed.
        by_rows: Whether the weight has shape [N, K], with a row for each output (Gemm with transB).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    slabs: Slabs
    layer: str = ""
    identity: Any = None
    trainable: bool | None = None
    unstored_zeros: int = 0
    raw: Slabs | None = None
    part: Callable[[int, int], Iterator[Array]] | None = None
    scales: Scales | None = None
    stored_codes: StoredCodes | None = None
    missing_codes_reason: str = ""
    unpack: Callable[..., Numbers] | None = None
    by_rows: bool = False

    @property
    def elements(self) -> int:
        """Number of all elements."""
        return math.prod(self.shape)


def make_slabs(array: Array) -> Slabs:
    """Returns a function that yields the slabs of an array in memory. An array in C order is not copied."""
    step = max(SLAB // max(array.itemsize, 1), 1)

    def read_slabs() -> Iterator[Array]:
        flat = array.reshape(-1)
        for start in range(0, flat.size, step):
            yield flat[start : start + step]

    return read_slabs


def split_into_slabs(values: Any) -> Iterator[Any]:
    """Yields an array or a torch tensor, which may be strided, in parts of at most `SLAB` bytes."""
    size = math.prod(values.shape) * values.itemsize
    if not size:
        return
    rows = SLAB * values.shape[0] // size if size > SLAB else 0
    if size <= SLAB:
        yield values
    elif not rows:
        for part in values:
            yield from split_into_slabs(part)
    else:
        yield from (values[start : start + rows] for start in range(0, values.shape[0], rows))


def choose_file_type(dtype: str) -> np.dtype[Any]:
    """Returns the type with which an .npy file stores numbers of a type.

    Types that numpy lacks become float32 or 8-bit integers.
    """
    try:
        numpy_type = np.dtype(dtype)  # ml_dtypes registers its types, so they are found, too
        if numpy_type.isbuiltin != 2:
            return numpy_type
    except TypeError:
        pass
    return np.dtype({"int": np.int8, "uin": np.uint8}.get(dtype[:3], np.float32))


def select_elements(slabs: Iterator[Array], start: int, stop: int) -> Iterator[Array]:
    """Yields the elements `[start, stop)` of slabs."""
    position = 0
    for slab in slabs:
        if position >= stop:
            return
        piece = slab[max(start - position, 0) : stop - position]
        position += slab.size
        if piece.size:
            yield piece


def read_chunks(numbers: Numbers, cancel: Cancel = None) -> Iterator[Array]:
    """Yields the elements of a tensor, in pieces that fit in the processor's cache.

    Raises:
        Cancelled: `cancel`, which is called at every slab, returned True.
    """
    for slab in numbers.slabs():
        stop_if(cancel)
        for start in range(0, slab.size, _CHUNK):
            yield slab[start : start + _CHUNK]
