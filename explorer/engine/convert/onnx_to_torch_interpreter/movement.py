"""Rules for operators that move, select or create elements without arithmetic on them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from explorer.engine.convert.onnx_to_torch_interpreter.call import OperatorCall, Rule


def _reshape(call: OperatorCall, x: Tensor, shape: Any = None) -> Tensor:
    sizes = call.read_numbers(shape) if shape is not None else list(call.get("shape"))
    if not call.get("allowzero", 0):
        sizes = [x.shape[index] if _is_number(s, 0) else s for index, s in enumerate(sizes)]
    return x.reshape(sizes)


def _is_number(size: Any, number: int) -> bool:
    """Whether a size is this number. Comparing an open size is avoided, because that would add a guard."""
    return isinstance(size, int) and size == number


def _transpose(call: OperatorCall, x: Tensor) -> Tensor:
    order = call.get("perm")
    return x.permute(*(reversed(range(x.dim())) if order is None else order)) if x.dim() else x


def _split(call: OperatorCall, x: Tensor, sizes: Any = None) -> Sequence[Tensor]:
    axis = call.get("axis", 0)
    lengths = call.read_numbers(sizes) if sizes is not None else call.get("split")
    if lengths is None:
        count = call.get("num_outputs", call.output_count)
        return _split_axis(x, -(-x.shape[axis] // count), axis)
    return _split_axis(x, list(lengths), axis)


def _split_axis(x: Tensor, sizes: Any, axis: int) -> list[Tensor]:
    split: Any = x.split  # it has no types
    return list(split(sizes, axis))


def _slice(call: OperatorCall, x: Tensor, *inputs: Any) -> Tensor:
    if inputs:
        starts, ends = call.read_numbers(inputs[0]), call.read_numbers(inputs[1])
        axes = (
            call.read_numbers(inputs[2]) if len(inputs) > 2 and inputs[2] is not None else range(len(starts))
        )
        steps = (
            call.read_numbers(inputs[3]) if len(inputs) > 3 and inputs[3] is not None else [1] * len(starts)
        )
    else:
        starts, ends = list(call.get("starts")), list(call.get("ends"))
        axes, steps = call.get("axes", range(len(starts))), [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = axis % x.dim()
        if step < 0:
            # torch slices do not support negative steps, so select the elements by index
            size = x.shape[axis]
            first = min(max(start + size, 0) if start < 0 else start, size - 1)
            last = -1 if end < -size else end + size if end < 0 else end
            selected_indices = torch.arange(first, last, step, device=x.device)
            x = x.index_select(axis, selected_indices)
        else:
            slices = [slice(None)] * axis + [slice(start, end, step)]
            x = x[tuple(slices)]
    return x


def _squeeze(call: OperatorCall, x: Tensor, axes: Any = None) -> Tensor:
    axes_to_remove = call.read_numbers(axes) if axes is not None else call.get("axes")
    return x.squeeze() if axes_to_remove is None else x.squeeze(tuple(axes_to_remove))


def _unsqueeze(call: OperatorCall, x: Tensor, axes: Any = None) -> Tensor:
    axes_to_add = list(call.read_numbers(axes) if axes is not None else call.get("axes"))
    rank = x.dim() + len(axes_to_add)
    for axis in sorted(a % rank for a in axes_to_add):
        x = x.unsqueeze(axis)
    return x


def _flatten(call: OperatorCall, x: Tensor) -> Tensor:
    axis = call.get("axis", 1)
    axis = axis + x.dim() if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def _expand(call: OperatorCall, x: Tensor, shape: Any) -> Tensor:
    sizes = call.read_numbers(shape)
    full_shape = [1] * (len(sizes) - x.dim()) + list(x.shape)
    sizes = [1] * (len(full_shape) - len(sizes)) + sizes
    # a 1 in the target shape keeps the size of the axis
    return x.expand([a if _is_number(b, 1) else b for a, b in zip(full_shape, sizes, strict=True)])


def _gather(call: OperatorCall, x: Tensor, index: Tensor) -> Tensor:
    axis = call.get("axis", 0) % max(x.dim(), 1)
    flat = _make_positive(index.reshape(-1).long(), x.shape[axis])
    rows = x.index_select(axis, flat)
    return rows.reshape([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]])


def _make_positive(index: Tensor, size: Any) -> Tensor:
    return torch.where(index < 0, index + size, index)


def _gather_elements(call: OperatorCall, x: Tensor, index: Tensor) -> Tensor:
    axis = call.get("axis", 0)
    return torch.gather(x, axis, _make_positive(index.long(), x.shape[axis]))


def _gather_nd(call: OperatorCall, x: Tensor, index: Tensor) -> Tensor:
    batch, depth = call.get("batch_dims", 0), index.shape[-1]
    index = index.long()
    indices: list[Tensor] = []
    for axis in range(batch):
        sizes = [1] * (index.dim() - 1)
        sizes[axis] = x.shape[axis]
        indices.append(torch.arange(x.shape[axis], device=x.device).reshape(sizes))
    indices += [_make_positive(index[..., offset], x.shape[batch + offset]) for offset in range(depth)]
    return x[tuple(indices)]


_TORCH_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
"""Torch's name of each reduction of ONNX's Scatter operators."""


def _scatter_elements(call: OperatorCall, x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    axis = call.get("axis", 0)
    index = _make_positive(index.long(), x.shape[axis])
    reduction = call.get("reduction", "none")
    if reduction == "none":
        return x.scatter(axis, index, updates)
    return x.scatter_reduce(axis, index, updates, _TORCH_REDUCTIONS[reduction], include_self=True)


def _scatter_nd(call: OperatorCall, x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    indices = tuple(_make_positive(index[..., axis].long(), x.shape[axis]) for axis in range(index.shape[-1]))
    reduction = call.get("reduction", "none")
    if reduction == "none":
        return x.index_put(indices, updates)
    if reduction == "add":
        return x.index_put(indices, updates, accumulate=True)
    flat_index = torch.zeros_like(indices[0])
    row_size = math.prod(x.shape[len(indices) :])
    for index, size in zip(indices, x.shape, strict=False):
        flat_index = flat_index * size + index
    element_indices = (
        flat_index.reshape(-1, 1) * row_size + torch.arange(row_size, device=x.device)
    ).reshape(-1)
    flat = x.reshape(-1).scatter_reduce(
        0, element_indices, updates.reshape(-1), _TORCH_REDUCTIONS[reduction], include_self=True
    )
    return flat.reshape(x.shape)


def _pad(call: OperatorCall, x: Tensor, pads: Any = None, value: Any = None, axes: Any = None) -> Tensor:
    sizes = call.read_numbers(pads) if pads is not None else list(call.get("pads"))
    count = len(sizes) // 2
    padded_axes = [a % x.dim() for a in (call.read_numbers(axes) if axes is not None else range(count))]
    fill = call.read_number(value) if value is not None else call.get("value", 0.0)
    mode = call.get("mode", "constant")
    padding_by_axis = {axis: (sizes[index], sizes[index + count]) for index, axis in enumerate(padded_axes)}
    if mode == "constant":
        flat = [size for axis in reversed(range(x.dim())) for size in padding_by_axis.get(axis, (0, 0))]
        if x.dtype == torch.bool:
            return functional.pad(x.to(torch.uint8), flat, value=float(fill)).bool()
        return functional.pad(x, flat, value=fill)
    for axis, (pad_before, pad_after) in padding_by_axis.items():
        size = x.shape[axis]
        indices = torch.arange(-pad_before, size + pad_after, device=x.device)
        if mode == "edge":
            indices = indices.clamp(0, size - 1)
        elif mode == "wrap":
            indices = indices % size
        else:  # reflect
            period = max(2 * (size - 1), 1)
            indices = indices % period
            indices = torch.where(indices >= size, period - indices, indices)
        x = x.index_select(axis, indices)
    return x


def _constant_of_shape(call: OperatorCall, shape: Any) -> Tensor:
    value = call.get("value")
    sizes = call.read_numbers(shape)
    if value is None:
        return torch.zeros(sizes, device=call.device)
    array = value.array().reshape(-1)
    dtype = call.tensor(array).dtype
    return torch.full(sizes, array[0].item(), dtype=dtype, device=call.device)


def _range(call: OperatorCall, start: Any, end: Any, step: Any) -> Tensor:
    dtypes = [a.dtype for a in (start, end, step) if isinstance(a, Tensor)]
    values = [call.read_number(a) for a in (start, end, step)]
    return torch.arange(*values, dtype=dtypes[0] if dtypes else torch.int64, device=call.device)


def _encode_one_hot(call: OperatorCall, index: Tensor, depth: Any, values: Tensor) -> Tensor:
    count, axis = int(call.read_number(depth)), call.get("axis", -1)
    indices = _make_positive(index.long(), count)
    classes = torch.arange(count, device=index.device)
    is_hot = (indices.unsqueeze(-1) == classes).movedim(-1, axis)
    return torch.where(is_hot, values[1], values[0])


def _trilu(call: OperatorCall, x: Tensor, k: Any = None) -> Tensor:
    diagonal = 0 if k is None else int(call.read_number(k))
    return torch.triu(x, diagonal) if call.get("upper", 1) else torch.tril(x, diagonal)


def _eye_like(call: OperatorCall, x: Tensor) -> Tensor:
    dtype = call.dtype(call.get("dtype")) if call.get("dtype") is not None else x.dtype
    rows = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    columns = torch.arange(x.shape[1], device=x.device)
    eye: Tensor = (columns - rows == call.get("k", 0)).to(dtype)
    return eye


def _top_k(call: OperatorCall, x: Tensor, k: Any = None) -> tuple[Tensor, Tensor]:
    count = int(call.read_number(k)) if k is not None else call.get("k")
    largest, axis = bool(call.get("largest", 1)), call.get("axis", -1)
    # ONNX returns equal elements in their order; a stable sort does too, but torch's topk may not
    values, indices = torch.sort(x, dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, count), indices.narrow(axis, 0, count)


def _depth_to_space(call: OperatorCall, x: Tensor) -> Tensor:
    size = call.get("blocksize")
    if call.get("mode", "DCR") == "CRD":
        shuffled: Tensor = functional.pixel_shuffle(x, size)
        return shuffled
    batch, channels, height, width = x.shape
    split = x.reshape(batch, size, size, channels // size**2, height, width)
    moved = split.permute(0, 3, 4, 1, 5, 2)
    return moved.reshape(batch, channels // size**2, height * size, width * size)


def _space_to_depth(call: OperatorCall, x: Tensor) -> Tensor:
    size = call.get("blocksize")
    batch, channels, height, width = x.shape
    split = x.reshape(batch, channels, height // size, size, width // size, size)
    order = (0, 1, 3, 5, 2, 4) if call.get("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    return split.permute(order).reshape(batch, -1, height // size, width // size)


def _compress(call: OperatorCall, x: Tensor, condition: Tensor) -> Tensor:
    axis = call.get("axis")
    x = x.reshape(-1) if axis is None else x
    indices = torch.nonzero(condition).reshape(-1)
    return x.index_select(0 if axis is None else axis, indices)


def _reverse_sequence(call: OperatorCall, x: Tensor, lengths: Tensor) -> Tensor:
    batch, time = call.get("batch_axis", 1), call.get("time_axis", 0)
    moved = x.movedim((time, batch), (0, 1))
    steps = torch.arange(moved.shape[0], device=x.device).unsqueeze(1)
    indices = torch.where(steps < lengths, lengths - 1 - steps, steps)
    index = indices.reshape(*indices.shape, *(1,) * (moved.dim() - 2)).expand(moved.shape)
    return moved.gather(0, index).movedim((0, 1), (time, batch))


def _sequence_insert(
    call: OperatorCall, sequence: list[Tensor], x: Tensor, index: Any = None
) -> list[Tensor]:
    extended = list(sequence)
    position = len(extended) if index is None else int(call.read_number(index))
    extended.insert(position + len(extended) if position < 0 else position, x)
    return extended


def _sequence_erase(call: OperatorCall, sequence: list[Tensor], index: Any = None) -> list[Tensor]:
    shortened = list(sequence)
    del shortened[-1 if index is None else int(call.read_number(index))]
    return shortened


def _split_to_sequence(call: OperatorCall, x: Tensor, sizes: Any = None) -> list[Tensor]:
    axis = call.get("axis", 0)
    if sizes is None:
        parts = _split_axis(x, 1, axis)
        return [p if call.get("keepdims", 1) else p.squeeze(axis) for p in parts]
    lengths = call.read_numbers(sizes)
    scalar = isinstance(sizes, Tensor) and sizes.dim() == 0
    return _split_axis(x, lengths[0] if scalar else lengths, axis)


def _find_unique(call: OperatorCall, x: Tensor) -> tuple[Tensor, ...]:
    """Computes Unique: the values, the index of the first of each, the value of each element, and counts."""
    axis = call.get("axis")
    values, inverse, counts = torch.unique(x, sorted=True, return_inverse=True, return_counts=True, dim=axis)
    inverse = inverse.reshape(-1)
    indices = torch.arange(inverse.numel(), device=x.device)
    missing_index = inverse.new_full((counts.numel(),), inverse.numel())
    first = missing_index.scatter_reduce(0, inverse, indices, "amin")
    if not call.get("sorted", 1):
        order = torch.argsort(first)
        inverse_order = torch.argsort(order)
        return values.index_select(axis or 0, order), first[order], inverse_order[inverse], counts[order]
    return values, first, inverse, counts


TABLE: Mapping[str, Rule] = {
    "Compress": _compress,
    "Concat": lambda call, *args: torch.cat(args, call.get("axis")),
    "ConcatFromSequence": lambda call, parts: (torch.stack if call.get("new_axis", 0) else torch.cat)(
        parts, call.get("axis")
    ),
    "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "EyeLike": _eye_like,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "NonZero": lambda call, x: torch.nonzero(x).t(),
    "OneHot": _encode_one_hot,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "ReverseSequence": _reverse_sequence,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "SequenceAt": lambda call, sequence, index: sequence[int(call.read_number(index))],
    "SequenceConstruct": lambda call, *args: list(args),
    "SequenceEmpty": lambda call: [],
    "SequenceErase": _sequence_erase,
    "SequenceInsert": _sequence_insert,
    "SequenceLength": lambda call, sequence: torch.tensor(len(sequence), device=call.device),
    "Shape": lambda call, x: torch.tensor(x.shape[call.get("start", 0) : call.get("end")]),
    "Size": lambda call, x: torch.tensor(x.numel()),
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "SplitToSequence": _split_to_sequence,
    "Squeeze": _squeeze,
    "Tile": lambda call, x, repeats: x.repeat(*call.read_numbers(repeats)) if x.dim() else x,
    "TopK": _top_k,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unique": _find_unique,
    "Unsqueeze": _unsqueeze,
}
