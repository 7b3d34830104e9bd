"""Cost of an ATen operator: a table from operator to rule, on the shared formulas of `formulas`.

The ATen level is where every way of writing a model in PyTorch comes together, so it is where an
nn.Module is counted. Operators that carry multiply-accumulates have a row here; pointwise operators and
reductions are recognised by the tags that torch itself gives them; what only moves data is listed. An
operator that is none of these is unknown, which is said and never taken for 0.

Those that multiply are in `rules_products`, further ones in `rules_losses` and `rules_linalg`. What an
operator returns whose output size depends on values is the subject of `data_dependent`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from explorer.engine.costs.aten.call import Rule, argument, leading, sizes
from explorer.engine.costs.aten.packed_weights import COSTS
from explorer.engine.costs.aten.rules_linalg import ALGEBRA
from explorer.engine.costs.aten.rules_losses import LOSSES
from explorer.engine.costs.aten.rules_products import PRODUCTS
from explorer.engine.operators import formulas
from explorer.engine.operators.formulas import Cost

__all__ = ["AUXILIARY", "GATHERS", "RULES", "cost"]


def _distances(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    """cdist: subtract, power and sum for every pair and coordinate; nothing is a product."""
    return formulas.elementwise("difference, power, sum", (*sizes(out), args[0].shape[-1]), 3)


def _normalisation(kind: str) -> Rule:
    per_element = formulas.ELEMENTWISE[kind][0]

    def rule(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
        return formulas.elementwise(kind.replace("_", " "), sizes(leading(out)), per_element)

    return rule


def _batch_norm(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    # with running statistics it is a scale and a shift; without them (instance norm) it has to find them
    flags = [a for a in args[5:6] if isinstance(a, bool)]
    kind = "layer_norm" if flags and flags[0] else "batch_norm"
    return _normalisation(kind)(args, kwargs, out)


def _pool(name: str) -> Rule:
    def rule(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
        kernel = argument(args, kwargs, 1, "kernel_size")
        rank = int(name[-2])
        dims = tuple(kernel) if len(kernel) == rank else tuple(kernel) * rank
        return formulas.pooling(name, sizes(leading(out)), dims)

    return rule


def _adaptive_pool(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    # windows overlap where sizes do not divide: their widths are summed, one axis at a time
    wanted = tuple(argument(args, kwargs, 1, "output_size"))
    source, target = sizes(args[0]), sizes(leading(out))
    taps = 1
    for size, cells in zip(source[-len(wanted) :], target[-len(wanted) :], strict=True):
        taps *= sum(-(-((i + 1) * size) // cells) - (i * size) // cells for i in range(cells))
    lead = target[: -len(wanted)]
    return formulas.elementwise("adaptive pooling, taps", (*lead, taps))


def _interpolation(per_element: int) -> Rule:
    def rule(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
        return formulas.elementwise("interpolation", sizes(out), per_element)

    return rule


def _region_pool(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    """roi_align: bilinear samples averaged in every cell; an adaptive sampling ratio counts as 2."""
    ratio = next((a for a in args[5:6] if isinstance(a, int) and a > 0), 2)
    return formulas.elementwise("bilinear samples and mean", (*sizes(leading(out)), ratio * ratio), 8)


def _grid_sample(linear: int) -> Rule:
    """`linear` operations per element when it interpolates linearly, none for the nearest, 35 bicubic."""

    def rule(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
        per_element = {0: linear, 1: 0, 2: 35}[argument(args, kwargs, 2, "interpolation_mode", 0)]
        return (
            formulas.elementwise("interpolation", sizes(out), per_element) if per_element else formulas.FREE
        )

    return rule


def _bags(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    """embedding_bag: every row that is looked up is added (or compared), after its weight if it has one."""
    weighted = argument(args, kwargs, 6, "per_sample_weights") is not None
    return formulas.elementwise(
        "multiply, add" if weighted else "add", (*sizes(args[1]), args[0].shape[1]), 1 + weighted
    )


def _renormalised(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    """Of embedding with max_norm: the norm of every row that is looked up, and the row scaled."""
    return formulas.elementwise("power, sum, scale", (*sizes(args[1]), args[0].shape[-1]), 3)


def _folding(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    """fold: every column is added to the image."""
    return formulas.elementwise("add", sizes(args[0]))


def _accumulated(index: int, name: str) -> Rule:
    """As many additions as elements of the argument that is added."""

    def rule(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
        source = argument(args, kwargs, index, name)
        return formulas.elementwise(
            "add", sizes(source) if isinstance(source, torch.Tensor) else sizes(args[2])
        )

    return rule


def _placed(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    """index_put: moves values, unless it adds them to what is there."""
    adds = argument(args, kwargs, 3, "accumulate", False)
    return formulas.elementwise("add", sizes(args[2])) if adds else formulas.FREE


def _free(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    return formulas.FREE


def _unary(what: str, per_element: int = 1) -> Rule:
    def rule(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
        return formulas.elementwise(what, sizes(leading(out)), per_element)

    return rule


def _reduction(what: str, per_element: int = 1) -> Rule:
    def rule(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
        return formulas.elementwise(what, sizes(args[0]), per_element)

    return rule


_MOVES = """
    _assert_async _assert_scalar _assert_tensor_metadata _cast_Float _cast_Half _chunk_cat _conj
    _conj_copy _conj_physical _dim_arange _functional_assert_async _lazy_clone _local_scalar_dense
    _neg_view _neg_view_copy _nested_tensor_from_mask _pack_padded_sequence _pad_packed_sequence
    _pin_memory _reshape_alias _reshape_alias_copy _reshape_copy _resize_output_ _sample_dirichlet
    _stack _standard_gamma _to_copy _to_dense _unique _unique2 _unsafe_index _unsafe_index_put
    _unsafe_masked_index _unsafe_view _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d alias alias_copy arange argsort as_strided as_strided_ as_strided_copy
    as_strided_scatter bernoulli bernoulli_ binomial block_diag bucketize cat cauchy_ channel_shuffle
    chunk clone complex constant_pad_nd contiguous copy copy_ detach detach_ detach_copy diag diag_embed
    diagonal diagonal_copy diagonal_scatter dropout embedding empty empty_like empty_permuted
    empty_strided equal expand expand_copy exponential exponential_ eye fill fill_ flip full full_like
    gather geometric_ im2col imag index index_copy index_copy_ index_fill index_fill_ index_select
    indices_copy int_repr is_coalesced is_pinned is_same_size is_set_to item kthvalue lift lift_fresh
    lift_fresh_copy linspace log_normal_ logspace lu_unpack masked_scatter masked_select max_unpool2d
    max_unpool3d mode multinomial narrow narrow_copy native_dropout new_empty new_empty_strided new_full
    new_ones new_zeros nonzero nonzero_static normal normal_ one_hot ones ones_like permute permute_copy
    pixel_shuffle pixel_unshuffle poisson put put_ rand rand_like randint randint_like randn randn_like
    random random_ randperm real reflection_pad1d reflection_pad2d reflection_pad3d repeat
    repeat_interleave replication_pad1d replication_pad2d replication_pad3d reshape resize resize_
    resize_as_ resolve_conj resolve_neg roll rot90 scalar_tensor scatter searchsorted select select_copy
    select_scatter set set_ slice slice_copy slice_inverse slice_scatter sort split split_copy
    split_with_sizes split_with_sizes_copy squeeze squeeze_ squeeze_copy stack sym_numel sym_size
    sym_storage_offset sym_stride t t_ t_copy take take_along_dim topk transpose transpose_
    transpose_copy tril tril_indices triu triu_indices unbind unbind_copy unfold unfold_copy uniform
    uniform_ unique_consecutive unique_dim unique_dim_consecutive unsafe_chunk unsafe_split
    unsafe_split_with_sizes unsqueeze unsqueeze_ unsqueeze_copy upsample_nearest1d upsample_nearest2d
    upsample_nearest3d values_copy view view_as_complex view_as_complex_copy view_as_real
    view_as_real_copy view_copy zero zero_ zeros zeros_like
