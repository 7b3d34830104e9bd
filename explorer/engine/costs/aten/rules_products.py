"""Convolutions, matrix products, attention: rows of `rules.RULES` that multiply and accumulate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from explorer.engine.costs.aten.call import Rule, argument, leading, sizes
from explorer.engine.costs.aten.rules_linalg import four_real
from explorer.engine.operators import formulas
from explorer.engine.operators.formulas import Cost

__all__ = ["FUNCTIONS", "PRODUCTS", "function_cost"]


def _of_one_type(*operands: Any) -> None:
    """Raises what torch would: on the meta device a product of float16 with float32 goes unnoticed.

    Raises:
        RuntimeError: The operands have different types.
    """
    kinds = {t.dtype: None for t in operands if isinstance(t, torch.Tensor)}
    if len(kinds) > 1:
        names = " and ".join(str(kind).removeprefix("torch.") for kind in kinds)
        raise RuntimeError(f"the operands of a product have to be of one type, not of {names}")


def _convolution(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    source, weight, bias = args[:3]
    _of_one_type(source, weight, bias)
    transposed = argument(args, kwargs, 6, "transposed", False)
    if transposed:
        return formulas.conv_transpose(sizes(source), sizes(weight), sizes(out), bias=bias is not None)
    return formulas.conv(sizes(out), sizes(weight), bias=bias is not None)


def _sequence_convolution(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    """conv_tbc: time, batch and channels in that order, weight (kernel, Cin, Cout)."""
    steps, batch, features = sizes(out)
    kernel, channels, _ = sizes(args[1])
    return formulas.conv((batch, features, steps), (features, channels, kernel), bias=True)


def _slow_convolution(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    return formulas.conv(
        sizes(leading(out)), sizes(args[1]), bias=argument(args, kwargs, 3, "bias") is not None
    )


def _deform_convolution(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    # the bilinear sampling of every tap takes 7 operations, as an interpolation does
    weight = sizes(args[1])
    cost = formulas.conv(sizes(out), weight, bias=True)
    source = sizes(args[0])
    taps = (source[0], source[1], *sizes(out)[2:], *weight[2:])
    return formulas.adding(cost, "bilinear samples", taps, 7)


def _product(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    _of_one_type(*args[:2])
    return four_real(formulas.matmul(sizes(args[0]), sizes(args[1])), *args[:2])


def _added_product(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    _of_one_type(*args[:3])
    result = four_real(formulas.matmul(sizes(args[1]), sizes(args[2])), *args[1:3])
    shape = sizes(out)
    if kwargs.get("alpha", 1) != 1:
        result = formulas.adding(result, "alpha", shape)
    beta = kwargs.get("beta", 1)
    if beta not in (0, 1):
        result = formulas.adding(result, "beta", shape)
    return formulas.adding(result, "bias", shape) if beta != 0 else result


def _summed_batch(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    """addbmm: the products of all batches, summed into one."""
    batch, rows, depth = sizes(args[1])
    result = formulas.matmul((rows, batch * depth), (batch * depth, sizes(args[2])[2]))
    result = four_real(result, *args[1:3])
    return formulas.adding(result, "bias", sizes(out))


def _packed_product(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    """A product with a weight of few bits, whose own shape says nothing: (rows, in) by (in, out)."""
    depth = int(args[0].shape[-1])
    return formulas.matmul(sizes(args[0]), (depth, int(out.shape[-1])))


def _grouped_product(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    """Products of groups that share one dimension: every row (or column, or depth) belongs to one group."""
    left, right = sizes(args[0]), sizes(args[1])
    if len(left) == len(right) == 3:
        return formulas.matmul(left, right)
    return formulas.matmul(left[-2:], right[-2:])


def _sampling_grid(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    """affine_grid: every point, with a 1 behind its coordinates, by the matrix of its image."""
    batch, coordinates, homogeneous = sizes(args[0])
    points = int(out.numel()) // (batch * coordinates) if batch else 0
    return formulas.matmul((batch, points, homogeneous), (batch, homogeneous, coordinates))


def _linear(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    bias = argument(args, kwargs, 2, "bias") is not None
    return formulas.linear(sizes(args[0]), sizes(args[1])[0], bias=bias)


def _fused_attention(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    query, key, value = (sizes(t) for t in args[:3])
    causal = next((a for a in (*args[3:], kwargs.get("is_causal")) if isinstance(a, bool)), False)
    return formulas.attention(query[:-3], query[-3], query[-2], key[-2], query[-1], value[-1], causal=causal)


def _trilinear(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    """nn.Bilinear, x1 W x2 for every output feature: first x1 W, then each row of it with x2."""
    first, second, features = int(args[0].shape[-1]), int(args[2].shape[-1]), int(out.shape[-1])
    batch = int(out.numel()) // features if features else 0
    left = formulas.matmul((batch, first), (first, features * second))
    right = formulas.matmul((batch, features, second), (batch, second, 1))
    return formulas.total([left, right])


PRODUCTS: dict[str, Rule] = {
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::convolution_overrideable": _convolution,
    "aten::cudnn_convolution": _slow_convolution,
    "aten::mkldnn_convolution": _slow_convolution,
    "aten::_slow_conv2d_forward": _slow_convolution,
    "aten::_conv_depthwise2d": _slow_convolution,
    "aten::conv_depthwise3d": _slow_convolution,
    "aten::conv_tbc": _sequence_convolution,
    "torchvision::deform_conv2d": _deform_convolution,
    "aten::mm": _product,
    "aten::bmm": _product,
    "aten::mv": _product,
    "aten::dot": _product,
    "aten::vdot": _product,
    "aten::matmul": _product,
    "aten::_int_mm": _product,
    "aten::_scaled_mm": _packed_product,
    "aten::_grouped_mm": _grouped_product,
    "aten::_scaled_grouped_mm": _grouped_product,
    "aten::_weight_int8pack_mm": _packed_product,
    "aten::_weight_int4pack_mm": _packed_product,
    "aten::_weight_int4pack_mm_for_cpu": _packed_product,
    "aten::addmm": _added_product,
    "aten::addmm_": _added_product,
    "aten::_addmm_activation": _added_product,
    "aten::baddbmm": _added_product,
    "aten::baddbmm_": _added_product,
    "aten::addmv": _added_product,
    "aten::addbmm": _summed_batch,
    "aten::linear": _linear,
    "aten::_trilinear": _trilinear,
    "aten::scaled_dot_product_attention": _fused_attention,
    "aten::_scaled_dot_product_flash_attention": _fused_attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _fused_attention,
    "aten::_scaled_dot_product_efficient_attention": _fused_attention,
    "aten::_scaled_dot_product_cudnn_attention": _fused_attention,
    "aten::_scaled_dot_product_attention_math": _fused_attention,
    "aten::affine_grid_generator": _sampling_grid,
}
"""Cost of a product by the schema name of its operator."""


def _attention(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    query, key, value = (sizes(argument(args, kwargs, i, n)) for i, n in enumerate(("query", "key", "value")))
    mask = argument(args, kwargs, 3, "attn_mask")
    causal = bool(argument(args, kwargs, 5, "is_causal", False))
    heads = query[-3] if len(query) > 2 else 1
    # the tensors may be broadcast against each other; the output has the batch that results
    return formulas.attention(
        sizes(out)[:-3],
        heads,
        query[-2],
        key[-2],
        query[-1],
        value[-1],
        causal=causal,
        mask=mask is not None,
    )


FUNCTIONS: dict[str, Rule] = {"scaled_dot_product_attention": _attention}
"""Functions whose formula is better said whole than as the sum of the operators below."""


def function_cost(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost | None:
    """The cost of a function that `FUNCTIONS` knows, None of any other."""
    rule = FUNCTIONS.get(name)
    return rule(args, kwargs, out) if rule is not None and isinstance(out, torch.Tensor) else None
