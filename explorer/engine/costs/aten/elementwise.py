"""Counts ATen operators without products: pointwise, reductions, normalizations, windows, losses."""

from __future__ import annotations

import math
from collections.abc import Mapping

from explorer.engine.costs.aten.call import (
    AtenCall,
    OperatorRecord,
    Rule,
    build_input_rule,
    build_output_rule,
)
from explorer.engine.operators import cost_formulas
from explorer.engine.operators.cost_formulas import Cost


def _count_pointwise(call: AtenCall) -> Cost:
    short = call.name.strip("_")
    has_factor = short in ("add", "sub", "rsub") and call.get("alpha", 1) != 1
    return cost_formulas.elementwise(short, call.result_shape(), 1 + has_factor)


def _count_reduction(call: AtenCall) -> Cost:
    return cost_formulas.elementwise(call.name.removesuffix("_"), call.shape())


def _count_extreme(call: AtenCall) -> Cost:
    """Counts max and min: a reduction of one tensor, pointwise on two tensors."""
    return (_count_pointwise if call.has("other") else _count_reduction)(call)


def _count_distances(call: AtenCall) -> Cost:
    """Counts cdist: a difference, power and sum for every pair and coordinate; no MACs."""
    return cost_formulas.elementwise("difference, power, sum", (*call.result_shape(), call.shape()[-1]), 3)


def _make_normalization_rule(kind: str) -> Rule:
    return build_output_rule(kind.replace("_", " "), cost_formulas.ELEMENTWISE[kind][0])


def _count_batch_norm(call: AtenCall) -> Cost:
    # a scale and a shift with running statistics; else (instance norm) the statistics are computed as well
    return _make_normalization_rule("layer_norm" if call.get("training") is True else "batch_norm")(call)


def _build_pool_rule(name: str) -> Rule:
    rank = int(name[-2])

    def rule(call: AtenCall) -> Cost:
        kernel = call.get("kernel_size")
        return cost_formulas.pooling(
            name, call.result_shape(), tuple(kernel) if len(kernel) == rank else rank * (kernel[0],)
        )

    return rule


def _count_adaptive_pool(call: AtenCall) -> Cost:
    """Counts adaptive pooling. Windows may overlap: an axis reads in + out - gcd(in, out) elements."""
    source, target = call.sizes(), call.result_sizes()
    rank = len(call.get("output_size"))
    taps = 1
    for size, cells in zip(source[-rank:], target[-rank:], strict=True):
        taps *= size + cells - math.gcd(size, cells)
    return cost_formulas.elementwise("adaptive pooling, taps", (*target[:-rank], taps))


def _count_region_pool(call: AtenCall) -> Cost:
    """Counts roi_align: bilinear samples averaged in every cell; an adaptive sampling ratio counts as 2."""
    ratio = call.get("sampling_ratio")
    ratio = ratio if isinstance(ratio, int) and ratio > 0 else 2
    return cost_formulas.elementwise("bilinear samples and mean", (*call.result_shape(), ratio * ratio), 8)


def _build_grid_sample_rule(linear: int) -> Rule:
    """Returns a rule with `linear` operations per element for linear, 0 for nearest, 35 for bicubic.

    Bicubic takes 5 cubic interpolations of 4 products and 3 sums.
    """

    def rule(call: AtenCall) -> Cost:
        per_element = {0: linear, 1: 0, 2: 35}[call.get("interpolation_mode", 0)]
        if per_element:
            return cost_formulas.elementwise("interpolation", call.result_shape(), per_element)
        return cost_formulas.FREE

    return rule


def _count_bags(call: AtenCall) -> Cost:
    """Counts embedding_bag: each row that is looked up is scaled by its weight and added (or compared)."""
    weighted = call.has("per_sample_weights")
    label = "multiply, add" if weighted else "add"
    return cost_formulas.elementwise(label, (*call.shape("indices"), call.shape("weight")[1]), 1 + weighted)


def _count_embedding_renorm(call: AtenCall) -> Cost:
    """Counts embedding_renorm_: the norm of each row that is looked up, and the scaling of the row."""
    return cost_formulas.elementwise("power, sum, scale", (*call.shape("indices"), call.shape()[-1]), 3)


def _make_loss_rule(label: str, per_element: int) -> Rule:
    """Returns a rule with `per_element` operations per element, plus their sum if the loss is reduced."""

    def rule(call: AtenCall) -> Cost:
        # without a reduction the result is as large as the input
        reduced = call.result_shape() != call.shape()
        return cost_formulas.elementwise(
            f"{label}{', sum' if reduced else ''}", call.shape(), per_element + reduced
        )

    return rule


def _count_likelihood(call: AtenCall) -> Cost:
    """Counts nll_loss: one element of each row is selected, negated and summed."""
    weighted = call.has("weight")
    label = "negate, weigh, sum" if weighted else "negate, sum"
    return cost_formulas.elementwise(label, call.shape("target"), 2 + weighted)