""".split()  # noqa: SIM905

_REDUCTIONS = """
    _aminmax _cummax_helper _cummin_helper _is_all_true _is_any_true _logcumsumexp all allclose amax
    amin aminmax any argmax argmin bincount count_nonzero cummax cummin cumprod cumsum histc histogram
    isin logcumsumexp max mean median min nanmean nanmedian nansum prod segment_reduce sum trace
""".split()  # noqa: SIM905

RULES: dict[str, Rule] = {
    "aten::_cdist_forward": _distances,
    "aten::_euclidean_dist": _distances,
    "aten::_pdist_forward": _distances,
    "aten::native_batch_norm": _batch_norm,
    "aten::cudnn_batch_norm": _batch_norm,
    "aten::_native_batch_norm_legit": _normalisation("batch_norm"),
    "aten::_native_batch_norm_legit_no_training": _normalisation("batch_norm"),
    "aten::_batch_norm_no_update": _normalisation("batch_norm"),
    "aten::native_layer_norm": _normalisation("layer_norm"),
    "aten::native_group_norm": _normalisation("layer_norm"),
    "aten::_fused_rms_norm": _normalisation("rms_norm"),
    "aten::rms_norm": _normalisation("rms_norm"),
    "aten::_softmax": _normalisation("softmax"),
    "aten::_safe_softmax": _normalisation("softmax"),
    "aten::_masked_softmax": _normalisation("softmax"),
    "aten::_log_softmax": _normalisation("log_softmax"),
    "aten::logsumexp": _reduction("max, subtract, exp, sum", 4),
    "aten::linalg_vector_norm": _reduction("power, sum", 2),
    "aten::norm": _reduction("power, sum", 2),
    "aten::var": _reduction("mean, subtract, square, sum", 4),
    "aten::std": _reduction("mean, subtract, square, sum", 4),
    "aten::var_mean": _reduction("mean, subtract, square, sum", 4),
    "aten::std_mean": _reduction("mean, subtract, square, sum", 4),
    "aten::max_pool2d_with_indices": _pool("max_pool2d"),
    "aten::max_pool3d_with_indices": _pool("max_pool3d"),
    "aten::max_pool2d": _pool("max_pool2d"),
    "aten::avg_pool2d": _pool("avg_pool2d"),
    "aten::avg_pool3d": _pool("avg_pool3d"),
    "aten::_adaptive_avg_pool2d": _adaptive_pool,
    "aten::_adaptive_avg_pool3d": _adaptive_pool,
    "aten::fractional_max_pool2d": _pool("fractional_max_pool2d"),
    "aten::fractional_max_pool3d": _pool("fractional_max_pool3d"),
    "aten::adaptive_max_pool2d": _adaptive_pool,
    "aten::adaptive_max_pool3d": _adaptive_pool,
    "aten::upsample_linear1d": _interpolation(3),
    "aten::upsample_bilinear2d": _interpolation(7),
    "aten::_upsample_bilinear2d_aa": _interpolation(7),
    "aten::upsample_trilinear3d": _interpolation(15),
    "aten::upsample_bicubic2d": _interpolation(35),
    "aten::_upsample_bicubic2d_aa": _interpolation(35),
    "aten::grid_sampler_2d": _grid_sample(7),
    "aten::grid_sampler_3d": _grid_sample(15),
    "torchvision::roi_align": _region_pool,
    "torchvision::nms": _free,
    "aten::glu": _unary("gate, multiply", 2),
    "aten::lerp": _unary("subtract, multiply, add", 3),
    "aten::addcmul": _unary("multiply, add", 2),
    "aten::addcdiv": _unary("divide, add", 2),
    "aten::addr": _unary("multiply, add", 2),
    "aten::_prelu_kernel": _unary("prelu"),
    "aten::prelu": _unary("prelu"),
    "aten::rrelu_with_noise": _unary("rrelu"),
    "aten::log_sigmoid_forward": _unary("log_sigmoid"),
    "aten::hardswish": _unary("hardswish"),
    "aten::hardswish_": _unary("hardswish"),
    "aten::masked_fill_": _unary("masked_fill"),
    "aten::polar": _unary("polar", 2),
    "aten::outer": _unary("multiply"),
    "aten::linalg_cross": _unary("multiply, subtract", 3),
    "aten::scatter_add": _accumulated(3, "src"),
    "aten::scatter_reduce": _accumulated(3, "src"),
    "aten::index_add": _accumulated(3, "source"),
    "aten::index_reduce": _accumulated(3, "source"),
    "aten::index_put": _placed,
    "aten::_index_put_impl": _placed,
    "aten::col2im": _folding,
    "aten::unfold_backward": _folding,
    "aten::_embedding_bag": _bags,
    "aten::embedding_renorm_": _renormalised,
    "aten::_embedding_bag_forward_only": _bags,
    "aten::_weight_norm_interface": _reduction("square, sum, scale", 3),
    "aten::renorm": _reduction("power, sum, scale", 3),
    "aten::threshold": _unary("threshold"),
    "aten::floor_divide": _unary("floor_divide"),
    "aten::abs": _unary("abs"),
    "aten::quantize_per_tensor": _unary("quantize", formulas.ELEMENTWISE["quantize"][0]),
    "aten::quantize_per_tensor_dynamic": _unary(
        "min, max, quantize", 2 + formulas.ELEMENTWISE["quantize"][0]
    ),
    "aten::quantize_per_channel": _unary("quantize", formulas.ELEMENTWISE["quantize"][0]),
    "aten::dequantize": _unary("dequantize", formulas.ELEMENTWISE["dequantize"][0]),
    "aten::fake_quantize_per_tensor_affine_cachemask": _unary("quantize, dequantize", 5),
    "aten::fake_quantize_per_channel_affine_cachemask": _unary("quantize, dequantize", 5),
    "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": _unary("quantize, dequantize", 5),
    **PRODUCTS,
    **LOSSES,
    **COSTS,
    **ALGEBRA,
    **{f"aten::{name}": _reduction(name) for name in _REDUCTIONS},
    **{f"aten::{name}": _free for name in _MOVES},
}
"""Cost of an operator by its schema name. A row added here is all that a new operator needs."""

GATHERS = frozenset(
    f"aten::{name}"
    for name in (
        "embedding",
        "index",
        "index_select",
        "gather",
        "_unsafe_index",
        "take",
        "_embedding_bag",
        "_embedding_bag_forward_only",
    )
)
"""Operators that read rows of a table: as many bytes as they return, not the whole table."""

AUXILIARY = frozenset(
    f"aten::{name}"
    for name in (
        "native_batch_norm",
        "cudnn_batch_norm",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_no_training",
        "native_layer_norm",
        "native_group_norm",
        "_fused_rms_norm",
        "max_pool2d_with_indices",
        "max_pool3d_with_indices",
        "_embedding_bag",
        "_embedding_bag_forward_only",
        "_weight_norm_interface",
        "nll_loss_forward",
        "nll_loss2d_forward",
        "multilabel_margin_loss_forward",
        "fake_quantize_per_tensor_affine_cachemask",
        "fake_quantize_per_channel_affine_cachemask",
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    )
)
"""Operators whose results after the first exist for the backward pass only and are no activations."""


def cost(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    """What one call of an ATen operator costs.

    Args:
        func: The operator (an OpOverload).
        args: Its arguments, tensors on any device.
        kwargs: Its keyword arguments.
        out: What it returned.

    Returns:
        Its cost; unknown, with the operator named, when there is no rule for it.
    """
    name = func._schema.name
    # max and min are reductions with one operand and pointwise with two
    if _is_pointwise(func) and name != "aten::clone":
        rule = RULES.get(name) or RULES.get(name.removesuffix("_"))
        if rule is None or name in ("aten::max", "aten::min"):
            short = name.partition("::")[2].strip("_")
            extra = short in ("add", "sub", "rsub") and kwargs.get("alpha", 1) != 1
            return formulas.elementwise(short, sizes(leading(out)), 1 + extra)
        return rule(args, kwargs, out)
    rule = RULES.get(name)
    if rule is None and torch.Tag.reduction in func.tags:
        rule = _reduction(name.partition("::")[2])
    if rule is None and name.endswith("_"):
        rule = RULES.get(name[:-1])
    if rule is None:
        return formulas.unknown(f"no rule for the operator {name}")
    return rule(args, kwargs, out)


def _is_pointwise(func: Any) -> bool:
    """Whether torch says so, of the operator or of the one that does the same in place of its argument."""
    if torch.Tag.pointwise in func.tags:
        return True
    name = func._schema.name.partition("::")[2]
    if not name.endswith("_") or func.namespace != "aten":
        return False
    twin = getattr(getattr(torch.ops.aten, name[:-1], None), func._overloadname, None)
    return twin is not None and torch.Tag.pointwise in twin.tags
