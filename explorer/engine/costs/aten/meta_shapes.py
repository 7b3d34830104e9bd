"""Meta kernels of the commonest ATen operators, in closed form: shape, stride and dtype of every result.

torch works these out in Python, in general and therefore slowly: a millisecond for a batch norm. A rule
here answers only the plain case (dense tensors of one floating-point dtype in the usual order of
dimensions, arguments that fit) and leaves every other, and every error, to torch. So a rule can be
missing, but must never say something else than torch; the tests compare them. A grouped product is answered
where torch's meta kernel refuses it, too: its CPU kernel takes float32, and its meta kernel does since 2.15.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

SAME = "same"
"""Says that the operator works in place and returns its first argument."""

Made = list[tuple[Sequence[int], Sequence[int], torch.dtype]]
Rule = Callable[..., "Made | str | None"]
"""Arguments and keyword arguments of a call to sizes of its results; `SAME`; None leaves it to torch."""

_ATEN = torch.ops.aten


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor whose last dimension varies fastest, without gaps."""
    step = 1
    strides = []
    for size in reversed(shape):
        strides.append(step)
        step *= size or 1
    strides.reverse()
    return tuple(strides)


def _plain(tensor: Any) -> bool:
    """Whether it is a dense floating-point tensor on the meta device, dimensions in their usual order."""
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.is_meta
        and tensor.is_floating_point()
        and tensor.stride() == dense(tensor.shape)
    )


def _fits(vectors: Sequence[Any], shape: Sequence[int], dtype: torch.dtype) -> bool:
    """Whether tensors, of which each may be missing, are plain and of this shape and type."""
    return all(
        v is None or (_plain(v) and v.dtype == dtype and tuple(v.shape) == tuple(shape)) for v in vectors
    )


def _like(tensor: torch.Tensor) -> Made:
    return [(tensor.shape, tensor.stride(), tensor.dtype)]


def _of(shape: Sequence[int], dtype: torch.dtype) -> Made:
    return [(shape, dense(shape), dtype)]


def _scalars(values: Sequence[Any]) -> bool:
    """Whether all are numbers (or missing) that leave a floating-point dtype as it is, or a kind of gelu."""
    return all(v is None or isinstance(v, (bool, int, float)) or v in ("none", "tanh") for v in values)


def _ordered(tensor: Any) -> bool:
    """Whether it is a dense floating-point tensor, dimensions in any order, as a transposed one is."""
    if not isinstance(tensor, torch.Tensor) or not tensor.is_meta or not tensor.is_floating_point():
        return False
    shape, strides = tensor.shape, tensor.stride()
    single = next((at for at, size in enumerate(shape) if size != 1), 0)
    # the position of a dimension of one element in the order is ambiguous, except in front
    if 0 in shape or 1 in shape[single:] or len(set(strides[single:])) != len(strides) - single:
        return False
    order = sorted(range(len(shape)), key=lambda d: -strides[d])
    usual = order[:single] == list(range(single))
    return usual and dense([shape[d] for d in order]) == tuple([strides[d] for d in order])


def _pointwise(x: Any, *rest: Any, **named: Any) -> Made | None:
    """One tensor, and numbers."""
    if not _scalars(rest) or not _scalars(tuple(named.values())):
        return None
    return _like(x) if _plain(x) or _ordered(x) else None


def _where(mask: Any, x: Any, y: Any) -> Made | None:
    """One of two numbers for every element of a mask."""
    numbers = all(isinstance(t, torch.Tensor) and t.is_meta and not t.dim() for t in (x, y))
    if not numbers or x.dtype != y.dtype or not isinstance(mask, torch.Tensor) or not mask.is_meta:
        return None
    usual = mask.dtype == torch.bool and mask.dim() > 0 and mask.stride() == dense(mask.shape)
    return _of(mask.shape, x.dtype) if usual else None


def _in_place(x: Any, *rest: Any, **named: Any) -> str | None:
    return SAME if _plain(x) and _scalars(rest) and _scalars(tuple(named.values())) else None


