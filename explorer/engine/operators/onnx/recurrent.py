"""Recurrent operators: LSTM, GRU, RNN, and linear attention, which carries a state from step to step."""

from __future__ import annotations

from explorer.engine.graph.layouts import MS
from explorer.engine.operators import cost_formulas
from explorer.engine.operators.call import Answer, Call, Rule
from explorer.engine.operators.cost_formulas import ELEMENTWISE, RECURRENT, Cost
from explorer.engine.operators.cost_rules import divide, unknown_cost
from explorer.engine.operators.gradients import Gradient, recurrent
from explorer.engine.operators.operator import BackwardNode, Operator
from explorer.engine.operators.shape_rules import like
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim, Shape


def _recurrent_shape(call: Call) -> Answer:
    source, dtype = call.shape_or_none(0), call.dtype(0)
    directions = 2 if call.attributes.get("direction", "forward") == "bidirectional" else 1
    recurrence = call.shape_or_none(2)
    hidden: Dim = call.attributes.get("hidden_size", recurrence[2] if recurrence else None)
    if source is not None and len(source) != 3:
        return None
    first_size, second_size = (None, None) if source is None else source[:2]
    if call.integer("layout", 0):
        output: Shape = (first_size, second_size, directions, hidden)
        state: Shape = (first_size, directions, hidden)
    else:
        output, state = (first_size, directions, second_size, hidden), (directions, second_size, hidden)
    return ((dtype, output), (dtype, state), (dtype, state))[: call.output_count]


def _linear_shape(call: Call) -> Answer:
    """Infers the output types of LinearAttention.

    Query and key are (B, T, heads x key width), the value is (B, T, heads x value width).
    """
    query, key, value = call.shape_or_none(0), call.shape_or_none(1), call.shape_or_none(2)
    heads, kv_heads = call.integer("q_num_heads", 0), call.integer("kv_num_heads", 0)
    if query is None or value is None or not heads or not kv_heads:
        return None
    value_width = dims.quotient(value[2], kv_heads)
    state: Shape | None = call.shape_or_none(3)
    if not call.has(3) and key is not None and not call.integer("state_window", 0):
        state = (query[0], kv_heads, dims.quotient(key[2], kv_heads), value_width)
    output = (query[0], query[1], dims.multiply(value_width, max(heads, kv_heads)))
    return ((call.dtype(0), output), (call.dtype(3) or call.dtype(0), state))[: call.output_count]


def _recurrent(kind: str, gate_axis: int = 1) -> Rule:
    """Makes the cost rule of an LSTM, GRU or RNN; `gate_axis` is the axis of the weight with the gates."""

    def rule(call: Call) -> Cost:
        source, weight = call.shape(0), call.shape(1)
        batch_first = bool(call.attributes.get("layout", 0))
        length, batch = (source[1], source[0]) if batch_first else (source[0], source[1])
        width = weight[3 - gate_axis]
        if isinstance(width, int) and isinstance(source[2], int) and width != source[2]:
            return cost_formulas.mismatched(f"{source[2]} features, but the weight expects {width}")
        hidden = call.attributes.get("hidden_size") or divide(weight[gate_axis], RECURRENT[kind][0])
        directions = 2 if call.attributes.get("direction", "forward") == "bidirectional" else 1
        cost = cost_formulas.recurrent(
            kind, length, batch, source[2], hidden, directions=directions, bias=call.has(3)
        )
        if kind == "LSTM" and call.has(7):
            # three gates read the cell state, each with a product and a sum per unit
            cost = cost_formulas.adding(cost, "peepholes", (length, batch, directions, hidden), 6)
        return _bound_by_lengths(cost, call, length)

    return rule


def _bound_by_lengths(cost: Cost, call: Call, length: Dim) -> Cost:
    """Makes the cost a bound unless all sequences are known to have the full length."""
    if not call.has(4):
        return cost
    lengths = call.content(4)
    if lengths is not None and bool((lengths == length).all()):
        return cost
    return cost_formulas.bounded_work(cost, "sequences may be shorter than the longest")


def _linear_attention(call: Call) -> Cost:
    """Returns the cost of LinearAttention.

    Each key head has a state of key width x value width. A token writes it once, and every query head of the
    group reads it.
    """
    attributes = call.attributes
    query, value = call.shape(0), call.shape(2)
    heads, kv_heads = attributes["q_num_heads"], attributes["kv_num_heads"]
    return _state_cost(
        query[:-1],
        heads,
        kv_heads,
        divide(query[-1], heads),
        divide(value[-1], kv_heads),
        attributes.get("update_rule", "gated_delta"),
        call.shape(4) if call.has(4) else (),
    )


def _gated_delta_net(call: Call) -> Cost:
    query = call.shape(0)
    if call.has(2):
        value = call.shape(2)
        tokens, heads, width, depth = query[:-2], value[-2], query[-1], value[-1]
    else:
        state = call.shape(6)
        tokens, heads, width, depth = query[:-1], state[1], state[3], state[2]
    decay = call.shape(4) if call.has(4) else ()
    return _state_cost(
        tokens, heads, heads, width, depth, call.attributes.get("update_rule", "gated_delta"), decay
    )


