"""Every row of the counting rules, worked out by hand."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.engine.operators import cost_formulas
from explorer.engine.operators.einsum import einsum


def test_a_convolution_counts_batch_channels_output_and_kernel() -> None:
    cost = cost_formulas.conv((1, 64, 55, 55), (64, 3, 11, 11), bias=True)
    assert cost.macs == 1 * 64 * 55 * 55 * 3 * 11 * 11 == 70_276_800
    assert cost.elementwise_ops == 64 * 55 * 55
    assert "70,276,800" in cost.formula
    assert "kernel 11x11" in cost.formula


def test_a_convolution_without_a_batch_counts_its_channels_as_channels() -> None:
    # 16 channels out, 8 in, kernel 3, 32 positions: other tools answer 6,144 and 49,152
    assert cost_formulas.conv((16, 32), (16, 8, 3)).macs == 16 * 32 * 8 * 3 == 12_288


def test_groups_divide_the_input_channels() -> None:
    assert cost_formulas.conv((2, 32, 10, 10), (32, 1, 3, 3)).macs == 2 * 32 * 100 * 9


def test_three_dimensions_are_counted_alike() -> None:
    assert cost_formulas.conv((1, 4, 2, 3, 5), (4, 3, 1, 2, 2)).macs == 4 * 30 * 3 * 4


def test_a_transposed_convolution_multiplies_every_input_with_the_kernel() -> None:
    # 3 -> 1 channels, kernel 2, stride 2, on 2x2: other tools answer 192 and 64
    cost = cost_formulas.conv_transpose((1, 3, 2, 2), (3, 1, 2, 2), (1, 1, 4, 4), bias=True)
    assert cost.macs == 48
    assert cost.elementwise_ops == 16


def test_a_matrix_product_broadcasts_its_batch() -> None:
    # other tools answer 144 and 360
    assert cost_formulas.matmul((2, 1, 3, 4), (1, 5, 4, 6)).macs == 720


@pytest.mark.parametrize(
    ("a", "b", "count"),
    [((4,), (4,), 4), ((3, 4), (4,), 12), ((4,), (4, 6), 24), ((5, 3, 4), (4,), 60), ((4,), (5, 4, 6), 120)],
)
def test_vectors_are_operands_of_a_matrix_product(a: tuple[int, ...], b: tuple[int, ...], count: int) -> None:
    assert cost_formulas.matmul(a, b).macs == count


@given(
    st.lists(st.sampled_from([1, 2, 3]), max_size=2),
    st.lists(st.sampled_from([1, 2, 3]), max_size=2),
    st.tuples(*[st.integers(1, 4)] * 3),
)
def test_a_matrix_product_counts_what_numpy_would_multiply(
    left: list[int], right: list[int], sizes: tuple[int, int, int]
) -> None:
    import numpy as np

    m, k, n = sizes
    try:
        out = np.matmul(np.ones((*left, m, k)), np.ones((*right, k, n)))
    except ValueError:
        return
    assert cost_formulas.matmul((*left, m, k), (*right, k, n)).macs == out.size * k


def test_gemm_counts_the_same_however_its_operands_lie() -> None:
    plain = cost_formulas.gemm((2, 3), (3, 5), bias=True)
    assert plain.macs == 30
    assert plain.elementwise_ops == 10
    turned = cost_formulas.gemm((3, 2), (5, 3), trans_a=True, trans_b=True)
    assert turned.macs == 30
    assert turned.elementwise_ops == 0
    scaled = cost_formulas.gemm((2, 3), (3, 5), bias=True, alpha=0.5, beta=2.0)
    assert scaled.macs == 30
    assert scaled.elementwise_ops == 30


def test_operands_that_do_not_fit_have_no_cost() -> None:
    """An input shape that the user gave may contradict the weights."""
    for cost in (
        cost_formulas.matmul((3, 99), (100, 70)),
        cost_formulas.matmul((99,), (100, 70)),
        cost_formulas.gemm((3, 99), (100, 70)),
        cost_formulas.gemm((99, 3), (70, 100), trans_a=True, trans_b=True),
    ):
        assert cost.macs is None
        assert cost.status == "unknown"
        assert cost.reason == "its operands do not fit: 99 columns against 100 rows"


def test_attention_counts_both_products_of_every_query_head() -> None:
    cost = cost_formulas.attention((1,), 12, 128, 128, 64, 64)
    assert cost.macs == 12 * 128 * 128 * (64 + 64)


def test_a_causal_mask_leaves_the_dense_cost_and_shows_the_exact_one() -> None:
    cost = cost_formulas.attention((2,), 3, 4, 4, 5, 7, causal=True)
    assert cost.macs == 2 * 3 * 16 * 12
    exact = 2 * 3 * (1 + 2 + 3 + 4) * 12
    assert f"causal pairs only: {exact:,}" in cost.formula


@given(st.integers(1, 7), st.integers(1, 9), st.integers(0, 4))
def test_causal_pairs_are_those_that_the_mask_lets_through(lq: int, lk: int, past: int) -> None:
    pairs = sum(j <= i + past for i, j in itertools.product(range(lq), range(lk)))
    cost = cost_formulas.attention((), 1, lq, lk, 1, 0, causal=True, past=past)
    assert f"causal pairs only: {pairs:,})" in cost.formula


def test_recurrent_layers_count_gates_times_input_and_state() -> None:
    # 5 steps, 2 sequences, 3 features, 4 units
    assert cost_formulas.recurrent("RNN", 5, 2, 3, 4).macs == 10 * 1 * 4 * 7
    assert cost_formulas.recurrent("GRU", 5, 2, 3, 4).macs == 10 * 3 * 4 * 7
    assert cost_formulas.recurrent("LSTM", 5, 2, 3, 4).macs == 10 * 4 * 4 * 7


def test_upper_layers_of_a_bidirectional_lstm_take_both_directions() -> None:
    cost = cost_formulas.recurrent("LSTM", 5, 2, 3, 4, directions=2, layers=2)
    assert cost.macs == 10 * 2 * 4 * 4 * (3 + 4) + 10 * 2 * 4 * 4 * (8 + 4)


def test_a_projected_lstm_counts_its_projection() -> None:
    cost = cost_formulas.recurrent("LSTM", 5, 2, 3, 4, projection=2)
    assert cost.macs == 10 * 4 * 4 * (3 + 2) + 10 * 2 * 4


@pytest.mark.parametrize(
    ("equation", "shapes", "count"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)], 24),
        ("ij,jk", [(2, 3), (3, 4)], 24),
        ("bhqd,bhkd->bhqk", [(1, 2, 3, 5), (1, 2, 4, 5)], 120),
        ("...ij,...jk->...ik", [(7, 2, 3), (3, 4)], 7 * 24),
        ("i,i->", [(6,), (6,)], 6),
        # three operands: (ij,jk) first is 2*3*4 + 2*4*5 = 64, the other way 3*4*5 + 2*3*5 = 90
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)], 64),
        # no summed index
        ("i,j->ij", [(3,), (4,)], 0),
        ("ij->ji", [(3, 4)], 0),
        ("ij,ij->ij", [(3, 4), (3, 4)], 0),
    ],
)
def test_einsum_counts_its_cheapest_order(equation: str, shapes: list[tuple[int, ...]], count: int) -> None:
    assert einsum(equation, shapes).macs == count


def test_einsum_sums_an_index_of_one_operand_before_it_multiplies() -> None:
    cost = einsum("ij,k->ik", [(2, 3), (4,)])
    assert cost.macs == 0
    assert cost.elementwise_ops == 6 + 8


def test_an_einsum_that_does_not_fit_its_operands_is_unknown() -> None:
    assert einsum("ij,jk", [(2, 3)]).macs is None
    assert einsum("ij", [(2, 3, 4)]).status == "unknown"


def test_a_symbolic_size_leaves_the_count_unknown_and_names_it() -> None:
    cost = cost_formulas.matmul(("batch", 3, 4), (4, 5))
    assert cost.macs is None
    assert cost.status == "unknown"
    assert "batch" in cost.reason
    assert cost.formula == "batch batch x M 3 x K 4 x N 5"


def test_an_activation_of_unknown_size_still_has_no_macs() -> None:
    cost = cost_formulas.elementwise("Relu", ("n", 3))
    assert cost.macs == 0
    assert cost.elementwise_ops is None
    assert cost.status == "unknown"


def test_a_body_counts_as_often_as_it_runs() -> None:
    body = cost_formulas.gemm((2, 3), (3, 5), bias=True)
    assert cost_formulas.times(body, 7).macs == 210
    assert cost_formulas.times(body, 7).elementwise_ops == 70
    assert cost_formulas.times(body, 0).macs == 0


def test_a_body_that_runs_an_unknown_number_of_times_is_unknown_unless_it_is_free() -> None:
    body = cost_formulas.gemm((2, 3), (3, 5))
    assert cost_formulas.times(body, "steps").macs is None
    assert "steps" in cost_formulas.times(body, "steps").reason
    assert cost_formulas.times(cost_formulas.FREE, None) == cost_formulas.FREE


def test_ranks_that_do_not_fit_are_unknown_not_wrong() -> None:
    assert cost_formulas.conv((1, 2, 3, 4, 5), (2, 2, 3, 3)).status == "unknown"
    assert cost_formulas.conv_transpose((1, 2, 3, 4, 5), (2, 2, 3, 3)).status == "unknown"
    assert cost_formulas.gemm((1, 2, 3), (3, 4)).status == "unknown"
    assert cost_formulas.matmul((), (3, 4)).status == "unknown"