def _share_record(rule: Rule, words: str, *, has_one_activation: bool = False) -> dict[str, OperatorRecord]:
    """Returns one record for all operators in `words`."""
    return dict.fromkeys(words.split(), OperatorRecord(rule, has_one_activation=has_one_activation))


POINTWISE, REDUCTION = OperatorRecord(_count_pointwise), OperatorRecord(_count_reduction)
"""Records with one operation per element: of the result, and of the input. Also for operators that torch
tags."""

_QUANTIZE = cost_formulas.ELEMENTWISE["quantize"][0]
_VARIANCE = "mean, subtract, square, sum"
_LINEAR = {"upsample_linear1d": 3, "upsample_bilinear2d": 7, "upsample_trilinear3d": 15}

_WINDOWS = {"bartlett": 2, "hann": 4, "hamming": 4, "blackman": 9, "kaiser": 7}
"""Operations per element of each window function; for `hann`: scale, cosine, scale, shift."""

TABLE: Mapping[str, OperatorRecord] = {
    **{
        f"{name}_window": OperatorRecord(build_output_rule(f"{name} window", n))
        for name, n in _WINDOWS.items()
    },
    **dict.fromkeys(("fft_fftfreq", "fft_rfftfreq"), OperatorRecord(build_output_rule("frequencies"))),
    **dict.fromkeys(
        """
        abs acos acosh add angle asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not
        bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min clip copysign cos cosh
        div elu eq erf erfc erfinv exp exp2 expm1 floor floor_divide fmax fmin fmod frac ge gelu gt hardshrink
        hardsigmoid hardswish hardtanh heaviside hypot isfinite isinf isnan le leaky_relu lgamma log log10
        log1p log2 log_sigmoid logaddexp logical_and logical_not logical_or logical_xor lt masked_fill
        masked_fill_ maximum minimum mish
        mul nan_to_num ne neg pow prelu reciprocal relu relu6 remainder round rsqrt rsub selu sgn sigmoid sign
        silu sin sinh softplus softshrink sqrt square sub tan tanh threshold true_divide trunc where xlogy
        deg2rad digamma frexp gcd i0 igamma igammac isneginf isposinf lcm ldexp logaddexp2 logit mvlgamma
        nextafter polygamma rad2deg signbit sinc special_airy_ai special_bessel_j0 special_bessel_j1
        special_bessel_y0 special_bessel_y1 special_entr special_erfcx special_i0e special_i1 special_i1e
        special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0
        special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0
        special_scaled_modified_bessel_k1 special_spherical_bessel_j0 special_xlog1py special_zeta
        """.split(),  # noqa: SIM905
        POINTWISE,
    ),
    **_share_record(
        _count_reduction,
        """
        _aminmax _cummax_helper _cummin_helper _is_all_true _is_any_true _logcumsumexp all allclose amax amin
        aminmax any argmax argmin bincount count_nonzero cummax cummin cumprod cumsum histc histogram isin
        logcumsumexp mean median nanmean nanmedian nansum prod segment_reduce sum trace
        """,
    ),
    **_share_record(_count_extreme, "max min"),
    **_share_record(build_input_rule(_VARIANCE, 4), "var std var_mean std_mean"),
    **_share_record(build_input_rule("power, sum", 2), "linalg_vector_norm norm"),
    "logsumexp": OperatorRecord(build_input_rule("max, subtract, exp, sum", 4)),
    "renorm": OperatorRecord(build_input_rule("power, sum, scale", 3)),
    "_weight_norm_interface": OperatorRecord(
        build_input_rule("square, sum, scale", 3), has_one_activation=True
    ),
    **_share_record(_count_distances, "_cdist_forward _euclidean_dist _pdist_forward"),
    # -- normalizations
    **_share_record(_count_batch_norm, "batch_norm _batch_norm_no_update"),
    **_share_record(
        _count_batch_norm,
        """
        native_batch_norm cudnn_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training
        """,
        has_one_activation=True,
    ),
    **_share_record(_make_normalization_rule("layer_norm"), "layer_norm group_norm"),
    **_share_record(
        _make_normalization_rule("layer_norm"), "native_layer_norm native_group_norm", has_one_activation=True
    ),
    "rms_norm": OperatorRecord(_make_normalization_rule("rms_norm")),
    "_fused_rms_norm": OperatorRecord(_make_normalization_rule("rms_norm"), has_one_activation=True),
    **_share_record(_make_normalization_rule("softmax"), "softmax _masked_softmax _softmax _safe_softmax"),
    **_share_record(_make_normalization_rule("log_softmax"), "log_softmax _log_softmax"),
    # -- windows
    **{
        name: OperatorRecord(_build_pool_rule(name))
        for name in str.split(
            "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d fractional_max_pool2d"
            " fractional_max_pool3d"
        )
    },
    "max_pool2d_with_indices": OperatorRecord(_build_pool_rule("max_pool2d"), has_one_activation=True),
    "max_pool3d_with_indices": OperatorRecord(_build_pool_rule("max_pool3d"), has_one_activation=True),
    **_share_record(
        _count_adaptive_pool,
        """
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d
        adaptive_max_pool2d adaptive_max_pool3d
        """,
    ),
    **{name: OperatorRecord(build_output_rule("interpolation", count)) for name, count in _LINEAR.items()},
    **_share_record(build_output_rule("interpolation", 7), "_upsample_bilinear2d_aa"),
    **_share_record(build_output_rule("interpolation", 35), "upsample_bicubic2d _upsample_bicubic2d_aa"),
    "grid_sampler_2d": OperatorRecord(_build_grid_sample_rule(7)),
    "grid_sampler_3d": OperatorRecord(_build_grid_sample_rule(15)),
    "torchvision::roi_align": OperatorRecord(_count_region_pool),
    **_share_record(build_input_rule("add"), "col2im unfold_backward"),
    **dict.fromkeys(
        ("_embedding_bag", "_embedding_bag_forward_only"),
        OperatorRecord(_count_bags, gathers=True, has_one_activation=True),
    ),
    "embedding_renorm_": OperatorRecord(_count_embedding_renorm),
    # -- several operations on each element
    "glu": OperatorRecord(build_output_rule("gate, multiply", 2)),
    "lerp": OperatorRecord(build_output_rule("subtract, multiply, add", 3)),
    **_share_record(build_output_rule("multiply, add", 2), "addcmul addr"),
    "addcdiv": OperatorRecord(build_output_rule("divide, add", 2)),
    "_prelu_kernel": OperatorRecord(build_output_rule("prelu")),
    "rrelu_with_noise": OperatorRecord(build_output_rule("rrelu")),
    "log_sigmoid_forward": OperatorRecord(build_output_rule("log_sigmoid")),
    "polar": OperatorRecord(build_output_rule("polar", 2)),
    "outer": OperatorRecord(build_output_rule("multiply")),
    "linalg_cross": OperatorRecord(build_output_rule("multiply, subtract", 3)),
    **_share_record(build_output_rule("quantize", _QUANTIZE), "quantize_per_tensor quantize_per_channel"),
    "quantize_per_tensor_dynamic": OperatorRecord(build_output_rule("min, max, quantize", 2 + _QUANTIZE)),
    "dequantize": OperatorRecord(build_output_rule("dequantize", cost_formulas.ELEMENTWISE["dequantize"][0])),
    # programs that torch's quantization of exported programs writes
    **{
        f"quantized_decomposed::{name}{per}": OperatorRecord(rule)
        for name, rule in (
            ("quantize", build_output_rule("quantize", _QUANTIZE)),
            ("dequantize", build_output_rule("dequantize", cost_formulas.ELEMENTWISE["dequantize"][0])),
        )
        for per in ("_per_tensor", "_per_channel", "_per_channel_group", "_per_token")
    },
    "quantized_decomposed::fake_quant_per_channel": OperatorRecord(
        build_output_rule("quantize, dequantize", 5)
    ),
    **dict.fromkeys(
        [
            *(f"quantized_decomposed::choose_qparams{suffix}" for suffix in ("", "_symmetric", "_per_token")),
            "quantized_decomposed::choose_qparams_per_token_asymmetric",
        ],
        OperatorRecord(build_input_rule("min, max", 2)),
    ),
    "quantized_decomposed::convert_element_type": OperatorRecord(),
    **_share_record(
        build_output_rule("quantize, dequantize", 5),
        """
        fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask
        _fake_quantize_per_tensor_affine_cachemask_tensor_qparams
        """,
        has_one_activation=True,
    ),
    # -- losses
    "mse_loss": OperatorRecord(_make_loss_rule("subtract, square", 2)),
    **_share_record(
        _make_loss_rule("subtract, absolute, compare, square, scale", 5), "smooth_l1_loss huber_loss"
    ),
    "binary_cross_entropy": OperatorRecord(_make_loss_rule("2 log, 2 subtract, 2 multiply, add, negate", 8)),
    "binary_cross_entropy_with_logits": OperatorRecord(
        _make_loss_rule("subtract, multiply, log sigmoid, subtract", 4)
    ),
    "soft_margin_loss": OperatorRecord(_make_loss_rule("negate, multiply, exp, add, log", 5)),
    "multi_margin_loss": OperatorRecord(_make_loss_rule("subtract, add, compare", 3)),
    "multilabel_margin_loss_forward": OperatorRecord(
        _make_loss_rule("subtract, subtract, compare", 3), has_one_activation=True
    ),
    **_share_record(_count_likelihood, "nll_loss_forward nll_loss2d_forward", has_one_activation=True),
    "dist": OperatorRecord(_make_loss_rule("subtract, power", 2)),
}
"""Records of elementwise operators, by name."""
