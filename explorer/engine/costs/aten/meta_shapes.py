"""Computes results of frequent ATen operators on the meta device in closed form: shape, strides and dtype.

torch's own meta kernels are general Python code and slow: a batch norm takes a millisecond. A rule here
handles the plain case only (dense tensors of one floating-point dtype in default dimension order, valid
arguments). Every other case, and every error, is left to torch. A rule may be missing, but it must agree with
torch; the tests compare them. There is one exception: a grouped product of float32 also has a result where
torch's meta kernel rejects it (before 2.15), because the CPU kernel supports it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

SAME = "same"
"""Result of a rule for an operator that works in place and returns its first argument."""

ResultTypes = list[tuple[Sequence[int], Sequence[int], torch.dtype]]
"""Shape, strides and dtype of each result."""

Rule = Callable[..., "ResultTypes | str | None"]
"""Computes the sizes of a call's results from its arguments; `SAME`, or None to leave the call to torch."""

_ATEN = torch.ops.aten


def compute_dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of a dense tensor whose last dimension varies fastest."""
    step = 1
    strides = []
    for size in reversed(shape):
        strides.append(step)
        step *= size or 1
    strides.reverse()
    return tuple(strides)


def _is_plain(tensor: Any) -> bool:
    """Whether the value is a dense floating-point meta tensor in default dimension order."""
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.is_meta
        and tensor.is_floating_point()
        and tensor.stride() == compute_dense_strides(tensor.shape)
    )


def _are_matching_vectors(vectors: Sequence[Any], shape: Sequence[int], dtype: torch.dtype) -> bool:
    """Whether every vector is None, or plain with this shape and dtype."""
    return all(
        v is None or (_is_plain(v) and v.dtype == dtype and tuple(v.shape) == tuple(shape)) for v in vectors
    )


def _keep_layout(tensor: torch.Tensor) -> ResultTypes:
    return [(tensor.shape, tensor.stride(), tensor.dtype)]


def _build_dense_result(shape: Sequence[int], dtype: torch.dtype) -> ResultTypes:
    return [(shape, compute_dense_strides(shape), dtype)]


def _has_only_scalars(values: Sequence[Any]) -> bool:
    """Whether all values are None, numbers that keep a floating-point dtype, or modes of gelu."""
    return all(v is None or isinstance(v, (bool, int, float)) or v in ("none", "tanh") for v in values)


def _is_dense(tensor: Any) -> bool:
    """Whether the value is a dense floating-point meta tensor in any dimension order, such as a transpose."""
    if not isinstance(tensor, torch.Tensor) or not tensor.is_meta or not tensor.is_floating_point():
        return False
    shape, strides = tensor.shape, tensor.stride()
    single = next((axis for axis, size in enumerate(shape) if size != 1), 0)
    # the position of a dimension of size 1 is ambiguous, except at the front
    if 0 in shape or 1 in shape[single:] or len(set(strides[single:])) != len(strides) - single:
        return False
    order = sorted(range(len(shape)), key=lambda d: -strides[d])
    is_leading = order[:single] == list(range(single))
    return is_leading and compute_dense_strides([shape[d] for d in order]) == tuple(
        [strides[d] for d in order]
    )


def _infer_pointwise(x: Any, *scalars: Any, **options: Any) -> ResultTypes | None:
    """Infers the result of an operator on one tensor and numbers."""
    if not _has_only_scalars(scalars) or not _has_only_scalars(tuple(options.values())):
        return None
    return _keep_layout(x) if _is_plain(x) or _is_dense(x) else None


def _infer_where(mask: Any, x: Any, y: Any) -> ResultTypes | None:
    """Infers the selection of one of two scalar tensors for every element of a mask."""
    are_scalars = all(isinstance(t, torch.Tensor) and t.is_meta and not t.dim() for t in (x, y))
    if not are_scalars or x.dtype != y.dtype or not isinstance(mask, torch.Tensor) or not mask.is_meta:
        return None
    is_supported = (
        mask.dtype == torch.bool and mask.dim() > 0 and mask.stride() == compute_dense_strides(mask.shape)
    )
    return _build_dense_result(mask.shape, x.dtype) if is_supported else None


def _infer_in_place(x: Any, *scalars: Any, **options: Any) -> str | None:
    if _is_plain(x) and _has_only_scalars(scalars) and _has_only_scalars(tuple(options.values())):
        return SAME
    return None


def _broadcast(x: Any, y: Any) -> Sequence[int] | None:
    """Returns the broadcast shape of two plain tensors of one dtype, or None if neither tensor has it."""
    if not _is_plain(x) or not _is_plain(y) or x.dtype != y.dtype:
        return None
    first, second = x.shape, y.shape
    if first == second:
        return tuple(first)
    if len(first) < len(second):
        first, second = second, first
    # only a tensor that is not broadcast itself determines the dimension order
    if not second or any(a != b and b != 1 for a, b in zip(first[-len(second) :], second, strict=True)):
        return None
    return tuple(first)


def _infer_binary(x: Any, y: Any, **options: Any) -> ResultTypes | None:
    if not _has_only_scalars(tuple(options.values())):
        return None
    if isinstance(y, (bool, int, float)):
        return _keep_layout(x) if _is_plain(x) else None
    shape = _broadcast(x, y)
    return None if shape is None else _build_dense_result(shape, x.dtype)


def _infer_binary_in_place(x: Any, y: Any, **options: Any) -> str | None:
    if not _has_only_scalars(tuple(options.values())):
        return None
    if isinstance(y, (bool, int, float)):
        return SAME if _is_plain(x) else None
    return SAME if _broadcast(x, y) == x.shape else None


def _infer_convolution(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> ResultTypes | None:
    """Infers the result of a convolution with a batch, without transposition."""
    if transposed or not _is_plain(x) or not _is_plain(weight) or x.dtype != weight.dtype:
        return None
    source, kernel = x.shape, weight.shape
    rank = len(source) - 2
    if rank < 1 or len(kernel) != len(source) or not len(stride) == len(padding) == len(dilation) == rank:
        return None
    if groups < 1 or source[1] != kernel[1] * groups or kernel[0] % groups or 0 in source or 0 in kernel:
        return None
    if not _are_matching_vectors((bias,), kernel[:1], x.dtype):
        return None
    shape = [source[0], kernel[0]]
    for size, taps, step, pad, gap in zip(source[2:], kernel[2:], stride, padding, dilation, strict=True):
        if step < 1 or pad < 0 or gap < 1:
            return None
        shape.append((size + 2 * pad - gap * (taps - 1) - 1) // step + 1)
    return _build_dense_result(shape, x.dtype) if min(shape) > 0 else None


def _infer_batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> ResultTypes | None:
    if training or not _is_plain(x) or x.dim() < 2 or x.dtype not in (torch.float32, torch.float64):
        return None
    if not _are_matching_vectors((weight, bias, mean, variance), x.shape[1:2], x.dtype):
        return None
    return [
        *_keep_layout(x),
        *_build_dense_result(x.shape[1:2], x.dtype),
        *_build_dense_result(x.shape[1:2], x.dtype),
    ]


def _infer_layer_norm(x: Any, dims: Sequence[int], weight: Any, bias: Any, eps: float) -> ResultTypes | None:
    if not _is_plain(x) or x.dtype not in (torch.float32, torch.float64) or 0 in x.shape:
        return None
    if not dims or len(dims) > x.dim() or tuple(x.shape[-len(dims) :]) != tuple(dims):
        return None
    if not _are_matching_vectors((weight, bias), dims, x.dtype):
        return None
    outer = (*x.shape[: -len(dims)], *(1 for _ in dims))
    return [*_keep_layout(x), *_build_dense_result(outer, x.dtype), *_build_dense_result(outer, x.dtype)]


def _infer_group_norm(
    x: Any, weight: Any, bias: Any, batch: int, channels: int, cells: int, groups: int, eps: float
) -> ResultTypes | None:
    if (
        not _is_plain(x)
        or x.dtype not in (torch.float32, torch.float64)
        or x.numel() != batch * channels * cells
    ):
        return None
    if (
        groups < 1
        or channels % groups
        or not x.numel()
        or not _are_matching_vectors((weight, bias), (channels,), x.dtype)
    ):
        return None
    return [
        *_keep_layout(x),
        *_build_dense_result((batch, groups), x.dtype),
        *_build_dense_result((batch, groups), x.dtype),
    ]


def _can_multiply(x: Any, y: Any) -> bool:
    """Whether two matrices (or stacks of matrices) of one dtype can be multiplied, whatever their strides."""
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


def _infer_mm(x: Any, y: Any) -> ResultTypes | None:
    if not _can_multiply(x, y) or x.dim() != 2:
        return None
    return _build_dense_result((x.shape[0], y.shape[1]), x.dtype)


def _infer_bmm(x: Any, y: Any) -> ResultTypes | None:
    if not _can_multiply(x, y) or x.dim() != 3:
        return None
    return _build_dense_result((x.shape[0], x.shape[1], y.shape[2]), x.dtype)


def _infer_addmm(addend: Any, x: Any, y: Any, **options: Any) -> ResultTypes | None:
    if not _has_only_scalars(tuple(options.values())) or not _can_multiply(x, y) or x.dim() != 2:
        return None
    shape = (x.shape[0], y.shape[1])
    is_supported = _is_plain(addend) and addend.dtype == x.dtype and tuple(addend.shape) in (shape, shape[1:])
    return _build_dense_result(shape, x.dtype) if is_supported else None


_GROUPED_TYPES = (torch.bfloat16, torch.float16, torch.float32)
"""dtypes of grouped products on the CPU, from torch 2.9 on."""


def _infer_grouped_mm(
    x: Any, y: Any, offsets: Any = None, bias: Any = None, out_dtype: torch.dtype | None = None
) -> ResultTypes | None:
    """Infers products of groups that split rows (2D by 3D), columns (3D by 2D), depth (2D by 2D), or stacks.

    Each row of the result starts at a multiple of 16 bytes, as in torch's kernels.
    """
    are_meta_tensors = isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.is_meta and y.is_meta
    if not are_meta_tensors or x.dtype != y.dtype or x.dtype not in _GROUPED_TYPES or bias is not None:
        return None
    ranks = x.dim(), y.dim()
    has_offsets = isinstance(offsets, torch.Tensor) and offsets.dim() == 1
    if not set(ranks) <= {2, 3} or x.shape[-1] != y.shape[-2] or has_offsets == (ranks == (3, 3)):
        return None
    stacks = [tensor.shape[0] for tensor in (x, y) if tensor.dim() == 3]
    if has_offsets:
        stacks.append(offsets.numel())
    if len(set(stacks)) > 1:
        return None
    outer = stacks[:1] if ranks in ((2, 2), (3, 3)) else []
    dtype = out_dtype or x.dtype
    rows, columns, step = x.shape[-2], y.shape[-1], 16 // dtype.itemsize
    width = -(-columns // step) * step
    return [((*outer, rows, columns), (*(rows * width for _ in outer), width, 1), dtype)]


def _infer_triangle(x: Any, diagonal: int = 0) -> ResultTypes | None:
    """Infers tril and triu, for any dtype, such as the booleans of a causal mask."""
    is_supported = (
        isinstance(x, torch.Tensor)
        and x.is_meta
        and x.dim() >= 2
        and x.stride() == compute_dense_strides(x.shape)
    )
    return _keep_layout(x) if is_supported else None


def _infer_softmax(x: Any, dim: int, half_to_float: bool = False) -> ResultTypes | None:
    if half_to_float or not _is_plain(x) or not -x.dim() <= dim < x.dim():
        return None
    return _keep_layout(x)


def _infer_safe_softmax(x: Any, dim: int, dtype: Any = None) -> ResultTypes | None:
    return _infer_softmax(x, dim) if dtype is None else None


def _infer_mean(
    x: Any, dims: Sequence[int] | None, keep: bool = False, *, dtype: Any = None
) -> ResultTypes | None:
    if dtype is not None or not dims or not _is_plain(x) or not all(-x.dim() <= d < x.dim() for d in dims):
        return None
    reduced_axes = {d % x.dim() for d in dims}
    if len(reduced_axes) != len(dims):
        return None
    shape = [1 if d in reduced_axes else s for d, s in enumerate(x.shape) if keep or d not in reduced_axes]
    return _build_dense_result(shape, x.dtype)


def _infer_cat(parts: Sequence[Any], dim: int = 0) -> ResultTypes | None:
    if not parts or not all(_is_plain(p) and p.dim() > 0 and p.dtype == parts[0].dtype for p in parts):
        return None
    first = parts[0]
    rank = first.dim()
    if not -rank <= dim < rank:
        return None
    shape = list(first.shape)
    axis = dim % rank
    for part in parts[1:]:
        if part.dim() != rank or any(a != b for d, (a, b) in enumerate(zip(shape, part.shape)) if d != axis):  # noqa: B905
            return None
        shape[axis] += part.shape[axis]
    return _build_dense_result(shape, first.dtype) if 0 not in shape else None


def _infer_clone(x: Any, *, memory_format: Any = None) -> ResultTypes | None:
    if not isinstance(x, torch.Tensor) or not x.is_meta or x.layout != torch.strided or x.is_quantized:
        return None
    if memory_format == torch.contiguous_format:
        return _build_dense_result(x.shape, x.dtype)
    return _keep_layout(x) if _is_plain(x) and memory_format in (None, torch.preserve_format) else None


def _infer_embedding(weight: Any, indices: Any, *options: Any, **named: Any) -> ResultTypes | None:
    if not _is_plain(weight) or weight.dim() != 2 or not indices.is_meta:
        return None
    if indices.dtype not in (torch.int64, torch.int32) or indices.stride() != compute_dense_strides(
        indices.shape
    ):
        return None
    return _build_dense_result((*indices.shape, weight.shape[1]), weight.dtype)


def _infer_upsample(x: Any, size: Sequence[int] | None, *options: Any, **named: Any) -> ResultTypes | None:
    if not _is_plain(x) or size is None or x.dim() != 4 or len(size) != 2 or 0 in x.shape or min(size) < 1:
        return None
    return _build_dense_result((*x.shape[:2], *size), x.dtype)


def _infer_grid_sample(x: Any, grid: Any, mode: int, padding: int, align: bool) -> ResultTypes | None:
    if not _is_plain(x) or not _is_plain(grid) or x.dtype != grid.dtype or x.dim() != 4 or grid.dim() != 4:
        return None
    if x.shape[0] != grid.shape[0] or grid.shape[3] != 2 or 0 in x.shape or 0 in grid.shape:
        return None
    return _build_dense_result((*x.shape[:2], *grid.shape[1:3]), x.dtype)


_UNARY = """
    abs ceil elu erf exp floor gelu hardsigmoid hardswish hardtanh leaky_relu log log_sigmoid mish neg
    reciprocal relu round rsqrt sigmoid silu softplus sqrt tanh
