"""Counts the work of ATen operators with products: convolutions, matrix products, attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from explorer.engine.costs.aten.call import AtenCall, OperatorRecord, build_matmul_gradient_rule, is_complex
from explorer.engine.operators import cost_formulas, gradients
from explorer.engine.operators.cost_formulas import Cost
from explorer.engine.operators.gradients import Gradient, GradientPurpose, product_gradient

GetPurpose = Callable[[Any], GradientPurpose]
"""Function that returns the purpose of a tensor's gradient; see `GradientPurpose`."""


def _count_conv(call: AtenCall) -> Cost:
    bias = call.has("bias")
    if call.get("transposed"):
        return cost_formulas.conv_transpose(call.shape(0), call.shape(1), call.result_shape(), bias=bias)
    return cost_formulas.conv(call.result_shape(), call.shape(1), bias=bias)


def _count_conv_transpose(call: AtenCall) -> Cost:
    return cost_formulas.conv_transpose(
        call.shape(0), call.shape(1), call.result_shape(), bias=call.has("bias")
    )


def _count_sequence_conv(call: AtenCall) -> Cost:
    """Counts conv_tbc: input (time, batch, channels), weight (kernel, Cin, Cout)."""
    steps, batch, features = call.result_shape()
    kernel, channels, _ = call.shape(1)
    return cost_formulas.conv((batch, features, steps), (features, channels, kernel), bias=True)


def _count_deform_conv(call: AtenCall) -> Cost:
    # bilinear sampling takes 7 operations per tap, like an interpolation
    weight, result, source = call.shape(1), call.result_shape(), call.shape(0)
    taps = (source[0], source[1], *result[2:], *weight[2:])
    return cost_formulas.adding(cost_formulas.conv(result, weight, bias=True), "bilinear samples", taps, 7)


def _compute_deform_gradient(call: AtenCall, macs: int, get_purpose: GetPurpose) -> Gradient:
    """Computes the gradient of a deformable convolution, whose weight multiplies samples of the input.

    Offsets and mask need the gradient of these samples.
    """
    source, weight, *sampling = call.tensors()[:4]
    sampled: GradientPurpose = "input" if any(map(get_purpose, (source, *sampling))) else ""
    return product_gradient(macs, sampled, get_purpose(weight))


def _count_real_products(cost: Cost, call: AtenCall, *operand_indices: int) -> Cost:
    """Returns the cost of a product in real MACs: times 4 for two complex operands, times 2 for one."""
    factor = math.prod(2 if is_complex(call.tensors()[index]) else 1 for index in operand_indices)
    return cost if factor == 1 else cost_formulas.times(cost, factor, "real products")


def _count_matmul(call: AtenCall) -> Cost:
    return _count_real_products(cost_formulas.matmul(call.shape(0), call.shape(1)), call, 0, 1)


def _count_added_matmul(call: AtenCall) -> Cost:
    """Counts addmm: beta x first argument + alpha x product. A factor of 1 is free; beta 0 drops a term."""
    result = _count_real_products(cost_formulas.matmul(call.shape(1), call.shape(2)), call, 1, 2)
    alpha, beta = call.get("alpha", 1), call.get("beta", 1)
    if alpha != 1:
        result = cost_formulas.adding(result, "alpha", call.result_shape())
    if beta not in (0, 1):
        result = cost_formulas.adding(result, "beta", call.result_shape())
    return cost_formulas.adding(result, "bias", call.result_shape()) if beta != 0 else result


def _count_summed_batch(call: AtenCall) -> Cost:
    """Counts addbmm: the products of all batches, summed into one matrix."""
    batch, rows, depth = call.sizes(1)
    result = cost_formulas.matmul((rows, batch * depth), (batch * depth, call.shape(2)[2]))
    return cost_formulas.adding(_count_real_products(result, call, 1, 2), "bias", call.result_shape())


def _count_packed_matmul(call: AtenCall) -> Cost:
    """Counts a product with a packed low-bit weight, whose shape is implied: (rows, in) by (in, out)."""
    source = call.shape()
    return cost_formulas.matmul(source, (source[-1], call.result_shape()[-1]))


def _count_dynamic_linear(call: AtenCall) -> Cost:
    """Counts a linear layer that quantizes its input in the run: min, max, divide, round and add."""
    cost = cost_formulas.adding(_count_packed_matmul(call), "quantize", call.shape(), 5)
    steps = ("rescale", "bias", *(("relu",) if "_relu" in call.name else ()))
    for step in steps:
        cost = cost_formulas.adding(cost, step, call.result_shape())
    return cost


def _count_grouped_matmul(call: AtenCall) -> Cost:
    """Counts a product for each group. Groups that split a dimension have the MACs of the whole product."""
    first, second = call.shape(0), call.shape(1)
    if len(first) == len(second) == 3:
        return cost_formulas.matmul(first, second)
    return cost_formulas.matmul(first[-2:], second[-2:])


def _count_linear(call: AtenCall) -> Cost:
    return cost_formulas.linear(call.shape(0), call.shape(1)[0], bias=call.has("bias"))


def _count_sampling_grid(call: AtenCall) -> Cost:
    """Counts affine_grid: every point in homogeneous coordinates times the matrix of its image."""
    batch, coordinates, homogeneous = call.sizes()
    points = math.prod(call.result_sizes()) // (batch * coordinates) if batch else 0
    return cost_formulas.matmul((batch, points, homogeneous), (batch, homogeneous, coordinates))


def _compute_grid_gradient(call: AtenCall, macs: int, get_purpose: GetPurpose) -> Gradient:
    """Returns the gradient of the matrices; the points of the image are constants."""
    return product_gradient(macs, get_purpose(call.tensors()[0]), "")


