"""Tensors in files: their numbers are mapped, read a slab at a time, and released to the kernel."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from explorer.base.errors import BadModel
from explorer.engine.formats.tensor_index import StoredTensor
from explorer.engine.graph.dtypes import numpy_type
from explorer.engine.graph.model import DTYPES, FileSpan, Source, Tensor
from explorer.engine.values.ggml import codes as ggml_codes
from explorer.engine.values.ggml import dequantize as ggml_blocks
from explorer.engine.values.numbers import Array, Numbers, Slabs, StoredCodes, rows_in_slabs
from explorer.engine.values.onnx_tensors import part_of_tensor, slabs_of_tensor
from explorer.host import input_files

_PLAIN = frozenset(d.name for d in DTYPES.values() if d.bits)
"""Types whose numbers are stored one after the other, unpacked."""

_BLOCKS = (
    "the numbers of quantized tensors are what ggml computes with: each integer times the scale of its block,"
    " in float32"
)


def stored(
    tensors: Sequence[StoredTensor], strides: Mapping[str, tuple[int, ...]]
) -> tuple[list[Numbers], tuple[str, ...]]:
    """The numbers of tensors, unread, and notes about them.

    Args:
        tensors: The tensors in their files.
        strides: Strides, in elements, of tensors that do not lie in one piece, by name.
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
        why = tensor.unread or _unread_reason(tensor.dtype)
        if why:
            unread[why] += 1
        tensor_numbers.append(_numbers(tensor, source, why, strides.get(tensor.name)))
    notes = [_BLOCKS] if any(ggml_blocks.can_dequantize(t.dtype) for t in tensors) else []
    notes += [f"the numbers of {count:,} tensors are not read: {why}" for why, count in unread.items()]
    return tensor_numbers, tuple(notes)


def _unread_reason(dtype: str) -> str:
    """Why numbers of this type cannot be read; empty if they can."""
    if dtype in _PLAIN or ggml_blocks.can_dequantize(dtype):
        return ""
    return f"nobody here knows how {dtype} is packed"


def _numbers(
    tensor: StoredTensor, source: Callable[[str], Source], why: str, stride: Sequence[int] | None
) -> Numbers:
    def span() -> FileSpan:
        mapped = source(tensor.path)
        if tensor.offset + tensor.nbytes > mapped.size:
            raise BadModel(f"has become shorter: '{tensor.name}' is no longer in it", where=tensor.path)
        return FileSpan(mapped, tensor.offset, tensor.nbytes)

    def plain() -> Iterator[Array]:
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
    read: Slabs = (lambda: iter(())) if why else blocks if quantized else plain
    if stride is not None and not why:
        read = _strided(tensor, stride)
    return Numbers(
        tensor.name,
        tensor.dtype,
        tensor.shape,
        tensor.nbytes,
        read,
        identity=tensor.identity
        if tensor.identity is not None
        else (tensor.path, tensor.offset, tensor.name),
        trainable=tensor.trainable,
        raw=raw if quantized or why else None,
        part=None if why or stride is not None else part,
        coded=None if why else _coded(tensor, span),
        uncoded=ggml_codes.why_none(tensor.dtype),
    )


def _coded(tensor: StoredTensor, span: Callable[[], FileSpan]) -> StoredCodes | None:
    """The codes of ggml's blocks, unread; None for a type without codes."""
    zero = ggml_codes.zero_point(tensor.dtype)
    if zero is None:
        return None

    def numbers(which: ggml_codes.Part) -> Numbers:
        def part(start: int, stop: int) -> Iterator[Array]:
            return ggml_codes.of_part(tensor.dtype, span(), which, start, stop)

        every = partial(part, 0, math.prod(tensor.shape))
        return Numbers(tensor.name, tensor.dtype, tensor.shape, tensor.nbytes, every, part=part)

    code_parts = [numbers(which) for which in ggml_codes.parts(tensor.dtype)]
    return StoredCodes(code_parts[0], code_parts[1], code_parts[2] if len(code_parts) > 2 else None, zero)


def _strided(tensor: StoredTensor, stride: Sequence[int]) -> Slabs:
    """The elements of a tensor that does not lie in one piece, in order, in slabs."""

    def slabs() -> Iterator[Array]:
        kind = numpy_type(tensor.dtype)
        try:
            mapped = input_files.mapped(tensor.path)
            steps = tuple(step * kind.itemsize for step in stride)
            view: Array = np.ndarray(tensor.shape, kind, mapped, tensor.offset, steps)
        except (OSError, ValueError, TypeError) as error:
            raise BadModel(f"'{tensor.name}' is no longer in it", where=tensor.path) from error
        yield from (part.reshape(-1) for part in rows_in_slabs(view))

    return slabs
