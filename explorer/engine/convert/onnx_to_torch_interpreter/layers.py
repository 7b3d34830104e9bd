"""Rules for matrix products, convolution, pooling, normalization, resizing and attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from explorer.base.errors import BadModel
from explorer.engine.convert.onnx_to_torch_interpreter.call import OperatorCall, Rule

_CONV: Sequence[Callable[..., Tensor]] = (functional.conv1d, functional.conv2d, functional.conv3d)
_CONV_TRANSPOSE: Sequence[Callable[..., Tensor]] = (
    functional.conv_transpose1d,
    functional.conv_transpose2d,
    functional.conv_transpose3d,
)
_MAX_POOL: Sequence[Callable[..., Any]] = (
    functional.max_pool1d,
    functional.max_pool2d,
    functional.max_pool3d,
)
"""Functions for one, two and three spatial axes, as in `_CONV` and `_CONV_TRANSPOSE`."""


def gemm(call: OperatorCall, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """Computes alpha A B + beta C."""
    a = a.t() if call.get("transA", 0) else a
    b = b.t() if call.get("transB", 0) else b
    alpha, beta = call.get("alpha", 1.0), call.get("beta", 1.0)
    product = torch.matmul(a, b)
    product = product if alpha == 1 else product * alpha
    if c is None:
        return product
    return product + (c if beta == 1 else c * beta)


def _fused_matmul(call: OperatorCall, a: Tensor, b: Tensor) -> Tensor:
    a = a.transpose(-1, -2) if call.get("transA", 0) else a
    b = b.transpose(-1, -2) if call.get("transB", 0) else b
    result: Tensor = torch.matmul(a, b) * call.get("alpha", 1.0)
    return result


def _einsum(call: OperatorCall, *args: Tensor) -> Tensor:
    equation = call.get("equation").replace(" ", "")
    if "->" not in equation:
        letters = sorted(x for x in set(equation) if x.isalpha() and equation.count(x) == 1)
        equation = f"{equation}->{'...' if '...' in equation else ''}{''.join(letters)}"
    return torch.einsum(equation, *args)


# -- windows: convolution and pooling


def _read_window(
    call: OperatorCall, x: Tensor, kernel: Sequence[int]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Returns strides, dilations, and the padding before and after each spatial axis."""
    dims = len(kernel)
    strides = list(call.get("strides", (1,) * dims))
    dilations = list(call.get("dilations", (1,) * dims))
    auto, pads = call.get("auto_pad", "NOTSET"), list(call.get("pads", (0,) * (2 * dims)))
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        pad_before, pad_after = [], []
        for size, k, s, d in zip(x.shape[2:], kernel, strides, dilations, strict=True):
            total = max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
            smaller, larger = total // 2, total - total // 2
            pad_before.append(smaller if auto == "SAME_UPPER" else larger)
            pad_after.append(larger if auto == "SAME_UPPER" else smaller)
        return strides, dilations, pad_before, pad_after
    pads = pads if auto != "VALID" else [0] * (2 * dims)
    return strides, dilations, pads[:dims], pads[dims:]


def _pad(x: Tensor, pad_before: Sequence[int], pad_after: Sequence[int], value: float = 0.0) -> Tensor:
    """Pads the last axes of `x` with a value; the sequences give a size for each of these axes."""
    if not any((*pad_before, *pad_after)):
        return x
    flat = [size for pair in zip(reversed(pad_before), reversed(pad_after), strict=True) for size in pair]
    return functional.pad(x, flat, value=value)