def _count_trilinear(call: AtenCall) -> Cost:
    """Counts nn.Bilinear, x1 W x2 for every output feature: first x1 W, then each of its rows times x2."""
    first, second, features = call.sizes(0)[-1], call.sizes(2)[-1], call.result_sizes()[-1]
    batch = math.prod(call.result_sizes()) // features if features else 0
    first_product = cost_formulas.matmul((batch, first), (first, features * second))
    second_product = cost_formulas.matmul((batch, features, second), (batch, second, 1))
    return cost_formulas.total([first_product, second_product])


def _compute_trilinear_gradient(call: AtenCall, macs: int, get_purpose: GetPurpose) -> Gradient:
    first, weight, second = map(get_purpose, call.tensors()[:3])
    second_macs = math.prod(call.result_sizes()) * call.sizes(2)[-1]
    between: GradientPurpose = (
        "input" if first or weight else ""
    )  # of x1 W, which the second product multiplies by x2
    return product_gradient(macs - second_macs, first, weight) + product_gradient(
        second_macs, between, second
    )


def _count_attention(call: AtenCall) -> Cost:
    query, key, value = (call.shape(name) for name in ("query", "key", "value"))
    heads = query[-3] if len(query) > 2 else 1
    # the operands may broadcast; the output has the resulting batch dimensions
    return cost_formulas.attention(
        call.result_shape()[:-3],
        heads,
        query[-2],
        key[-2],
        query[-1],
        value[-1],
        causal=bool(call.get("is_causal")),
        mask=call.has("attn_mask") or call.has("attn_bias"),
    )


def _compute_attention_gradient(call: AtenCall, macs: int, get_purpose: GetPurpose) -> Gradient:
    query, key, value = call.tensors()[:3]
    width = int(query.shape[-1])
    scores = macs * width // (width + int(value.shape[-1]))
    return gradients.attention(
        scores, macs - scores, get_purpose(query), get_purpose(key), get_purpose(value)
    )


DYNAMIC_LINEAR = tuple(
    f"quantized::linear{relu}_dynamic{half}" for relu in ("", "_relu") for half in ("", "_fp16")
)
"""Dynamically quantized linear layers, by schema name."""

_PRODUCT_GRADIENT = build_matmul_gradient_rule(0, 1)
_ADDED_PRODUCT_GRADIENT = build_matmul_gradient_rule(1, 2)  # the first tensor is only added

_CONV = OperatorRecord(_count_conv, _PRODUCT_GRADIENT)
# on the meta device, torch accepts operands of different types, so they are checked here
_ONE_TYPE_CONV = OperatorRecord(_count_conv, _PRODUCT_GRADIENT, one_type=True)
_MATMUL = OperatorRecord(_count_matmul, _PRODUCT_GRADIENT, one_type=True)
_ADDED = OperatorRecord(_count_added_matmul, _ADDED_PRODUCT_GRADIENT, one_type=True)
_FUSED = OperatorRecord(_count_attention, _compute_attention_gradient)

TABLE: Mapping[str, OperatorRecord] = {
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), _ONE_TYPE_CONV),
    **dict.fromkeys(
        """
        conv1d conv2d conv3d cudnn_convolution mkldnn_convolution _slow_conv2d_forward _conv_depthwise2d
        conv_depthwise3d
        """.split(),  # noqa: SIM905
        _CONV,
    ),
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        OperatorRecord(_count_conv_transpose, _PRODUCT_GRADIENT),
    ),
    "conv_tbc": OperatorRecord(_count_sequence_conv, _PRODUCT_GRADIENT),
    "torchvision::deform_conv2d": OperatorRecord(_count_deform_conv, _compute_deform_gradient),
    **dict.fromkeys(("mm", "_sparse_mm", "bmm", "mv", "matmul", "dot", "vdot"), _MATMUL),
    # integers, 8-bit floats and packed weights have no gradient
    "_int_mm": OperatorRecord(_count_matmul, one_type=True),
    **dict.fromkeys(
        ("_scaled_mm", "_weight_int8pack_mm", "_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu"),
        OperatorRecord(_count_packed_matmul),
    ),
    # the second is transformers' fallback for a torch without the first
    **dict.fromkeys(
        ("_grouped_mm", "transformers::grouped_mm_fallback"),
        OperatorRecord(_count_grouped_matmul, _PRODUCT_GRADIENT),
    ),
    "_scaled_grouped_mm": OperatorRecord(_count_grouped_matmul),
    **dict.fromkeys(("addmm", "_sparse_addmm", "baddbmm", "addmv", "_addmm_activation"), _ADDED),
    "addbmm": OperatorRecord(_count_summed_batch, _ADDED_PRODUCT_GRADIENT),
    "linear": OperatorRecord(_count_linear, _PRODUCT_GRADIENT),
    **dict.fromkeys(DYNAMIC_LINEAR, OperatorRecord(_count_dynamic_linear)),
    "_trilinear": OperatorRecord(_count_trilinear, _compute_trilinear_gradient),
    "affine_grid_generator": OperatorRecord(_count_sampling_grid, _compute_grid_gradient),
    # torch chooses one of several kernels by device and inputs; the formula is the same for all
    "scaled_dot_product_attention": OperatorRecord(
        _count_attention, _compute_attention_gradient, has_own_formula=True
    ),
    **dict.fromkeys(
        """
        _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
        _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
        _scaled_dot_product_attention_math
        """.split(),  # noqa: SIM905
        _FUSED,
    ),
}
"""Records of operators that multiply, by name."""
