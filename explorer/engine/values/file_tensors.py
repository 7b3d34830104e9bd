"""Tensors in files, read a slab at a time from a memory map. The pages of a slab are released after it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from explorer.base.errors import BadModel
from explorer.base.units import many_text
from explorer.engine.formats.tensor_index import StoredTensor
from explorer.engine.graph.dtypes import get_numpy_type
from explorer.engine.graph.model import DTYPES, FileSpan, Source, Tensor
from explorer.engine.values.ggml import codes as ggml_codes
from explorer.engine.values.ggml import dequantize as ggml_blocks
from explorer.engine.values.numbers import Array, Numbers, Slabs, StoredCodes, split_into_slabs
from explorer.engine.values.onnx_tensors import read_part, read_slabs
from explorer.host import input_files

_PLAIN = frozenset(d.name for d in DTYPES.values() if d.bits)
"""Types whose numbers are stored one after the other, each in the same number of bits."""

_BLOCKS = (
    "the numbers of quantized tensors are what ggml computes with: each integer times the scale of its block,"
    " in float32"
)


def list_stored(
    tensors: Sequence[StoredTensor], strides: Mapping[str, tuple[int, ...]]
) -> tuple[list[Numbers], tuple[str, ...]]:
    """Returns the numbers of tensors, which are read on demand, and notes about them.

    Args:
        tensors: The tensors in their files.
        strides: Strides, in elements, of tensors that are not contiguous, by name.
    """
    files: dict[str, Source] = {}

    def open_file(path: str) -> Source:
        if path not in files:
            try:
                files[path] = Source(path)
            except OSError as error:
                raise BadModel(f"cannot be read: {error.strerror}", where=path) from None
        return files[path]

    unread: Counter[str] = Counter()
    tensor_numbers = []
    for tensor in tensors:
        reason = tensor.unread or _explain_unread(tensor.dtype)
        if reason:
            unread[reason] += 1
        tensor_numbers.append(_build_numbers(tensor, open_file, reason, strides.get(tensor.name)))
    notes = [_BLOCKS] if any(ggml_blocks.can_dequantize(t.dtype) for t in tensors) else []
    notes += [
        f"the numbers of {many_text(count, 'tensor')} are not read: {reason}"
        for reason, count in unread.items()
    ]
    return tensor_numbers, tuple(notes)


def _explain_unread(dtype: str) -> str:
    """Returns the reason why numbers of this type cannot be read, or '' if they can."""
    if dtype in _PLAIN or ggml_blocks.can_dequantize(dtype):
        return ""
    return f"Explorer does not know how {dtype} is packed"


def _build_numbers(
    tensor: StoredTensor, open_file: Callable[[str], Source], reason: str, stride: Sequence[int] | None
) -> Numbers:
    """Returns the numbers of a tensor, which are read on demand.

    Args:
        tensor: The tensor in its file.
        open_file: Function that maps the file at a path.
        reason: Reason why the numbers cannot be read, or ''.
        stride: Strides in elements, or None for a contiguous tensor.
    """

    def get_span() -> FileSpan:
        mapped = open_file(tensor.path)
        if tensor.offset + tensor.nbytes > mapped.size:
            raise BadModel(f"has become shorter: '{tensor.name}' is no longer in it", where=tensor.path)
        return FileSpan(mapped, tensor.offset, tensor.nbytes)

    def read_plain_slabs() -> Iterator[Array]:
        return read_slabs(Tensor(tensor.name, tensor.dtype, tensor.shape, get_span()))

    def read_block_slabs() -> Iterator[Array]:
        return ggml_blocks.read_slabs(tensor.dtype, get_span())

    def read_range(start: int, stop: int) -> Iterator[Array]:
        if is_quantized:
            return ggml_blocks.read_part(tensor.dtype, get_span(), start, stop)
        return read_part(Tensor(tensor.name, tensor.dtype, tensor.shape, get_span()), start, stop)

    def read_raw_slabs() -> Iterator[Array]:
        return read_slabs(Tensor(tensor.name, "uint8", (tensor.nbytes,), get_span()))

    is_quantized = ggml_blocks.can_dequantize(tensor.dtype)
    slabs: Slabs
    if reason:
        slabs = partial(iter, ())
    elif stride is not None:
        slabs = _make_strided_slabs(tensor, stride)
    else:
        slabs = read_block_slabs if is_quantized else read_plain_slabs
    default_identity = tensor.path, tensor.offset, tensor.name
    return Numbers(
        tensor.name,
        tensor.dtype,
        tensor.shape,
        tensor.nbytes,
        slabs,
        identity=default_identity if tensor.identity is None else tensor.identity,
        trainable=tensor.trainable,
        raw=read_raw_slabs if is_quantized or reason else None,
        part=None if reason or stride is not None else read_range,
        stored_codes=None if reason else _read_codes(tensor, get_span),
        missing_codes_reason=ggml_codes.explain_missing_codes(tensor.dtype),
    )


def _read_codes(tensor: StoredTensor, get_span: Callable[[], FileSpan]) -> StoredCodes | None:
    """Returns the codes of ggml's blocks, which are read on demand, or None for a type without codes."""
    zero = ggml_codes.get_zero_point(tensor.dtype)
    if zero is None:
        return None

    def build_part(part: ggml_codes.Part) -> Numbers:
        def read_range(start: int, stop: int) -> Iterator[Array]:
            return ggml_codes.read_part(tensor.dtype, get_span(), part, start, stop)

        read_all = partial(read_range, 0, math.prod(tensor.shape))
        return Numbers(tensor.name, tensor.dtype, tensor.shape, tensor.nbytes, read_all, part=read_range)

    codes, scales, *offsets = (build_part(part) for part in ggml_codes.list_parts(tensor.dtype))
    return StoredCodes(codes, scales, offsets[0] if offsets else None, zero)


def _make_strided_slabs(tensor: StoredTensor, stride: Sequence[int]) -> Slabs:
    """Returns a function that yields the slabs of a tensor that is not contiguous, in order."""

    def read_slabs() -> Iterator[Array]:
        numpy_type = get_numpy_type(tensor.dtype)
        try:
            mapped = input_files.map_file(tensor.path)
            steps = tuple(step * numpy_type.itemsize for step in stride)
            view: Array = np.ndarray(tensor.shape, numpy_type, mapped, tensor.offset, steps)
        except (OSError, ValueError, TypeError) as error:
            raise BadModel(f"'{tensor.name}' is no longer in it", where=tensor.path) from error
        yield from (part.reshape(-1) for part in split_into_slabs(view))

    return read_slabs