""".split()  # noqa: SIM905

_UNARY_IN_PLACE = """
    elu_ gelu_ hardsigmoid_ hardswish_ hardtanh_ leaky_relu_ mish_ relu_ sigmoid_ silu_ tanh_ zero_
""".split()  # noqa: SIM905

_BINARY = ("add", "div", "mul", "sub")

RULES: dict[Any, Rule] = {
    _ATEN.convolution.default: _infer_convolution,
    _ATEN.native_batch_norm.default: _infer_batch_norm,
    _ATEN.native_layer_norm.default: _infer_layer_norm,
    _ATEN.native_group_norm.default: _infer_group_norm,
    _ATEN.mm.default: _infer_mm,
    _ATEN.bmm.default: _infer_bmm,
    _ATEN.addmm.default: _infer_addmm,
    **({_ATEN._grouped_mm.default: _infer_grouped_mm} if hasattr(_ATEN, "_grouped_mm") else {}),
    _ATEN.where.self: _infer_where,
    _ATEN.tril.default: _infer_triangle,
    _ATEN.triu.default: _infer_triangle,
    _ATEN._softmax.default: _infer_softmax,
    _ATEN._safe_softmax.default: _infer_safe_softmax,
    _ATEN.mean.dim: _infer_mean,
    _ATEN.cat.default: _infer_cat,
    _ATEN.clone.default: _infer_clone,
    _ATEN.embedding.default: _infer_embedding,
    _ATEN.upsample_bilinear2d.default: _infer_upsample,
    _ATEN.upsample_bicubic2d.default: _infer_upsample,
    _ATEN.upsample_nearest2d.default: _infer_upsample,
    _ATEN.grid_sampler_2d.default: _infer_grid_sample,
    _ATEN.clamp.default: _infer_pointwise,
    _ATEN.clamp_.default: _infer_in_place,
    _ATEN.pow.Tensor_Scalar: _infer_pointwise,
    _ATEN.rsub.Scalar: _infer_pointwise,
    _ATEN.fill_.Scalar: _infer_in_place,
    **{
        getattr(_ATEN, name).default: _infer_pointwise
        for name in _UNARY
        if hasattr(getattr(_ATEN, name), "default")
    },
    **{getattr(_ATEN, name).default: _infer_in_place for name in _UNARY_IN_PLACE},
    **{getattr(_ATEN, name).Tensor: _infer_binary for name in _BINARY},
    **{getattr(_ATEN, name).Scalar: _infer_pointwise for name in _BINARY},
    **{getattr(_ATEN, f"{name}_").Tensor: _infer_binary_in_place for name in _BINARY},
    **{getattr(_ATEN, f"{name}_").Scalar: _infer_in_place for name in _BINARY},
}
"""Rules by operator; any other operator is left to torch."""
