"""What operators do along the positions of a text: nothing, attention, or something else.

A decode step can be derived from a pass over a whole text only where every position is worked on by
itself, except in attention that does not look ahead. Operators that are not listed here are taken to mix
positions: a list of what is safe forgets nothing that is not.
"""

from __future__ import annotations

from collections.abc import Mapping

from explorer.engine.operators.operator import Role
from explorer.engine.operators.registry import BY_NAME

__all__ = ["ADDED_FIRST", "FACTORS", "HIDING", "LOOKUPS", "ROLES", "Role"]


def _listed(role: Role, words: str, prefix: str = "") -> dict[str, Role]:
    return {f"{prefix}{word}": role for word in words.split()}


ROLES: Mapping[str, Role] = {
    **{op: operator.position for op, operator in BY_NAME.items() if operator.position is not None},
    **_listed(
        "each",
        "clone copy_ _to_copy native_dropout masked_fill_ lerp addcmul addcdiv _prelu_kernel hardswish",
        "aten::",
    ),
    **_listed(
        "move",
        """
        _reshape_alias _reshape_copy _unsafe_view alias arange cat constant_pad_nd contiguous cumsum
        diagonal embedding empty empty_like expand expand_copy eye fill fill_ full full_like gather index
        index_select lift lift_fresh lift_fresh_copy linspace new_empty new_full new_ones new_zeros one_hot
        ones ones_like permute permute_copy repeat repeat_interleave reshape scalar_tensor select
        select_copy slice slice_copy split split_copy split_with_sizes squeeze squeeze_copy stack t
        transpose transpose_copy tril tril_ triu triu_ unbind unbind_copy unsafe_chunk unsafe_split
        unsafe_split_with_sizes unsqueeze unsqueeze_copy view view_as_complex view_as_real view_copy zero_
        zeros zeros_like
        """,
        "aten::",
    ),
    **_listed("normalise", "native_layer_norm _fused_rms_norm rms_norm", "aten::"),
    **_listed("softmax", "_softmax _safe_softmax _log_softmax", "aten::"),
    **_listed(
        "reduce",
        """
        all amax amin any argmax argmin linalg_vector_norm max mean min norm prod std std_mean sum var
        var_mean
        """,
        "aten::",
    ),
    **_listed("product", "_int_mm _scaled_mm addmm baddbmm bmm linear matmul mm mv addmv", "aten::"),
    **_listed(
        "attention",
        """
        _scaled_dot_product_attention_math _scaled_dot_product_cudnn_attention
        _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention
        _scaled_dot_product_flash_attention_for_cpu scaled_dot_product_attention
        """,
        "aten::",
    ),
}
"""What is known to be safe, by ONNX's operator type or ATen's name; pointwise ATen operators say so."""

ADDED_FIRST = frozenset({"aten::addmm", "aten::addmv", "aten::baddbmm"})
"""Products whose first argument is added to the result."""

FACTORS: Mapping[str, tuple[int, int]] = {op: o.factors for op, o in BY_NAME.items() if o.factors is not None}
"""Places of the two factors among the inputs, where they are not the first two."""

HIDING = frozenset(op for op, operator in BY_NAME.items() if operator.hides).union(
    ["aten::ge", "aten::gt", "aten::le", "aten::lt", "aten::tril", "aten::tril_", "aten::triu", "aten::triu_"]
)
"""What tells earlier positions from later ones: a mask that hides the later ones is made with these."""

LOOKUPS = frozenset(op for op, operator in BY_NAME.items() if operator.lookup).union(
    ("aten::embedding", "aten::gather", "aten::index", "aten::index_select")
)
"""What comes out of a table says nothing of how its indices were made: a bias of distances hides nothing."""
