"""What runs over a sequence one step at a time: LSTM, GRU, RNN, and attention with a state."""

from __future__ import annotations

from explorer.engine.costs.onnx_rules.call import MS, Call, Key, Rule, per_head, without
from explorer.engine.operators import formulas
from explorer.engine.operators.formulas import Cost
from explorer.facts import Dim, Shape

__all__ = ["READERS", "RULES"]


def _hidden(call: Call, rows: Dim, gates: int) -> Dim:
    return call.attributes.get("hidden_size") or (rows // gates if isinstance(rows, int) else None)


def _recurrent(kind: str, rows: int = 1) -> Rule:
    """LSTM, GRU or RNN; `rows` is the axis of the weight on which the gates stand."""

    def rule(call: Call) -> Cost:
        source, weight = call.shape(0), call.shape(1)
        batch_first = bool(call.attributes.get("layout", 0))
        length, batch = (source[1], source[0]) if batch_first else (source[0], source[1])
        width = weight[3 - rows]
        if isinstance(width, int) and isinstance(source[2], int) and width != source[2]:
            return formulas.unknown(
                f"its operands do not fit: {source[2]} features, the weight takes {width}"
            )
        hidden = _hidden(call, weight[rows], formulas.RECURRENT[kind][0])
        directions = 2 if call.attributes.get("direction", "forward") == "bidirectional" else 1
        cost = formulas.recurrent(
            kind, length, batch, source[2], hidden, directions=directions, bias=call.has(3)
        )
        if kind == "LSTM" and call.has(7):
            # the state looks into three of the gates: a product and a sum for each unit
            cost = formulas.adding(cost, "peepholes", (length, batch, directions, hidden), 6)
        return _shortened(cost, call, length)

    return rule


def _shortened(cost: Cost, call: Call, length: Dim) -> Cost:
    """Sequences may end before the longest: what is counted is a bound unless their lengths are known."""
    if not call.has(4):
        return cost
    lengths = call.content(4)
    if lengths is not None and bool((lengths == length).all()):
        return cost
    return formulas.bounded(cost, "sequences may be shorter than the longest")


def _linear_attention(call: Call) -> Cost:
    """A state of Dk x Dv in each head of the key: written once and read by every query of its group."""
    at = call.attributes
    query, value = call.shape(0), call.shape(2)
    heads, shared = at["q_num_heads"], at["kv_num_heads"]
    return _state(
        query[:-1],
        heads,
        shared,
        per_head(query[-1], heads),
        per_head(value[-1], shared),
        at.get("update_rule", "gated_delta"),
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
    return _state(
        tokens, heads, heads, width, depth, call.attributes.get("update_rule", "gated_delta"), decay
    )


def _state(tokens: Shape, heads: Dim, shared: Dim, dqk: Dim, dv: Dim, how: str, decay: Shape) -> Cost:
    state: Shape = (dqk, dv)
    read = formulas.counted([("read: tokens", tokens), ("heads", (heads,)), ("state", state)])
    write = formulas.counted([("write: tokens", tokens), ("heads", (shared,)), ("state", state)])
    costs = [read, write]
    if how.endswith("delta"):
        # what the state says of the key is taken off the value first
        costs.append(formulas.counted([("recall: tokens", tokens), ("heads", (shared,)), ("state", state)]))
    cost = formulas.total(costs)
    if how.startswith("gated"):
        cost = formulas.adding(cost, "exp of the decay", decay or (*tokens, shared))
        cost = formulas.adding(cost, "decay", (*tokens, shared, *state))
    if how.endswith("delta"):
        cost = formulas.adding(cost, "subtract, update rate", (*tokens, shared, dv), 2)
    return formulas.adding(cost, "scale", (*tokens, heads, dv))


RULES: dict[Key, Rule] = {
    ("", "LSTM"): _recurrent("LSTM"),
    ("", "GRU"): _recurrent("GRU"),
    ("", "RNN"): _recurrent("RNN"),
    ("", "LinearAttention"): _linear_attention,
    (MS, "LinearAttention"): _linear_attention,
    (MS, "GatedDeltaNet"): _gated_delta_net,
    (MS, "DynamicQuantizeLSTM"): _recurrent("LSTM", rows=2),
    (MS, "AttnLSTM"): without("the attention inside its steps is not followed"),
    ("", "GRUUnit"): without("how wide its gates are is told by no attribute"),
}

READERS: frozenset[Key] = frozenset({("", "LSTM"), ("", "GRU"), ("", "RNN"), (MS, "DynamicQuantizeLSTM")})
