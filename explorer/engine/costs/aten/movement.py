"""Records of ATen operators that move, create or describe data; most have no cost."""

from __future__ import annotations

from collections.abc import Mapping

from explorer.engine.costs.aten.call import AtenCall, OperatorRecord, Rule
from explorer.engine.operators import cost_formulas
from explorer.engine.operators.cost_formulas import FREE, Cost


def _build_accumulation_rule(name: str) -> Rule:
    """Returns a rule with one addition per element of the added tensor."""
    return lambda call: cost_formulas.elementwise("add", call.shape(name if call.tensors(name) else "index"))


def _count_index_put(call: AtenCall) -> Cost:
    """Counts index_put: free if it replaces values, an addition for each value if it accumulates."""
    return cost_formulas.elementwise("add", call.shape("values")) if call.get("accumulate") else FREE


TABLE: Mapping[str, OperatorRecord] = {
    **dict.fromkeys(
        str.split("""
            _assert_async _assert_scalar _assert_tensor_metadata _cast_Float _cast_Half _chunk_cat _conj
            _conj_copy _conj_physical _dim_arange _functional_assert_async _lazy_clone _local_scalar_dense
            _neg_view _neg_view_copy _nested_tensor_from_mask _pack_padded_sequence _pad_packed_sequence
            _pin_memory _reshape_alias_copy _resize_output_ _sample_dirichlet _stack _standard_gamma _to_dense
            _unique _unique2 _unsafe_index_put _unsafe_masked_index _upsample_nearest_exact1d
            _upsample_nearest_exact2d _upsample_nearest_exact3d alias_copy argsort as_strided as_strided_
            as_strided_copy as_strided_scatter bernoulli bernoulli_ binomial block_diag broadcast_to bucketize
            cauchy_ channel_shuffle chunk complex copy detach detach_ detach_copy diag diag_embed
            diagonal_copy diagonal_scatter dropout empty_permuted empty_strided equal expand_as exponential
            exponential_ feature_dropout flatten flip geometric_ hstack im2col imag index_copy index_copy_
            index_fill index_fill_ indices_copy int_repr is_coalesced is_pinned is_same_size is_set_to item
            kthvalue log_normal_ logspace lu_unpack masked_scatter masked_select max_unpool2d max_unpool3d
            mode movedim multinomial narrow narrow_copy new_empty_strided nonzero nonzero_static normal
            normal_ numel numpy_T pad pixel_shuffle pixel_unshuffle poisson put put_ rand rand_like randint
            randint_like randn randn_like random random_ randperm real reflection_pad1d reflection_pad2d
            reflection_pad3d replication_pad1d replication_pad2d replication_pad3d resize
            resolve_conj resolve_neg roll rot90 scatter searchsorted select_scatter set
            slice_inverse slice_scatter sort split_with_sizes_copy squeeze_ swapaxes sym_numel sym_size
            sym_storage_offset sym_stride t_ t_copy take_along_dim to topk transpose_ tril_indices
            triu_indices type_as unflatten unfold unfold_copy uniform uniform_ unique_consecutive
            unique_dim unique_dim_consecutive unsqueeze_ upsample_nearest1d upsample_nearest2d
            upsample_nearest3d values_copy view_as view_as_complex_copy view_as_real_copy vstack zero
            _reshape_alias _reshape_copy _unsafe_view alias arange cat constant_pad_nd contiguous diagonal
            _efficientzerotensor _jagged_to_padded_dense_forward cauchy conj_physical geometric log_normal
            range
            empty empty_like expand expand_copy eye fill fill_ full full_like lift lift_fresh lift_fresh_copy
            linspace new_empty new_full new_ones new_zeros one_hot ones ones_like permute permute_copy repeat
            repeat_interleave reshape scalar_tensor select select_copy slice slice_copy split split_copy
            split_with_sizes squeeze squeeze_copy stack t transpose transpose_copy unbind unbind_copy
            unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze unsqueeze_copy view view_as_complex
            view_as_real view_copy zero_ zeros zeros_like
            tril tril_ triu triu_ _to_copy clone copy_ native_dropout
            torchvision::nms
        """),
        OperatorRecord(),
    ),
    **dict.fromkeys(
        str.split("_unsafe_index embedding gather index index_select take"), OperatorRecord(gathers=True)
    ),
    **dict.fromkeys(("resize_", "resize_as_", "set_"), OperatorRecord(replaces_storage=True)),
    **dict.fromkeys(("scatter_add", "scatter_reduce"), OperatorRecord(_build_accumulation_rule("src"))),
    **dict.fromkeys(("index_add", "index_reduce"), OperatorRecord(_build_accumulation_rule("source"))),
    **dict.fromkeys(("index_put", "_index_put_impl"), OperatorRecord(_count_index_put)),
}
"""Records of operators that move data, some of which add it to existing values."""