def _state_cost(
    tokens: Shape, heads: Dim, kv_heads: Dim, dqk: Dim, dv: Dim, update_rule: str, decay: Shape
) -> Cost:
    """Returns the cost of reading and updating the state of linear attention.

    Args:
        tokens: Batch and sequence dimensions.
        heads: Number of query heads.
        kv_heads: Number of key heads, each with one state.
        dqk: Width of a query or key head.
        dv: Width of a value head.
        update_rule: Update rule, such as 'gated_delta'.
        decay: Shape of the decay input, or () for one decay per token and head.
    """
    state: Shape = (dqk, dv)
    read = cost_formulas.counted([("read: tokens", tokens), ("heads", (heads,)), ("state", state)])
    write = cost_formulas.counted([("write: tokens", tokens), ("heads", (kv_heads,)), ("state", state)])
    costs = [read, write]
    if update_rule.endswith("delta"):
        # the value that the state returns for the key is subtracted from the new value
        costs.append(
            cost_formulas.counted([("recall: tokens", tokens), ("heads", (kv_heads,)), ("state", state)])
        )
    cost = cost_formulas.total(costs)
    if update_rule.startswith("gated"):
        cost = cost_formulas.adding(cost, "exp of the decay", decay or (*tokens, kv_heads))
        cost = cost_formulas.adding(cost, "decay", (*tokens, kv_heads, *state))
    if update_rule.endswith("delta"):
        cost = cost_formulas.adding(cost, "subtract, update rate", (*tokens, kv_heads, dv), 2)
    return cost_formulas.adding(cost, "scale", (*tokens, heads, dv))


def _mamba_sizes(call: Call) -> tuple[int, int, int, int]:
    """Returns the number of heads, head width, state size and number of convolution channels.

    Raises:
        ValueError: A size is not positive.
    """
    heads, groups = call.integer("heads", 0), call.integer("n_groups", 0)
    width, state = call.integer("head_dim", 64), call.integer("d_state", 128)
    if min(heads, groups, width, state) < 1:
        raise ValueError("a size below 1")
    return heads, width, state, heads * width + 2 * groups * state


def _mamba_shape(call: Call) -> Answer:
    heads, width, _, channels = _mamba_sizes(call)
    source = call.shape_or_none(0)
    rows: Dim = None if source is None else source[0]
    output_shape: Shape = (rows, heads * width)
    dtype = call.dtype(0)
    cache_types = (dtype, (rows, channels)), ("float32", output_shape)
    return ((dtype, output_shape), call.type(1), call.type(2), *cache_types)[: call.output_count]


def _mamba(call: Call) -> Cost:
    """Returns the cost of a depthwise convolution of four taps, a decaying state, a gated normalization."""
    heads, width, state, channels = _mamba_sizes(call)
    rows: Shape = call.shape(0)[:1]
    conv = cost_formulas.counted([("convolution: rows", rows), ("channels", (channels,)), ("taps", (4,))])
    conv = cost_formulas.adding(conv, "bias, SiLU", (*rows, channels), 2)
    # inputs are scaled by the time step before writing; `_state_cost` counts this scaling after reading
    cost = cost_formulas.total([conv, _state_cost(rows, heads, heads, state, width, "gated", ())])
    cost = cost_formulas.adding(cost, "time step: add, softplus, limit, times the decay", (*rows, heads), 4)
    output_shape: Shape = (*rows, heads * width)
    cost = cost_formulas.adding(cost, "skip: multiply, add", output_shape, 2)
    return cost_formulas.adding(
        cost, "activate the gate, multiply, RMS normalize", output_shape, 2 + ELEMENTWISE["rms_norm"][0]
    )


def _recurrent_gradient(node: BackwardNode) -> Gradient | None:
    source, weight, state = node.shape(0), node.shape(1), node.shape(2)
    if source is None or weight is None or state is None or len(source) != 3 or len(state) != 3:
        return None
    directions, width = weight[0], weight[-1]
    gates = RECURRENT[node.call.op][0]
    hidden = state[1] // gates
    length, batch = (source[1], source[0]) if node.call.attributes.get("layout") else source[:2]
    input_macs = length * batch * directions * gates * hidden * width * node.trips
    state_macs = batch * directions * gates * hidden * state[2] * node.trips
    return recurrent(
        node.macs,
        input_macs,
        state_macs,
        node.gradient_purpose(0),
        node.gradient_purpose(5),
        (node.gradient_purpose(1), node.gradient_purpose(2)),
    )


OPERATORS = (
    *(
        Operator(
            kind,
            _recurrent(kind),
            shape=_recurrent_shape,
            cost_reads=True,
            gradient=_recurrent_gradient,
            settings=(4,),
        )
        for kind in RECURRENT
    ),
    Operator(
        "DynamicQuantizeLSTM",
        _recurrent("LSTM", gate_axis=2),
        MS,
        _recurrent_shape,
        cost_reads=True,
        quantized=True,
    ),
    Operator(
        "AttnLSTM", unknown_cost("the attention inside its steps is not analyzed"), MS, _recurrent_shape
    ),
    Operator("GRUUnit", unknown_cost("no attribute gives the width of its gates")),
    Operator("LinearAttention", _linear_attention),
    Operator("LinearAttention", _linear_attention, MS, _linear_shape),
    Operator("GatedDeltaNet", _gated_delta_net, MS),
    Operator(
        "GatedDeltaNetStateReplay",
        unknown_cost("its metadata, not its shapes, say which steps it replays on which state"),
        MS,
        like(2),
    ),
    Operator("Mamba2Verify", _mamba, MS, _mamba_shape),
)
