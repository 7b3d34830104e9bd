"""Tensors in files: the numbers are memory-mapped, read a slab at a time, and their pages then released."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from explorer.base.errors import BadModel
from explorer.engine.formats.tensor_index import StoredTensor
from explorer.engine.graph.dtypes import get_numpy_type
from explorer.engine.graph.model import DTYPES, FileSpan, Source, Tensor
from explorer.engine.values.ggml import codes as ggml_codes
from explorer.engine.values.ggml import dequantize as ggml_blocks
from explorer.engine.values.numbers import Array, Numbers, Slabs, StoredCodes, rows_in_slabs
from explorer.engine.values.onnx_tensors import part_of_tensor, slabs_of_tensor
from explorer.host import input_files

_PLAIN = frozenset(d.name for d in DTYPES.values() if d.bits)
"""Types whose numbers are stored one by one, unpacked."""

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

    def source(path: str) -> Source:
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
        tensor_numbers.append(_numbers(tensor, source, reason, strides.get(tensor.name)))
    notes = [_BLOCKS] if any(ggml_blocks.can_dequantize(t.dtype) for t in tensors) else []
    notes += [f"the numbers of {count:,} tensors are not read: {reason}" for reason, count in unread.items()]
    return tensor_numbers, tuple(notes)


def _explain_unread(dtype: str) -> str:
    """Returns the reason why numbers of this type cannot be read, or '' if they can."""
    if dtype in _PLAIN or ggml_blocks.can_dequantize(dtype):
        return ""
    return f"nobody here knows how {dtype} is packed"


def _numbers(
    tensor: StoredTensor, source: Callable[[str], Source], reason: str, stride: Sequence[int] | None
) -> Numbers:
    def span() -> FileSpan:
        mapped = source(tensor.path)
        if tensor.offset + tensor.nbytes > mapped.size:
            raise BadModel(f"has become shorter: '{tensor.name}' is no longer in it", where=tensor.path)
        return FileSpan(mapped, tensor.offset, tensor.nbytes)

    def read_plain() -> Iterator[Array]:
        return slabs_of_tensor(Tensor(tensor.name, tensor.dtype, tensor.shape, span()))

    def blocks() -> Iterator[Array]:
        return ggml_blocks.slabs(tensor.dtype, span())

    def part(start: int, stop: int) -> Iterator[Array]:
        if quantized:
            return ggml_blocks.part(tensor.dtype, span(), start, stop)
        return part_of_tensor(Tensor(tensor.name, tensor.dtype, tensor.shape, span()), start, stop)

    def raw() -> Iterator[Array]:
        return slabs_of_tensor(Tensor(tensor.name, "uint8", (tensor.nbytes,), span()))

    quantized = ggml_blocks.can_dequantize(tensor.dtype)
    slabs: Slabs = (lambda: iter(())) if reason else blocks if quantized else read_plain
    if stride is not None and not reason:
        slabs = _strided(tensor, stride)
    return Numbers(
        tensor.name,
        tensor.dtype,
        tensor.shape,
        tensor.nbytes,
        slabs,
        identity=tensor.identity
        if tensor.identity is not None
        else (tensor.path, tensor.offset, tensor.name),
        trainable=tensor.trainable,
        raw=raw if quantized or reason else None,
        part=None if reason or stride is not None else part,
        coded=None if reason else _read_codes(tensor, span),
        uncoded=ggml_codes.missing_codes_reason(tensor.dtype),
    )


def _read_codes(tensor: StoredTensor, span: Callable[[], FileSpan]) -> StoredCodes | None:
    """Returns the codes of ggml's blocks, which are read on demand, or None for a type without codes."""
    zero = ggml_codes.zero_point(tensor.dtype)
    if zero is None:
        return None

    def numbers(kind: ggml_codes.Part) -> Numbers:
        def part(start: int, stop: int) -> Iterator[Array]:
            return ggml_codes.read_part(tensor.dtype, span(), kind, start, stop)

        every = partial(part, 0, math.prod(tensor.shape))
        return Numbers(tensor.name, tensor.dtype, tensor.shape, tensor.nbytes, every, part=part)

    code_parts = [numbers(kind) for kind in ggml_codes.parts(tensor.dtype)]
    return StoredCodes(code_parts[0], code_parts[1], code_parts[2] if len(code_parts) > 2 else None, zero)


def _strided(tensor: StoredTensor, stride: Sequence[int]) -> Slabs:
    """Returns the slabs of a tensor that is not contiguous, with the elements in order."""

    def slabs() -> Iterator[Array]:
        kind = get_numpy_type(tensor.dtype)
        try:
            mapped = input_files.map_file(tensor.path)
            steps = tuple(step * kind.itemsize for step in stride)
            view: Array = np.ndarray(tensor.shape, kind, mapped, tensor.offset, steps)
        except (OSError, ValueError, TypeError) as error:
            raise BadModel(f"'{tensor.name}' is no longer in it", where=tensor.path) from error
        yield from (part.reshape(-1) for part in rows_in_slabs(view))

    return slabs