def convolution(call: OperatorCall, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes Conv with one, two or three spatial axes."""
    kernel = list(weight.shape[2:])
    strides, dilations, pad_before, pad_after = _read_window(call, x, kernel)
    padding = pad_before
    if pad_before != pad_after:
        x, padding = _pad(x, pad_before, pad_after), [0] * len(kernel)
    function = _CONV[_get_spatial_rank(x) - 1]
    return function(x, weight, bias, strides, padding, dilations, call.get("group", 1))


def _get_spatial_rank(x: Tensor) -> int:
    rank = x.dim() - 2
    if not 1 <= rank <= 3:
        raise BadModel(f"torch has no windows of {rank} dimensions")
    return rank


def _conv_transpose(call: OperatorCall, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes ConvTranspose; torch pads both ends of an axis equally, so the full result is cut here."""
    dims, kernel = _get_spatial_rank(x), list(weight.shape[2:])
    strides = list(call.get("strides", (1,) * dims))
    dilations = list(call.get("dilations", (1,) * dims))
    output_padding = list(call.get("output_padding", (0,) * dims))
    full_sizes = [
        s * (n - 1) + o + d * (k - 1) + 1
        for s, n, o, d, k in zip(strides, x.shape[2:], output_padding, dilations, kernel, strict=True)
    ]
    auto, shape = call.get("auto_pad", "NOTSET"), call.get("output_shape")
    pads = list(call.get("pads", (0,) * (2 * dims)))
    if shape is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        shape = [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
    if shape is not None:
        full_padding = [w - s for w, s in zip(full_sizes, list(shape)[-dims:], strict=True)]
        smaller = [t // 2 for t in full_padding]
        larger = [t - half for t, half in zip(full_padding, smaller, strict=True)]
        pad_before, pad_after = (smaller, larger) if auto == "SAME_UPPER" else (larger, smaller)
    else:
        pads = pads if auto != "VALID" else [0] * (2 * dims)
        pad_before, pad_after = pads[:dims], pads[dims:]
    # without padding torch returns the full result; elements outside it are only the bias
    result = _CONV_TRANSPOSE[dims - 1](x, weight, None, strides, 0, 0, call.get("group", 1), dilations)
    result = _pad(result, [0] * dims, output_padding)
    result = _pad(result, [max(-b, 0) for b in pad_before], [max(-b, 0) for b in pad_after])
    for axis, (first, last) in enumerate(zip(pad_before, pad_after, strict=True), start=2):
        first, last = max(first, 0), max(last, 0)
        result = result.narrow(axis, first, result.shape[axis] - first - last)
    return result if bias is None else result + bias.reshape(-1, *(1,) * dims)


def _read_ceil_window(
    call: OperatorCall, x: Tensor, kernel: Sequence[int]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Returns the window parameters that respect `ceil_mode`.

    The mode pads the end of an axis for windows that reach beyond it.
    """
    strides, dilations, pad_before, pad_after = _read_window(call, x, kernel)
    if not call.get("ceil_mode", 0):
        return strides, dilations, pad_before, pad_after
    ends = []
    for size, k, s, d, b, e in zip(
        x.shape[2:], kernel, strides, dilations, pad_before, pad_after, strict=True
    ):
        window_size = d * (k - 1) + 1
        window_count = -(-(size + b + e - window_size) // s) + 1
        if (window_count - 1) * s >= size + b:  # a window must not start in the padding at the end
            window_count -= 1
        ends.append(max((window_count - 1) * s + window_size - size - b, e))
    return strides, dilations, pad_before, ends


def _max_pool(call: OperatorCall, x: Tensor) -> Any:
    """Computes MaxPool, with the indices of the maxima if the node has two outputs."""
    kernel = list(call.get("kernel_shape"))
    strides, dilations, pad_before, pad_after = _read_ceil_window(call, x, kernel)
    low: Any = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    floats = x if x.is_floating_point() else x.to(torch.float64)
    filled = _pad(floats, pad_before, pad_after, float(low))
    pool = _MAX_POOL[_get_spatial_rank(x) - 1]
    if call.output_count < 2 or not call.node.outputs[1]:
        return pool(filled, kernel, strides, 0, dilations).to(x.dtype)
    values, indices = pool(filled, kernel, strides, 0, dilations, return_indices=True)
    return values.to(x.dtype), _remove_padding_from_indices(call, indices, filled, x, pad_before)


def _remove_padding_from_indices(
    call: OperatorCall, indices: Tensor, filled: Tensor, x: Tensor, pad_before: Sequence[int]
) -> Tensor:
    """Converts indices into the padded input to ONNX's indices into the whole input tensor."""
    coordinates, remaining = [], indices
    for size, start in zip(reversed(filled.shape[2:]), reversed(pad_before), strict=True):
        coordinates.append(remaining % size - start)
        remaining = remaining // size
    sizes = list(x.shape[2:])
    order = list(enumerate(reversed(coordinates)))
    if call.get("storage_order", 0):
        order = order[::-1]
    flat = torch.zeros_like(indices)
    for axis, coordinate in order:
        flat = flat * sizes[axis] + coordinate
    count = math.prod(sizes)
    planes = torch.arange(x.shape[0] * x.shape[1], device=x.device).reshape(*x.shape[:2], *(1,) * len(sizes))
    return flat + planes * count


def _average_pool(call: OperatorCall, x: Tensor) -> Tensor:
    """Computes AveragePool: the sum of each window divided by the number of its elements."""
    kernel = list(call.get("kernel_shape"))
    strides, dilations, pad_before, pad_after = _read_ceil_window(call, x, kernel)
    _, _, _, pad_after_exact = _read_window(call, x, kernel)
    ones = torch.ones_like(x[:1, :1])  # the sum of its windows is the number of elements in each window
    # with count_include_pad, declared padding counts, but the padding that ceil_mode adds does not
    if call.get("count_include_pad", 0):
        ones = _pad(ones, pad_before, pad_after_exact, 1.0)
        ones = _pad(
            ones, [0] * len(pad_before), [a - b for a, b in zip(pad_after, pad_after_exact, strict=True)]
        )
    else:
        ones = _pad(ones, pad_before, pad_after)
    total = _sum_windows(_pad(x, pad_before, pad_after), kernel, strides, dilations)
    return total / _sum_windows(ones, kernel, strides, dilations)


def _sum_windows(
    x: Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Tensor:
    for axis, (k, s, d) in enumerate(zip(kernel, strides, dilations, strict=True), start=2):
        x = x.unfold(axis, d * (k - 1) + 1, s)[..., ::d].sum(-1)
    return x


def _average_pool_by_torch(call: OperatorCall, x: Tensor) -> Tensor:
    """Computes AveragePool by torch's operator if its result is the same, else by `_average_pool`."""
    kernel = list(call.get("kernel_shape"))
    strides, dilations, pad_before, pad_after = _read_window(call, x, kernel)
    is_supported = pad_before == pad_after and set(dilations) <= {1} and not call.get("ceil_mode", 0)
    if not is_supported or any(p > k // 2 for p, k in zip(pad_before, kernel, strict=True)):
        return _average_pool(call, x)
    counts_padding = bool(call.get("count_include_pad", 0))
    dims = _get_spatial_rank(x)
    if dims == 1:
        return functional.avg_pool1d(x, kernel, strides, pad_before, False, counts_padding)
    pool: Any = functional.avg_pool2d if dims == 2 else functional.avg_pool3d
    average: Tensor = pool(x, kernel, strides, pad_before, False, counts_padding)
    return average


def _lp_pool(call: OperatorCall, x: Tensor) -> Tensor:
    kernel, p = list(call.get("kernel_shape")), call.get("p", 2)
    strides, dilations, pad_before, pad_after = _read_ceil_window(call, x, kernel)
    powers = _pad(x.abs() ** p, pad_before, pad_after)
    result: Tensor = _sum_windows(powers, kernel, strides, dilations) ** (1 / p)
    return result


def _list_spatial_axes(x: Tensor) -> list[int]:
    return list(range(2, x.dim()))


# -- normalization


def _batch_norm(call: OperatorCall, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Any:
    epsilon, momentum = call.get("epsilon", 1e-5), call.get("momentum", 0.9)
    if not call.get("training_mode", 0):
        return functional.batch_norm(x, mean.detach(), var.detach(), scale, bias, False, 0.0, epsilon)
    axes = [a for a in range(x.dim()) if a != 1]
    batch_mean, batch_variance = x.mean(axes), x.var(axes, unbiased=False)
    normalized = functional.batch_norm(x, batch_mean, batch_variance, scale, bias, False, 0.0, epsilon)
    return (
        normalized,
        mean * momentum + batch_mean * (1 - momentum),
        var * momentum + batch_variance * (1 - momentum),
    )


def _layer_norm(call: OperatorCall, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Any:
    """Computes LayerNormalization; further outputs are the mean and the inverse standard deviation."""
    axis, epsilon = call.get("axis", -1) % x.dim(), call.get("epsilon", 1e-5)
    axes = list(range(axis, x.dim()))
    if (
        call.output_count == 1
        and scale.shape == x.shape[axis:]
        and (bias is None or bias.shape == scale.shape)
    ):
        return functional.layer_norm(x, list(x.shape[axis:]), scale, bias, epsilon)
    wide = x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
    mean = wide.mean(axes, keepdim=True)
    inverse = torch.rsqrt(((wide - mean) ** 2).mean(axes, keepdim=True) + epsilon)
    y = ((wide - mean) * inverse).to(x.dtype) * scale
    return (y if bias is None else y + bias, mean, inverse)[: call.output_count]


def _rms_norm(call: OperatorCall, x: Tensor, scale: Tensor) -> Tensor:
    axis, epsilon = call.get("axis", -1) % x.dim(), call.get("epsilon", 1e-5)
    wide = x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
    square = (wide * wide).mean(list(range(axis, x.dim())), keepdim=True)
    return (wide * torch.rsqrt(square + epsilon)).to(x.dtype) * scale


def _group_norm(call: OperatorCall, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups = call.get("num_groups")
    if call.opset and call.opset < 21:
        # before opset 21 each group had one scale
        scale, bias = (v.repeat_interleave(x.shape[1] // groups) for v in (scale, bias))
    return functional.group_norm(x, groups, scale, bias, call.get("epsilon", 1e-5))


def _lrn(call: OperatorCall, x: Tensor) -> Tensor:
    size = call.get("size")
    square = (x * x).reshape(*x.shape[:2], math.prod(x.shape[2:]))
    pad_before, pad_after = (size - 1) // 2, size - 1 - (size - 1) // 2
    square = functional.pad(square, (0, 0, pad_before, pad_after))
    total = square.unfold(1, size, 1).sum(-1).reshape(x.shape)
    result: Tensor = x / (call.get("bias", 1.0) + call.get("alpha", 1e-4) / size * total) ** call.get(
        "beta", 0.75
    )
    return result


def _lp_norm(call: OperatorCall, x: Tensor) -> Tensor:
    axis, p = call.get("axis", -1), call.get("p", 2)
    norm = torch.linalg.vector_norm(x, p, dim=axis, keepdim=True)
    return torch.where(norm == 0, torch.zeros_like(x), x / norm)


def _mean_variance(call: OperatorCall, x: Tensor) -> Tensor:
    axes = list(call.get("axes", (0, 2, 3)))
    mean = x.mean(axes, keepdim=True)
    deviation = torch.sqrt((x * x).mean(axes, keepdim=True) - mean * mean)
    return (x - mean) / (deviation + 1e-9)


# -- images and attention


def _resize(call: OperatorCall, x: Tensor, *inputs: Any) -> Tensor:
    """Resizes by nearest or linear interpolation, one axis after another.

    Raises:
        BadModel: The interpolation is cubic, or an attribute is not supported.
    """
    scales = inputs[-1] if call.node.op == "Upsample" or len(inputs) < 2 else inputs[1]
    sizes = inputs[2] if len(inputs) > 2 and call.node.op == "Resize" else None
    if call.node.op == "Upsample" and not inputs:
        scales = call.get("scales")
    mode = call.get("mode", "nearest")
    if (
        mode == "cubic"
        or call.get("antialias", 0)
        or call.get("keep_aspect_ratio_policy", "stretch") != "stretch"
    ):
        raise BadModel("torch cannot resize by cubic, with antialias or a kept ratio here")
    transformation = call.get("coordinate_transformation_mode", "half_pixel")
    if call.node.op == "Upsample" or (call.opset and call.opset < 11):
        transformation = "asymmetric"
    if transformation == "tf_crop_and_resize":
        raise BadModel("torch cannot crop and resize here")
    axes = list(call.get("axes", range(x.dim())))
    if sizes is not None:
        targets = call.read_numbers(sizes)
        factors = [n / x.shape[a] for n, a in zip(targets, axes, strict=True)]
    else:
        factors = [float(s) for s in (call.read_numbers(scales) if not isinstance(scales, tuple) else scales)]
        targets = [math.floor(x.shape[a] * f) for f, a in zip(factors, axes, strict=True)]
    rounding = (
        "floor"
        if transformation == "asymmetric" and call.opset < 11
        else call.get("nearest_mode", "floor" if call.node.op == "Upsample" else "round_prefer_floor")
    )
    for axis, target, factor in zip(axes, targets, factors, strict=True):
        if target == x.shape[axis] and factor == 1:
            continue
        indices = _compute_resize_coordinates(transformation, target, factor, x.shape[axis], x.device)
        x = (
            _resize_nearest(x, axis, indices, rounding)
            if mode == "nearest"
            else _resize_linear(x, axis, indices)
        )
    return x


def _compute_resize_coordinates(
    transformation: str, target: int, factor: float, size: int, device: torch.device
) -> Tensor:
    """Returns the input coordinate of each element of the result along one axis."""
    indices = torch.arange(target, dtype=torch.float64, device=device)
    if transformation == "asymmetric":
        return indices / factor
    if transformation == "align_corners":
        return indices * ((size - 1) / (size * factor - 1)) if size * factor > 1 else indices * 0
    if transformation == "pytorch_half_pixel" and target <= 1:
        return indices * 0
    if transformation == "half_pixel_symmetric":
        adjusted = target / (size * factor)
        return size / 2 * (1 - adjusted) + (indices + 0.5) / factor - 0.5
    return (indices + 0.5) / factor - 0.5


def _resize_nearest(x: Tensor, axis: int, indices: Tensor, rounding: str) -> Tensor:
    rules: Mapping[str, Callable[[Tensor], Tensor]] = {
        "round_prefer_floor": lambda at: torch.ceil(at - 0.5),
        "round_prefer_ceil": lambda at: torch.floor(at + 0.5),
        "floor": torch.floor,
        "ceil": torch.ceil,
    }
    return x.index_select(axis, rules[rounding](indices).long().clamp(0, x.shape[axis] - 1))


def _resize_linear(x: Tensor, axis: int, indices: Tensor) -> Tensor:
    indices = indices.clamp(0, x.shape[axis] - 1)
    low = torch.floor(indices)
    high = (low + 1).clamp(max=x.shape[axis] - 1)
    weight = (indices - low).to(x.dtype).reshape(-1, *(1,) * (x.dim() - 1 - axis % x.dim()))
    low_values, high_values = x.index_select(axis, low.long()), x.index_select(axis, high.long())
    return low_values * (1 - weight) + high_values * weight


def _skip_layer_norm(
    call: OperatorCall, x: Tensor, skip: Tensor, gamma: Tensor, beta: Any = None, bias: Any = None
) -> Any:
    """Computes SkipLayerNormalization; the fourth output is the sum before the normalization."""
    total = x + skip
    total = total if bias is None else total + bias
    y = functional.layer_norm(total, [x.shape[-1]], gamma, beta, call.get("epsilon", 1e-12))
    if call.output_count > 3:
        return y, None, None, total
    return y


def _attention(call: OperatorCall, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    """Computes Attention of opset 23, without soft cap, lengths, or an output of the scores.

    Raises:
        BadModel: The node uses one of these.
    """
    mask, past_k, past_v, lengths = (*rest, *(None,) * 4)[:4]
    has_score_output = call.get("qk_matmul_output_mode", 0) or call.output_count > 3
    if call.get("softcap", 0.0) or has_score_output or lengths is not None:
        raise BadModel("torch cannot run Attention with a soft cap, lengths, or its inner scores here")
    call.get("softmax_precision")  # torch chooses it: the attribute counts as read
    is_flat = q.dim() == 3
    heads, kv_heads = call.get("q_num_heads"), call.get("kv_num_heads")
    if is_flat:
        q = q.reshape(*q.shape[:2], heads, -1).transpose(1, 2)
        k, v = (t.reshape(*t.shape[:2], kv_heads, -1).transpose(1, 2) for t in (k, v))
    if past_k is not None:
        k, v = torch.cat((past_k, k), 2), torch.cat((past_v, v), 2)
    present = k, v
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
    causal = bool(call.get("is_causal", 0))
    if causal and (mask is not None or past_k is not None):
        rows, columns = q.shape[2], k.shape[2]
        # with a past, the last query sees the last key; without a past, the first query sees the first key
        visible = torch.ones(rows, columns, dtype=torch.bool, device=q.device).tril(
            columns - rows if past_k is not None else 0
        )
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.masked_fill(~visible, -math.inf)
        else:
            mask = visible if mask is None else mask & visible
        causal = False
    y = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=call.get("scale")
    )
    if is_flat:
        y = y.transpose(1, 2).flatten(2)
    return (y, *present)[: call.output_count] if call.output_count > 1 else y


TABLE: Mapping[str, Rule] = {
    "Attention": _attention,
    "AveragePool": _average_pool_by_torch,
    "BatchNormalization": _batch_norm,
    "Conv": convolution,
    "ConvTranspose": _conv_transpose,
    "Einsum": _einsum,
    "Gemm": gemm,
    "GlobalAveragePool": lambda call, x: x.mean(_list_spatial_axes(x), keepdim=True),
    "GlobalLpPool": lambda call, x: torch.linalg.vector_norm(
        x, call.get("p", 2), dim=_list_spatial_axes(x), keepdim=True
    ),
    "GlobalMaxPool": lambda call, x: x.amax(_list_spatial_axes(x), keepdim=True),
    "GroupNormalization": _group_norm,
    "InstanceNormalization": lambda call, x, scale, bias: functional.instance_norm(
        x, weight=scale, bias=bias, eps=call.get("epsilon", 1e-5)
    ),
    "LRN": _lrn,
    "LayerNormalization": _layer_norm,
    "LpNormalization": _lp_norm,
    "LpPool": _lp_pool,
    "MatMul": lambda call, a, b: torch.matmul(a, b),
    "MaxPool": _max_pool,
    "MeanVarianceNormalization": _mean_variance,
    "RMSNormalization": _rms_norm,
    "Resize": _resize,
    "Upsample": _resize,
}

MICROSOFT: Mapping[str, Rule] = {"FusedMatMul": _fused_matmul, "SkipLayerNormalization": _skip_layer_norm}