def _broadcast(x: Any, y: Any) -> Sequence[int] | None:
    """The common shape of two tensors of one dtype; None if there is none or it is not plain."""
    if not _plain(x) or not _plain(y) or x.dtype != y.dtype:
        return None
    first, second = x.shape, y.shape
    if first == second:
        return tuple(first)
    if len(first) < len(second):
        first, second = second, first
    # the larger tensor decides the order of dimensions only if it is not itself repeated
    if not second or any(a != b and b != 1 for a, b in zip(first[-len(second) :], second, strict=True)):
        return None
    return tuple(first)


def _binary(x: Any, y: Any, **named: Any) -> Made | None:
    if not _scalars(tuple(named.values())):
        return None
    if isinstance(y, (bool, int, float)):
        return _like(x) if _plain(x) else None
    shape = _broadcast(x, y)
    return None if shape is None else _of(shape, x.dtype)


def _binary_in_place(x: Any, y: Any, **named: Any) -> str | None:
    if not _scalars(tuple(named.values())):
        return None
    if isinstance(y, (bool, int, float)):
        return SAME if _plain(x) else None
    return SAME if _broadcast(x, y) == x.shape else None


def _convolution(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Made | None:
    if transposed or not _plain(x) or not _plain(weight) or x.dtype != weight.dtype:
        return None
    source, kernel = x.shape, weight.shape
    rank = len(source) - 2
    if rank < 1 or len(kernel) != len(source) or not len(stride) == len(padding) == len(dilation) == rank:
        return None
    if groups < 1 or source[1] != kernel[1] * groups or kernel[0] % groups or 0 in source or 0 in kernel:
        return None
    if not _fits((bias,), kernel[:1], x.dtype):
        return None
    shape = [source[0], kernel[0]]
    for size, taps, step, pad, gap in zip(source[2:], kernel[2:], stride, padding, dilation, strict=True):
        if step < 1 or pad < 0 or gap < 1:
            return None
        shape.append((size + 2 * pad - gap * (taps - 1) - 1) // step + 1)
    return _of(shape, x.dtype) if min(shape) > 0 else None


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> Made | None:
    if training or not _plain(x) or x.dim() < 2 or x.dtype not in (torch.float32, torch.float64):
        return None
    if not _fits((weight, bias, mean, variance), x.shape[1:2], x.dtype):
        return None
    return [*_like(x), *_of(x.shape[1:2], x.dtype), *_of(x.shape[1:2], x.dtype)]


def _layer_norm(x: Any, dims: Sequence[int], weight: Any, bias: Any, eps: float) -> Made | None:
    if not _plain(x) or x.dtype not in (torch.float32, torch.float64) or 0 in x.shape:
        return None
    if not dims or len(dims) > x.dim() or tuple(x.shape[-len(dims) :]) != tuple(dims):
        return None
    if not _fits((weight, bias), dims, x.dtype):
        return None
    outer = (*x.shape[: -len(dims)], *(1 for _ in dims))
    return [*_like(x), *_of(outer, x.dtype), *_of(outer, x.dtype)]


def _group_norm(
    x: Any, weight: Any, bias: Any, batch: int, channels: int, cells: int, groups: int, eps: float
) -> Made | None:
    if (
        not _plain(x)
        or x.dtype not in (torch.float32, torch.float64)
        or x.numel() != batch * channels * cells
    ):
        return None
    if groups < 1 or channels % groups or not x.numel() or not _fits((weight, bias), (channels,), x.dtype):
        return None
    return [*_like(x), *_of((batch, groups), x.dtype), *_of((batch, groups), x.dtype)]


def _matrices(x: Any, y: Any) -> bool:
    """Whether two matrices (or stacks of them) of one dtype fit; their strides do not matter."""
    return (
        isinstance(x, torch.Tensor)
        and isinstance(y, torch.Tensor)
        and x.is_meta
        and y.is_meta
        and x.is_floating_point()
        and x.dtype == y.dtype
        and x.dim() == y.dim()
        and x.shape[:-2] == y.shape[:-2]
        and x.shape[-1] == y.shape[-2]
    )


def _mm(x: Any, y: Any) -> Made | None:
    if not _matrices(x, y) or x.dim() != 2:
        return None
    return _of((x.shape[0], y.shape[1]), x.dtype)


def _bmm(x: Any, y: Any) -> Made | None:
    if not _matrices(x, y) or x.dim() != 3:
        return None
    return _of((x.shape[0], x.shape[1], y.shape[2]), x.dtype)


def _addmm(added: Any, x: Any, y: Any, **named: Any) -> Made | None:
    if not _scalars(tuple(named.values())) or not _matrices(x, y) or x.dim() != 2:
        return None
    shape = (x.shape[0], y.shape[1])
    fits = _plain(added) and added.dtype == x.dtype and tuple(added.shape) in (shape, shape[1:])
    return _of(shape, x.dtype) if fits else None


_GROUPED_TYPES = (torch.bfloat16, torch.float16, torch.float32)
"""Types of grouped products on the CPU, from torch 2.9 on."""


def _grouped_mm(
    x: Any, y: Any, offsets: Any = None, bias: Any = None, out_dtype: torch.dtype | None = None
) -> Made | None:
    """Products of groups that share rows (2D by 3D), columns (3D by 2D), depth (2D by 2D) or nothing.

    A row of the result begins at a multiple of 16 bytes, as in torch's kernels.
    """
    tensors = isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.is_meta and y.is_meta
    if not tensors or x.dtype != y.dtype or x.dtype not in _GROUPED_TYPES or bias is not None:
        return None
    ranks = x.dim(), y.dim()
    grouped = isinstance(offsets, torch.Tensor) and offsets.dim() == 1
    if not set(ranks) <= {2, 3} or x.shape[-1] != y.shape[-2] or grouped == (ranks == (3, 3)):
        return None
    stacks = [tensor.shape[0] for tensor in (x, y) if tensor.dim() == 3]
    if grouped:
        stacks.append(offsets.numel())
    if len(set(stacks)) > 1:
        return None
    outer = stacks[:1] if ranks in ((2, 2), (3, 3)) else []
    dtype = out_dtype or x.dtype
    rows, columns, step = x.shape[-2], y.shape[-1], 16 // dtype.itemsize
    width = -(-columns // step) * step
    return [((*outer, rows, columns), (*(rows * width for _ in outer), width, 1), dtype)]


def _triangle(x: Any, diagonal: int = 0) -> Made | None:
    """Of any type, such as the booleans of a causal mask."""
    usual = isinstance(x, torch.Tensor) and x.is_meta and x.dim() >= 2 and x.stride() == dense(x.shape)
    return _like(x) if usual else None


def _softmax(x: Any, dim: int, half_to_float: bool = False) -> Made | None:
    if half_to_float or not _plain(x) or not -x.dim() <= dim < x.dim():
        return None
    return _like(x)


def _safe_softmax(x: Any, dim: int, dtype: Any = None) -> Made | None:
    return _softmax(x, dim) if dtype is None else None


def _mean(x: Any, dims: Sequence[int] | None, keep: bool = False, *, dtype: Any = None) -> Made | None:
    if dtype is not None or not dims or not _plain(x) or not all(-x.dim() <= d < x.dim() for d in dims):
        return None
    gone = {d % x.dim() for d in dims}
    if len(gone) != len(dims):
        return None
    shape = [1 if d in gone else s for d, s in enumerate(x.shape) if keep or d not in gone]
    return _of(shape, x.dtype)


def _cat(parts: Sequence[Any], dim: int = 0) -> Made | None:
    if not parts or not all(_plain(p) and p.dim() > 0 and p.dtype == parts[0].dtype for p in parts):
        return None
    first = parts[0]
    rank = first.dim()
    if not -rank <= dim < rank:
        return None
    shape = list(first.shape)
    at = dim % rank
    for part in parts[1:]:
        if part.dim() != rank or any(a != b for d, (a, b) in enumerate(zip(shape, part.shape)) if d != at):  # noqa: B905
            return None
        shape[at] += part.shape[at]
    return _of(shape, first.dtype) if 0 not in shape else None


def _clone(x: Any, *, memory_format: Any = None) -> Made | None:
    if not isinstance(x, torch.Tensor) or not x.is_meta or x.layout != torch.strided or x.is_quantized:
        return None
    if memory_format == torch.contiguous_format:
        return _of(x.shape, x.dtype)
    return _like(x) if _plain(x) and memory_format in (None, torch.preserve_format) else None


def _embedding(weight: Any, indices: Any, *rest: Any, **named: Any) -> Made | None:
    if not _plain(weight) or weight.dim() != 2 or not indices.is_meta:
        return None
    if indices.dtype not in (torch.int64, torch.int32) or indices.stride() != dense(indices.shape):
        return None
    return _of((*indices.shape, weight.shape[1]), weight.dtype)


def _upsample(x: Any, size: Sequence[int] | None, *rest: Any, **named: Any) -> Made | None:
    if not _plain(x) or size is None or x.dim() != 4 or len(size) != 2 or 0 in x.shape or min(size) < 1:
        return None
    return _of((*x.shape[:2], *size), x.dtype)


def _grid_sample(x: Any, grid: Any, mode: int, padding: int, align: bool) -> Made | None:
    if not _plain(x) or not _plain(grid) or x.dtype != grid.dtype or x.dim() != 4 or grid.dim() != 4:
        return None
    if x.shape[0] != grid.shape[0] or grid.shape[3] != 2 or 0 in x.shape or 0 in grid.shape:
        return None
    return _of((*x.shape[:2], *grid.shape[1:3]), x.dtype)


_UNARY = """
    abs ceil elu erf exp floor gelu hardsigmoid hardswish hardtanh leaky_relu log log_sigmoid mish neg
    reciprocal relu round rsqrt sigmoid silu softplus sqrt tanh
""".split()  # noqa: SIM905

_UNARY_IN_PLACE = """
    elu_ gelu_ hardsigmoid_ hardswish_ hardtanh_ leaky_relu_ mish_ relu_ sigmoid_ silu_ tanh_ zero_
""".split()  # noqa: SIM905

_BINARY = ("add", "div", "mul", "sub")

RULES: dict[Any, Rule] = {
    _ATEN.convolution.default: _convolution,
    _ATEN.native_batch_norm.default: _batch_norm,
    _ATEN.native_layer_norm.default: _layer_norm,
    _ATEN.native_group_norm.default: _group_norm,
    _ATEN.mm.default: _mm,
    _ATEN.bmm.default: _bmm,
    _ATEN.addmm.default: _addmm,
    **({_ATEN._grouped_mm.default: _grouped_mm} if hasattr(_ATEN, "_grouped_mm") else {}),
    _ATEN.where.self: _where,
    _ATEN.tril.default: _triangle,
    _ATEN.triu.default: _triangle,
    _ATEN._softmax.default: _softmax,
    _ATEN._safe_softmax.default: _safe_softmax,
    _ATEN.mean.dim: _mean,
    _ATEN.cat.default: _cat,
    _ATEN.clone.default: _clone,
    _ATEN.embedding.default: _embedding,
    _ATEN.upsample_bilinear2d.default: _upsample,
    _ATEN.upsample_bicubic2d.default: _upsample,
    _ATEN.upsample_nearest2d.default: _upsample,
    _ATEN.grid_sampler_2d.default: _grid_sample,
    _ATEN.clamp.default: _pointwise,
    _ATEN.clamp_.default: _in_place,
    _ATEN.pow.Tensor_Scalar: _pointwise,
    _ATEN.rsub.Scalar: _pointwise,
    _ATEN.fill_.Scalar: _in_place,
    **{
        getattr(_ATEN, name).default: _pointwise
        for name in _UNARY
        if hasattr(getattr(_ATEN, name), "default")
    },
    **{getattr(_ATEN, name).default: _in_place for name in _UNARY_IN_PLACE},
    **{getattr(_ATEN, name).Tensor: _binary for name in _BINARY},
    **{getattr(_ATEN, name).Scalar: _pointwise for name in _BINARY},
    **{getattr(_ATEN, f"{name}_").Tensor: _binary_in_place for name in _BINARY},
    **{getattr(_ATEN, f"{name}_").Scalar: _in_place for name in _BINARY},
}
"""Rule of an operator; one that is not here is asked of torch."""
