"""Convolutions, matrix products, attention: ATen operators that multiply and accumulate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from explorer.engine.costs.aten.call import AtenCall, OperatorRecord, is_complex, of_pair
from explorer.engine.operators import cost_formulas, gradients
from explorer.engine.operators.cost_formulas import Cost
from explorer.engine.operators.gradients import Gradient, Want, pair

Wanted = Callable[[Any], Want]


def _conv(call: AtenCall) -> Cost:
    bias = call.has("bias")
    if call.get("transposed"):
        return cost_formulas.conv_transpose(call.shape(0), call.shape(1), call.out(), bias=bias)
    return cost_formulas.conv(call.out(), call.shape(1), bias=bias)


def _conv_transpose(call: AtenCall) -> Cost:
    return cost_formulas.conv_transpose(call.shape(0), call.shape(1), call.out(), bias=call.has("bias"))


def _sequence_conv(call: AtenCall) -> Cost:
    """conv_tbc: time, batch and channels in that order, weight (kernel, Cin, Cout)."""
    steps, batch, features = call.out()
    kernel, channels, _ = call.shape(1)
    return cost_formulas.conv((batch, features, steps), (features, channels, kernel), bias=True)


def _deform_conv(call: AtenCall) -> Cost:
    # the bilinear sampling of every tap takes 7 operations, as an interpolation does
    weight, out, source = call.shape(1), call.out(), call.shape(0)
    taps = (source[0], source[1], *out[2:], *weight[2:])
    return cost_formulas.adding(cost_formulas.conv(out, weight, bias=True), "bilinear samples", taps, 7)


def _deform_gradient(call: AtenCall, macs: int, want: Wanted) -> Gradient:
    """The samples of the input are what is multiplied: offsets and mask want their gradient too."""
    source, weight, *sampling = call.tensors()[:4]
    sampled: Want = "input" if any(map(want, (source, *sampling))) else ""
    return pair(macs, sampled, want(weight))


def _four_real(cost: Cost, call: AtenCall, *places: int) -> Cost:
    """`cost` of a product whose operands may be complex, in real MACs: four each where both are, two where
    one is.
    """
    both = math.prod(2 if is_complex(call.tensors()[at]) else 1 for at in places)
    return cost if both == 1 else cost_formulas.times(cost, both, "real products")


def _matmul(call: AtenCall) -> Cost:
    return _four_real(cost_formulas.matmul(call.shape(0), call.shape(1)), call, 0, 1)


def _added_matmul(call: AtenCall) -> Cost:
    """A product, and the first argument added; factors multiply unless they are 1, and nothing if it is 0."""
    result = _four_real(cost_formulas.matmul(call.shape(1), call.shape(2)), call, 1, 2)
    alpha, beta = call.get("alpha", 1), call.get("beta", 1)
    if alpha != 1:
        result = cost_formulas.adding(result, "alpha", call.out())
    if beta not in (0, 1):
        result = cost_formulas.adding(result, "beta", call.out())
    return cost_formulas.adding(result, "bias", call.out()) if beta != 0 else result


def _summed_batch(call: AtenCall) -> Cost:
    """addbmm: the products of all batches, summed into one."""
    batch, rows, depth = call.sizes(1)
    result = cost_formulas.matmul((rows, batch * depth), (batch * depth, call.shape(2)[2]))
    return cost_formulas.adding(_four_real(result, call, 1, 2), "bias", call.out())


def _packed_matmul(call: AtenCall) -> Cost:
    """A product with a weight of few bits, whose own shape says nothing: (rows, in) by (in, out)."""
    source = call.shape()
    return cost_formulas.matmul(source, (source[-1], call.out()[-1]))


def _dynamic_linear(call: AtenCall) -> Cost:
    """As its float form, and the input quantized on the way in: min, max, divide, round, add."""
    source = call.shape()
    cost = cost_formulas.adding(_packed_matmul(call), "quantize", source, 5)
    return cost_formulas.adding(cost_formulas.adding(cost, "rescale", call.out()), "bias", call.out())


def _grouped_matmul(call: AtenCall) -> Cost:
    """Products of groups that share one dimension: every row (or column, or depth) belongs to one group."""
    first, second = call.shape(0), call.shape(1)
    if len(first) == len(second) == 3:
        return cost_formulas.matmul(first, second)
    return cost_formulas.matmul(first[-2:], second[-2:])


def _linear(call: AtenCall) -> Cost:
    return cost_formulas.linear(call.shape(0), call.shape(1)[0], bias=call.has("bias"))


def _sampling_grid(call: AtenCall) -> Cost:
    """affine_grid: every point, with a 1 behind its coordinates, by the matrix of its image."""
    batch, coordinates, homogeneous = call.sizes()
    points = math.prod(call.out_sizes()) // (batch * coordinates) if batch else 0
    return cost_formulas.matmul((batch, points, homogeneous), (batch, homogeneous, coordinates))


def _grid_gradient(call: AtenCall, macs: int, want: Wanted) -> Gradient:
    """The points of the image, which are given, times its matrix."""
    return pair(macs, want(call.tensors()[0]), "")


def _trilinear(call: AtenCall) -> Cost:
    """nn.Bilinear, x1 W x2 for every output feature: first x1 W, then each row of it with x2."""
    first, second, features = call.sizes(0)[-1], call.sizes(2)[-1], call.out_sizes()[-1]
    batch = math.prod(call.out_sizes()) // features if features else 0
    first_product = cost_formulas.matmul((batch, first), (first, features * second))
    second_product = cost_formulas.matmul((batch, features, second), (batch, second, 1))
    return cost_formulas.total([first_product, second_product])


def _trilinear_gradient(call: AtenCall, macs: int, want: Wanted) -> Gradient:
    first, weight, second = map(want, call.tensors()[:3])
    right = math.prod(call.out_sizes()) * call.sizes(2)[-1]
    inner: Want = "input" if first or weight else ""
    return pair(macs - right, first, weight) + pair(right, inner, second)


def _attention(call: AtenCall) -> Cost:
    query, key, value = (call.shape(name) for name in ("query", "key", "value"))
    heads = query[-3] if len(query) > 2 else 1
    # the tensors may be broadcast against each other; the output has the batch that results
    return cost_formulas.attention(
        call.out()[:-3],
        heads,
        query[-2],
        key[-2],
        query[-1],
        value[-1],
        causal=bool(call.get("is_causal")),
        mask=call.has("attn_mask") or call.has("attn_bias"),
    )


def _attention_gradient(call: AtenCall, macs: int, want: Wanted) -> Gradient:
    query, key, value = call.tensors()[:3]
    wide = int(query.shape[-1])
    scores = macs * wide // (wide + int(value.shape[-1]))
    return gradients.attention(scores, macs - scores, want(query), want(key), want(value))


DYNAMIC_LINEAR = tuple(
    f"quantized::linear{relu}_dynamic{half}" for relu in ("", "_relu") for half in ("", "_fp16")
)
"""Dynamically quantized linear layers."""

_PAIR, _ADDED_PAIR = of_pair(0, 1), of_pair(1, 2)

_CONV = OperatorRecord(_conv, _PAIR)
_ONE_TYPE_CONV = OperatorRecord(_conv, _PAIR, one_type=True)
_MATMUL = OperatorRecord(_matmul, _PAIR, one_type=True)
_ADDED = OperatorRecord(_added_matmul, _ADDED_PAIR, one_type=True)
_FUSED = OperatorRecord(_attention, _attention_gradient)

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
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), OperatorRecord(_conv_transpose, _PAIR)
    ),
    "conv_tbc": OperatorRecord(_sequence_conv, _PAIR),
    "torchvision::deform_conv2d": OperatorRecord(_deform_conv, _deform_gradient),
    **dict.fromkeys(("mm", "_sparse_mm", "bmm", "mv", "matmul", "dot", "vdot"), _MATMUL),
    # integers and 8-bit floats have no gradient, nor has a packed weight
    "_int_mm": OperatorRecord(_matmul, one_type=True),
    **dict.fromkeys(
        ("_scaled_mm", "_weight_int8pack_mm", "_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu"),
        OperatorRecord(_packed_matmul),
    ),
    # the second is transformers' own, for a torch without the first
    **dict.fromkeys(
        ("_grouped_mm", "transformers::grouped_mm_fallback"), OperatorRecord(_grouped_matmul, _PAIR)
    ),
    "_scaled_grouped_mm": OperatorRecord(_grouped_matmul),
    **dict.fromkeys(("addmm", "_sparse_addmm", "baddbmm", "addmv", "_addmm_activation"), _ADDED),
    "addbmm": OperatorRecord(_summed_batch, _ADDED_PAIR),
    "linear": OperatorRecord(_linear, _PAIR),
    **dict.fromkeys(DYNAMIC_LINEAR, OperatorRecord(_dynamic_linear)),
    "_trilinear": OperatorRecord(_trilinear, _trilinear_gradient),
    "affine_grid_generator": OperatorRecord(_sampling_grid, _grid_gradient),
    "scaled_dot_product_attention": OperatorRecord(_attention, _attention_gradient, whole=True),
    **dict.fromkeys(
        """
        _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
        _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
        _scaled_dot_product_attention_math
        """.split(),  # noqa: SIM905
        _FUSED,
    ),
}
"""Operators that multiply."""
