"""Layers of a network: products, convolutions, pooling, normalization."""

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
_TURNED: Sequence[Callable[..., Tensor]] = (
    functional.conv_transpose1d,
    functional.conv_transpose2d,
    functional.conv_transpose3d,
)
_MAX: Sequence[Callable[..., Any]] = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)


def gemm(call: OperatorCall, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """Alpha A B + beta C."""
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


# windows


def _window_parameters(
    call: OperatorCall, x: Tensor, kernel: Sequence[int]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Strides, dilations, and the padding before and after each axis."""
    dims = len(kernel)
    strides = list(call.get("strides", (1,) * dims))
    dilations = list(call.get("dilations", (1,) * dims))
    auto, pads = call.get("auto_pad", "NOTSET"), list(call.get("pads", (0,) * (2 * dims)))
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        before, behind = [], []
        for size, k, s, d in zip(x.shape[2:], kernel, strides, dilations, strict=True):
            total = max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
            less, more = total // 2, total - total // 2
            before.append(less if auto == "SAME_UPPER" else more)
            behind.append(more if auto == "SAME_UPPER" else less)
        return strides, dilations, before, behind
    pads = pads if auto != "VALID" else [0] * (2 * dims)
    return strides, dilations, pads[:dims], pads[dims:]


def _pad(x: Tensor, before: Sequence[int], behind: Sequence[int], value: float = 0.0) -> Tensor:
    if not any((*before, *behind)):
        return x
    flat = [size for pair in zip(reversed(before), reversed(behind), strict=True) for size in pair]
    return functional.pad(x, flat, value=value)


def convolution(call: OperatorCall, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Conv, in any of torch's three dimensions."""
    kernel = list(weight.shape[2:])
    strides, dilations, before, behind = _window_parameters(call, x, kernel)
    padding = before
    if before != behind:
        x, padding = _pad(x, before, behind), [0] * len(kernel)
    function = _CONV[_rank(x) - 1]
    return function(x, weight, bias, strides, padding, dilations, call.get("group", 1))


def _rank(x: Tensor) -> int:
    rank = x.dim() - 2
    if not 1 <= rank <= 3:
        raise BadModel(f"torch has no windows of {rank} dimensions")
    return rank


def _conv_transpose(call: OperatorCall, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    dims, kernel = _rank(x), list(weight.shape[2:])
    strides = list(call.get("strides", (1,) * dims))
    dilations = list(call.get("dilations", (1,) * dims))
    extra = list(call.get("output_padding", (0,) * dims))
    whole = [
        s * (n - 1) + o + d * (k - 1) + 1
        for s, n, o, d, k in zip(strides, x.shape[2:], extra, dilations, kernel, strict=True)
    ]
    auto, shape = call.get("auto_pad", "NOTSET"), call.get("output_shape")
    pads = list(call.get("pads", (0,) * (2 * dims)))
    if shape is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        shape = [n * s for n, s in zip(x.shape[2:], strides, strict=True)]
    if shape is not None:
        total = [w - s for w, s in zip(whole, list(shape)[-dims:], strict=True)]
        less = [t // 2 for t in total]
        more = [t - half for t, half in zip(total, less, strict=True)]
        before, behind = (less, more) if auto == "SAME_UPPER" else (more, less)
    else:
        pads = pads if auto != "VALID" else [0] * (2 * dims)
        before, behind = pads[:dims], pads[dims:]
    # torch returns the full result; rows beyond it are zero except for the bias
    full = _TURNED[dims - 1](x, weight, None, strides, 0, 0, call.get("group", 1), dilations)
    full = _pad(full, [0] * dims, extra)
    full = _pad(full, [max(-b, 0) for b in before], [max(-b, 0) for b in behind])
    for axis, (first, last) in enumerate(zip(before, behind, strict=True), start=2):
        first, last = max(first, 0), max(last, 0)
        full = full.narrow(axis, first, full.shape[axis] - first - last)
    return full if bias is None else full + bias.reshape(-1, *(1,) * dims)


def _ceil_parameters(
    call: OperatorCall, x: Tensor, kernel: Sequence[int]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """As `_window_parameters`; with `ceil_mode`, padding is added for windows that reach beyond the end."""
    strides, dilations, before, behind = _window_parameters(call, x, kernel)
    if not call.get("ceil_mode", 0):
        return strides, dilations, before, behind
    ends = []
    for size, k, s, d, b, e in zip(x.shape[2:], kernel, strides, dilations, before, behind, strict=True):
        reach = d * (k - 1) + 1
        count = -(-(size + b + e - reach) // s) + 1
        if (count - 1) * s >= size + b:  # a window must not start in the padding after the end
            count -= 1
        ends.append(max((count - 1) * s + reach - size - b, e))
    return strides, dilations, before, ends


def _max_pool(call: OperatorCall, x: Tensor) -> Any:
    kernel = list(call.get("kernel_shape"))
    strides, dilations, before, behind = _ceil_parameters(call, x, kernel)
    low: Any = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    floats = x if x.is_floating_point() else x.to(torch.float64)
    filled = _pad(floats, before, behind, float(low))
    pool = _MAX[_rank(x) - 1]
    if call.outputs < 2 or not call.node.outputs[1]:
        return pool(filled, kernel, strides, 0, dilations).to(x.dtype)
    values, places = pool(filled, kernel, strides, 0, dilations, return_indices=True)
    return values.to(x.dtype), _indices_without_padding(call, places, filled, x, before)


def _indices_without_padding(
    call: OperatorCall, places: Tensor, filled: Tensor, x: Tensor, before: Sequence[int]
) -> Tensor:
    """Indices into the padded input as ONNX's indices into the whole tensor."""
    coordinates, rest = [], places
    for size, first in zip(reversed(filled.shape[2:]), reversed(before), strict=True):
        coordinates.append(rest % size - first)
        rest = rest // size
    sizes = list(x.shape[2:])
    order = list(enumerate(reversed(coordinates)))
    if call.get("storage_order", 0):
        order = order[::-1]
    flat = torch.zeros_like(places)
    for axis, coordinate in order:
        flat = flat * sizes[axis] + coordinate
    count = math.prod(sizes)
    planes = torch.arange(x.shape[0] * x.shape[1], device=x.device).reshape(*x.shape[:2], *(1,) * len(sizes))
    return flat + planes * count


def _average_pool(call: OperatorCall, x: Tensor) -> Tensor:
    kernel = list(call.get("kernel_shape"))
    strides, dilations, before, behind = _ceil_parameters(call, x, kernel)
    _, _, _, real = _window_parameters(call, x, kernel)
    ones = torch.ones_like(x[:1, :1])
    if call.get("count_include_pad", 0):
        ones = _pad(ones, before, real, 1.0)
        ones = _pad(ones, [0] * len(before), [a - b for a, b in zip(behind, real, strict=True)])
    else:
        ones = _pad(ones, before, behind)
    total = _window_sum(_pad(x, before, behind), kernel, strides, dilations)
    return total / _window_sum(ones, kernel, strides, dilations)


def _window_sum(x: Tensor, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Tensor:
    for axis, (k, s, d) in enumerate(zip(kernel, strides, dilations, strict=True), start=2):
        x = x.unfold(axis, d * (k - 1) + 1, s)[..., ::d].sum(-1)
    return x


def _average_pool_torch(call: OperatorCall, x: Tensor) -> Tensor:
    """AveragePool by torch's own operator, if that is equivalent."""
    kernel = list(call.get("kernel_shape"))
    strides, dilations, before, behind = _window_parameters(call, x, kernel)
    simple = before == behind and set(dilations) <= {1} and not call.get("ceil_mode", 0)
    if not simple or any(p > k // 2 for p, k in zip(before, kernel, strict=True)):
        return _average_pool(call, x)
    counted = bool(call.get("count_include_pad", 0))
    dims = _rank(x)
    if dims == 1:
        return functional.avg_pool1d(x, kernel, strides, before, False, counted)
    pool: Any = functional.avg_pool2d if dims == 2 else functional.avg_pool3d
    average: Tensor = pool(x, kernel, strides, before, False, counted)
    return average


def _lp_pool(call: OperatorCall, x: Tensor) -> Tensor:
    kernel, p = list(call.get("kernel_shape")), call.get("p", 2)
    strides, dilations, before, behind = _ceil_parameters(call, x, kernel)
    powers = _pad(x.abs() ** p, before, behind)
    result: Tensor = _window_sum(powers, kernel, strides, dilations) ** (1 / p)
    return result


def _spatial_axes(x: Tensor) -> list[int]:
    return list(range(2, x.dim()))


# normalisation


def _batch_norm(call: OperatorCall, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Any:
    epsilon, momentum = call.get("epsilon", 1e-5), call.get("momentum", 0.9)
    if not call.get("training_mode", 0):
        return functional.batch_norm(x, mean.detach(), var.detach(), scale, bias, False, 0.0, epsilon)
    axes = [a for a in range(x.dim()) if a != 1]
    now, spread = x.mean(axes), x.var(axes, unbiased=False)
    normalized = functional.batch_norm(x, now, spread, scale, bias, False, 0.0, epsilon)
    return normalized, mean * momentum + now * (1 - momentum), var * momentum + spread * (1 - momentum)


def _layer_norm(call: OperatorCall, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Any:
    axis, epsilon = call.get("axis", -1) % x.dim(), call.get("epsilon", 1e-5)
    axes = list(range(axis, x.dim()))
    if call.outputs == 1 and scale.shape == x.shape[axis:] and (bias is None or bias.shape == scale.shape):
        return functional.layer_norm(x, list(x.shape[axis:]), scale, bias, epsilon)
    wide = x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
    mean = wide.mean(axes, keepdim=True)
    inverse = torch.rsqrt(((wide - mean) ** 2).mean(axes, keepdim=True) + epsilon)
    y = ((wide - mean) * inverse).to(x.dtype) * scale
    return (y if bias is None else y + bias, mean, inverse)[: call.outputs]


def _rms_norm(call: OperatorCall, x: Tensor, scale: Tensor) -> Tensor:
    axis, epsilon = call.get("axis", -1) % x.dim(), call.get("epsilon", 1e-5)
    wide = x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
    square = (wide * wide).mean(list(range(axis, x.dim())), keepdim=True)
    return (wide * torch.rsqrt(square + epsilon)).to(x.dtype) * scale


def _group_norm(call: OperatorCall, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups = call.get("num_groups")
    if call.opset and call.opset < 21:
        # then there was a scale for each group
        scale, bias = (v.repeat_interleave(x.shape[1] // groups) for v in (scale, bias))
    return functional.group_norm(x, groups, scale, bias, call.get("epsilon", 1e-5))


def _lrn(call: OperatorCall, x: Tensor) -> Tensor:
    size = call.get("size")
    square = (x * x).unsqueeze(1).flatten(3) if x.dim() > 3 else (x * x).unsqueeze(1)
    before, behind = (size - 1) // 2, size - 1 - (size - 1) // 2
    square = functional.pad(square, (0, 0, before, behind))
    total = square.unfold(2, size, 1).sum(-1).reshape(x.shape)
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
    spread = torch.sqrt((x * x).mean(axes, keepdim=True) - mean * mean)
    return (x - mean) / (spread + 1e-9)


# images


def _resize(call: OperatorCall, x: Tensor, *inputs: Any) -> Tensor:
    """Resize by nearest or linear interpolation, one axis after the other."""
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
        targets = call.ints(sizes)
        factors = [n / x.shape[a] for n, a in zip(targets, axes, strict=True)]
    else:
        factors = [float(s) for s in (call.ints(scales) if not isinstance(scales, tuple) else scales)]
        targets = [math.floor(x.shape[a] * f) for f, a in zip(factors, axes, strict=True)]
    rounding = (
        "floor"
        if transformation == "asymmetric" and call.opset < 11
        else call.get("nearest_mode", "floor" if call.node.op == "Upsample" else "round_prefer_floor")
    )
    for axis, target, factor in zip(axes, targets, factors, strict=True):
        if target == x.shape[axis] and factor == 1:
            continue
        places = _resize_coordinates(transformation, target, factor, x.shape[axis], x.device)
        x = _nearest(x, axis, places, rounding) if mode == "nearest" else _linear(x, axis, places)
    return x


def _resize_coordinates(
    transformation: str, target: int, factor: float, size: int, device: torch.device
) -> Tensor:
    """The input coordinates of the result's elements."""
    at = torch.arange(target, dtype=torch.float64, device=device)
    if transformation == "asymmetric":
        return at / factor
    if transformation == "align_corners":
        return at * ((size - 1) / (size * factor - 1)) if size * factor > 1 else at * 0
    if transformation == "pytorch_half_pixel" and target <= 1:
        return at * 0
    if transformation == "half_pixel_symmetric":
        adjusted = target / (size * factor)
        return size / 2 * (1 - adjusted) + (at + 0.5) / factor - 0.5
    return (at + 0.5) / factor - 0.5


def _nearest(x: Tensor, axis: int, places: Tensor, rounding: str) -> Tensor:
    rules: Mapping[str, Callable[[Tensor], Tensor]] = {
        "round_prefer_floor": lambda at: torch.ceil(at - 0.5),
        "round_prefer_ceil": lambda at: torch.floor(at + 0.5),
        "floor": torch.floor,
        "ceil": torch.ceil,
    }
    return x.index_select(axis, rules[rounding](places).long().clamp(0, x.shape[axis] - 1))


def _linear(x: Tensor, axis: int, places: Tensor) -> Tensor:
    places = places.clamp(0, x.shape[axis] - 1)
    low = torch.floor(places)
    high = (low + 1).clamp(max=x.shape[axis] - 1)
    share = (places - low).to(x.dtype).reshape(-1, *(1,) * (x.dim() - 1 - axis % x.dim()))
    low_values, high_values = x.index_select(axis, low.long()), x.index_select(axis, high.long())
    return low_values * (1 - share) + high_values * share


def _skip_layer_norm(
    call: OperatorCall, x: Tensor, skip: Tensor, gamma: Tensor, beta: Any = None, bias: Any = None
) -> Any:
    total = x + skip
    total = total if bias is None else total + bias
    y = functional.layer_norm(total, [x.shape[-1]], gamma, beta, call.get("epsilon", 1e-12))
    if call.outputs > 3:
        return y, None, None, total
    return y


def _attention(call: OperatorCall, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    """Attention of opset 23, without soft cap, lengths, or output of the scores."""
    mask, past_k, past_v, lengths = (*rest, *(None,) * 4)[:4]
    inner = call.get("qk_matmul_output_mode", 0) or call.outputs > 3
    if call.get("softcap", 0.0) or inner or lengths is not None:
        raise BadModel("torch cannot run Attention with a soft cap, lengths, or its inner scores here")
    call.get("softmax_precision")
    flat = q.dim() == 3
    heads, shared = call.get("q_num_heads"), call.get("kv_num_heads")
    if flat:
        q = q.reshape(*q.shape[:2], heads, -1).transpose(1, 2)
        k, v = (t.reshape(*t.shape[:2], shared, -1).transpose(1, 2) for t in (k, v))
    if past_k is not None:
        k, v = torch.cat((past_k, k), 2), torch.cat((past_v, v), 2)
    present = k, v
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
    causal = bool(call.get("is_causal", 0))
    if causal and (mask is not None or past_k is not None):
        rows, columns = q.shape[2], k.shape[2]
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
    if flat:
        y = y.transpose(1, 2).flatten(2)
    return (y, *present)[: call.outputs] if call.outputs > 1 else y


TABLE: Mapping[str, Rule] = {
    "Attention": _attention,
    "AveragePool": _average_pool_torch,
    "BatchNormalization": _batch_norm,
    "Conv": convolution,
    "ConvTranspose": _conv_transpose,
    "Einsum": _einsum,
    "Gemm": gemm,
    "GlobalAveragePool": lambda call, x: x.mean(_spatial_axes(x), keepdim=True),
    "GlobalLpPool": lambda call, x: torch.linalg.vector_norm(
        x, call.get("p", 2), dim=_spatial_axes(x), keepdim=True
    ),
    "GlobalMaxPool": lambda call, x: x.amax(_spatial_axes(x), keepdim=True),
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
