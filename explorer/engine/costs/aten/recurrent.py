"""Counts LSTM, GRU and RNN of ATen, in floating point and dynamically quantized: full layers and cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from explorer.engine.costs.aten.call import AtenCall, OperatorRecord, Rule
from explorer.engine.operators import cost_formulas, gradients
from explorer.engine.operators.cost_formulas import Cost
from explorer.engine.operators.gradients import Gradient, GradientPurpose


class _Layer(Struct):
    """Sizes of a recurrent layer; `source` is (steps, batch, features), or (rows, features) if packed."""

    source: tuple[Any, ...]
    state: tuple[Any, ...]
    length: Any
    batch: Any
    hidden: Any
    directions: int
    layers: int


def _read_layer(call: AtenCall) -> _Layer:
    """Reads the sizes of a recurrent layer from a call, padded or packed."""
    packed = call.has("batch_sizes")
    source = call.shape("data" if packed else "input")
    states = call.tensors("hx")
    length, batch = (source[0], 1) if packed or len(source) == 2 else source[:2]
    if call.get("batch_first") and len(source) == 3:
        length, batch = batch, length
    # in a projected LSTM, the last state has the cell's size, and the first has the projection's size
    hidden = states[-1].shape[-1]
    directions = 2 if call.get("bidirectional") else 1
    return _Layer(
        source, tuple(states[0].shape), length, batch, hidden, directions, int(call.get("num_layers", 1))
    )


def _build_layer_rule(kind: str) -> Rule:
    def rule(call: AtenCall) -> Cost:
        layer = _read_layer(call)
        if layer.layers > len(call.get("params")):
            return cost_formulas.unknown("it has fewer weights than layers")
        return cost_formulas.recurrent(
            kind,
            layer.length,
            layer.batch,
            layer.source[-1],
            layer.hidden,
            directions=layer.directions,
            layers=layer.layers,
            projection=layer.state[-1] if layer.state[-1] != layer.hidden else 0,
            bias=bool(call.get("has_biases", True)),
        )

    return rule


def _build_gradient_rule(
    kind: str,
) -> Callable[[AtenCall, int, Callable[[Any], GradientPurpose]], Gradient | None]:
    def rule(call: AtenCall, macs: int, get_purpose: Callable[[Any], GradientPurpose]) -> Gradient | None:
        layer = _read_layer(call)
        state = layer.state
        gates = cost_formulas.RECURRENT[kind][0] * layer.hidden * layer.directions
        input_macs = layer.length * layer.batch * gates * layer.source[-1]
        initial_state_macs = layer.layers * gates * state[-1] * (state[-2] if len(state) == 3 else 1)
        weights = [get_purpose(t) for t in call.tensors("params") if len(t.shape) > 1]
        state_purpose: GradientPurpose = next((w for w in map(get_purpose, call.tensors("hx")) if w), "")
        return gradients.recurrent(
            macs, input_macs, initial_state_macs, get_purpose(call.tensors()[0]), state_purpose, weights
        )

    return rule


def _build_cell_rule(kind: str) -> Rule:
    def rule(call: AtenCall) -> Cost:
        source, state = call.shape("input"), call.shape("hx")
        batch = source[0] if len(source) > 1 else 1
        return cost_formulas.recurrent(kind, 1, batch, source[-1], state[-1])

    return rule


LAYERS = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))
"""Torch functions that run a full recurrent layer."""

CELLS: Mapping[str, str] = {
    f"quantized::quantized_{name}_cell_dynamic": kind
    for name, kind in (("lstm", "LSTM"), ("gru", "GRU"), ("rnn_relu", "RNN"), ("rnn_tanh", "RNN"))
}
"""Dynamically quantized cells by schema name, with the kind of each."""

TABLE: Mapping[str, OperatorRecord] = {
    "lstm": OperatorRecord(_build_layer_rule("LSTM"), _build_gradient_rule("LSTM")),
    "gru": OperatorRecord(_build_layer_rule("GRU"), _build_gradient_rule("GRU")),
    "rnn_tanh": OperatorRecord(_build_layer_rule("RNN"), _build_gradient_rule("RNN")),
    "rnn_relu": OperatorRecord(_build_layer_rule("RNN"), _build_gradient_rule("RNN")),
    "quantized_lstm": OperatorRecord(_build_layer_rule("LSTM")),
    "quantized_gru": OperatorRecord(_build_layer_rule("GRU")),
    **{name: OperatorRecord(_build_cell_rule(kind)) for name, kind in CELLS.items()},
}
"""Records of recurrent operators, by name."""
