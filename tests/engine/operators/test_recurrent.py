"""What runs over a sequence: gates, states, and sequences that end early."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.engine.graph.layouts import MS
from explorer.engine.operators.cost_formulas import Cost

Count = Callable[..., Cost]

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
small = st.integers(1, 3)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(GATES)), small, small, small, small, st.booleans(), st.booleans())
def test_every_gate_of_every_step_sums_over_input_and_state(
    count: Any, kind: str, length: int, batch: int, inputs: int, hidden: int, both: bool, first: bool
) -> None:
    products = 0
    ways = 2 if both else 1
    for _ in itertools.product(range(length), range(batch), range(ways), range(GATES[kind]), range(hidden)):
        products += inputs + hidden
    source = (batch, length, inputs) if first else (length, batch, inputs)
    rows = GATES[kind] * hidden
    cost = count(
        kind,
        [source, (ways, rows, inputs), (ways, rows, hidden)],
        None,
        layout=int(first),
        direction="bidirectional" if both else "forward",
    )
    assert (cost.macs, cost.status) == (products, "exact")


def test_peepholes_are_a_product_and_a_sum_for_three_gates_of_every_unit(count: Count) -> None:
    shapes: list[Any] = [(5, 2, 3), (1, 16, 3), (1, 16, 4), (1, 32), None, None, None]
    plain = count("LSTM", shapes, None, hidden_size=4)
    looking = count("LSTM", [*shapes, (1, 12)], None, hidden_size=4)
    assert (looking.elementwise_ops or 0) - (plain.elementwise_ops or 0) == 5 * 2 * 4 * 6
    assert looking.macs == plain.macs == 10 * 16 * 7


@pytest.mark.parametrize(
    ("lengths", "status"),
    [((2,), "bound"), (np.array([5, 5]), "exact"), (np.array([5, 3]), "bound"), (None, "exact")],
)
def test_sequences_that_may_end_early_make_a_bound(count: Count, lengths: Any, status: str) -> None:
    cost = count("GRU", [(5, 2, 3), (1, 12, 3), (1, 12, 4), None, lengths], None, hidden_size=4)
    assert (cost.macs, cost.status) == (10 * 12 * 7, status)


def test_a_quantized_lstm_has_its_weights_turned(count: Count) -> None:
    cost = count("DynamicQuantizeLSTM", [(5, 2, 3), (1, 3, 16), (1, 4, 16)], None, MS)
    assert cost.macs == 10 * 16 * 7


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["linear", "gated", "delta", "gated_delta"]),
    small,
    small,
    small,
    small,
    small,
    st.booleans(),
)
def test_linear_attention_counts_what_its_recurrence_multiplies(
    count: Any, how: str, batch: int, steps: int, shared: int, dqk: int, dv: int, grouped: bool
) -> None:
    heads = shared * (2 if grouped else 1)
    products = rest = 0
    for _ in itertools.product(range(batch), range(steps), range(shared)):
        products += dqk * dv  # k v^T, added to the state
        if "delta" in how:
            products += dqk * dv  # S^T k
            rest += 2 * dv  # v - that, times beta
        if "gated" in how:
            rest += 1 + dqk * dv  # exp(g), times the state
    for _ in itertools.product(range(batch), range(steps), range(heads)):
        products += dqk * dv  # q^T S
        rest += dv  # scale
    decay = (batch, steps, shared) if "gated" in how else None
    shapes = [
        (batch, steps, heads * dqk),
        (batch, steps, shared * dqk),
        (batch, steps, shared * dv),
        None,
        decay,
    ]
    for domain in ("", MS):
        cost = count(
            "LinearAttention",
            shapes,
            (batch, steps, heads * dv),
            domain,
            q_num_heads=heads,
            kv_num_heads=shared,
            update_rule=how,
        )
        assert (cost.macs, cost.elementwise_ops, cost.status) == (products, rest, "exact")


def test_a_gated_delta_net_counts_alike_packed_or_not(count: Count) -> None:
    # 7 tokens, 2 heads, state 4 x 3: read, write, recall
    apart = count("GatedDeltaNet", [(7, 2, 4), (7, 2, 4), (7, 2, 3), None, (7, 2)], (7, 2, 3), MS)
    packed = count("GatedDeltaNet", [(7, 22), None, None, None, (7, 2), None, (1, 2, 3, 4)], (7, 6), MS)
    assert apart.macs == packed.macs == 3 * 7 * 2 * 12


def test_a_mamba_layer_counts_its_convolution_its_state_and_its_gates(count: Count) -> None:
    """5 tokens, 2 heads of 64, states of 128, one group: 128 + 2 x 128 channels of four taps."""
    inputs = [(5, 128 + 384 + 2), (1, 384, 3), (1, 2, 128, 64)]
    cost = count("Mamba2Verify", inputs, (5, 128), MS, heads=2, n_groups=1)
    states = 5 * 2 * 128 * 64
    assert cost.macs == 5 * 384 * 4 + 2 * states
    # bias, SiLU; decay; softplus and its like, exp; scale by the step; skip, gate, normalise
    assert cost.elementwise_ops == 2 * 5 * 384 + states + 5 * 10 + 640 + 8 * 640
    assert cost.status == "exact"


@pytest.mark.parametrize(
    ("op", "domain", "products"),
    [
        ("AttnLSTM", MS, None),
        ("GRUUnit", "", None),
        ("GatedDeltaNetStateReplay", MS, None),
        ("SpeculativePrefixCommit", MS, 0),
    ],
)
def test_what_no_shape_tells_has_a_reason(count: Count, op: str, domain: str, products: int | None) -> None:
    cost = count(op, [(5, 2, 3)], (5, 2, 3), domain)
    assert (cost.macs, cost.elementwise_ops, cost.status) == (products, None, "unknown")
    assert cost.reason
