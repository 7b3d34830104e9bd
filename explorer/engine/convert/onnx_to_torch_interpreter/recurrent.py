"""Rules for LSTM, GRU and RNN, step by step, with ONNX's gates, directions, lengths and peepholes.

Torch's own layers support only some of these features. Tensors have the letters of the ONNX standard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from explorer.base.errors import BadModel
from explorer.engine.convert.onnx_to_torch_interpreter.call import OperatorCall

Activation = Callable[[Tensor], Tensor]
State = tuple[Tensor, ...]
"""(h, c) of an LSTM, or (h,) of a GRU or RNN; each has shape (batch, hidden)."""

_ACTIVATIONS: Mapping[str, Callable[[float, float], Activation]] = {
    "affine": lambda a, b: lambda x: a * x + b,
    "elu": lambda a, b: lambda x: functional.elu(x, a),
    "hardsigmoid": lambda a, b: lambda x: (a * x + b).clamp(0, 1),
    "leakyrelu": lambda a, b: lambda x: functional.leaky_relu(x, a),
    "relu": lambda a, b: torch.relu,
    "scaledtanh": lambda a, b: lambda x: a * torch.tanh(b * x),
    "sigmoid": lambda a, b: torch.sigmoid,
    "softplus": lambda a, b: functional.softplus,
    "softsign": lambda a, b: functional.softsign,
    "tanh": lambda a, b: torch.tanh,
    "thresholdedrelu": lambda a, b: lambda x: torch.where(x > a, x, torch.zeros_like(x)),
}
"""Makes the function of each activation from its alpha and beta."""
_DEFAULT_PARAMETERS = {"hardsigmoid": (0.2, 0.5), "leakyrelu": (0.01, 0.0), "elu": (1.0, 0.0)}
"""Default alpha and beta of activations; (1, 1) for the others."""
_DEFAULT_ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def _read_activations(call: OperatorCall, direction: int) -> list[Activation]:
    """Returns the activations of one direction (0 or 1), in ONNX's order."""
    default_names = _DEFAULT_ACTIVATIONS[call.node.op]
    names = call.get("activations") or default_names * 2
    alphas, betas = list(call.get("activation_alpha", ())), list(call.get("activation_beta", ()))
    activations = []
    for index in range(len(default_names)):
        position = direction * len(default_names) + index
        name = str(names[position]).lower()
        a, b = _DEFAULT_PARAMETERS.get(name, (1.0, 1.0))
        a = alphas[position] if position < len(alphas) else a
        b = betas[position] if position < len(betas) else b
        activations.append(_ACTIVATIONS[name](a, b))
    return activations


def _run_lstm_step(
    call: OperatorCall,
    x: Tensor,
    state: State,
    r: Tensor,
    rb: Tensor,
    activations: Sequence[Activation],
    peepholes: Any,
) -> State:
    """Returns (h, c) after one step. `x` is the projected input with its bias, `rb` the recurrent bias."""
    h, c = state
    i, o, f, g = (x + h @ r.t() + rb).chunk(4, -1)
    p = peepholes.chunk(3) if peepholes is not None else (0, 0, 0)
    i = activations[0](_clip_value(call, i + p[0] * c))
    f = 1 - i if call.get("input_forget", 0) else activations[0](_clip_value(call, f + p[2] * c))
    c = f * c + i * activations[1](_clip_value(call, g))
    o = activations[0](_clip_value(call, o + p[1] * c))
    return o * activations[2](c), c


def _run_gru_step(
    call: OperatorCall,
    x: Tensor,
    state: State,
    r: Tensor,
    rb: Tensor,
    activations: Sequence[Activation],
    peepholes: Any,
) -> State:
    (h,) = state
    xz, xr, xh = x.chunk(3, -1)
    rz, rr, rh = r.chunk(3)
    bz, br, bh = rb.chunk(3)
    z = activations[0](_clip_value(call, xz + h @ rz.t() + bz))
    reset = activations[0](_clip_value(call, xr + h @ rr.t() + br))
    if call.get("linear_before_reset", 0):
        candidate = activations[1](_clip_value(call, xh + reset * (h @ rh.t() + bh)))
    else:
        candidate = activations[1](_clip_value(call, xh + (reset * h) @ rh.t() + bh))
    return ((1 - z) * candidate + z * h,)


def _run_rnn_step(
    call: OperatorCall,
    x: Tensor,
    state: State,
    r: Tensor,
    rb: Tensor,
    activations: Sequence[Activation],
    peepholes: Any,
) -> State:
    return (activations[0](_clip_value(call, x + state[0] @ r.t() + rb)),)


def _clip_value(call: OperatorCall, x: Tensor) -> Tensor:
    clip = call.get("clip")
    return x if clip is None else x.clamp(-clip, clip)


_STEPS = {"LSTM": _run_lstm_step, "GRU": _run_gru_step, "RNN": _run_rnn_step}


def _run_recurrent(call: OperatorCall, x: Tensor, w: Tensor, r: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Returns the outputs of all directions: (Y, Y_h), or (Y, Y_h, Y_c) for an LSTM.

    Args:
        call: The operator.
        x: Input, (length, batch, features).
        w: Input weights, (directions, gates x hidden, features).
        r: Recurrent weights, (directions, gates x hidden, hidden).
        *rest: Bias, sequence lengths, initial hidden and cell state, and peepholes; each may be missing.

    Raises:
        BadModel: The length of the sequence is open.
    """
    op = call.node.op
    bias_pairs, lengths, h0, c0, peepholes = (*rest, *(None,) * 5)[:5]
    hidden_size = int(r.shape[-1])
    if call.get("layout", 0):
        x = x.transpose(0, 1)
        h0, c0 = (s if s is None else s.transpose(0, 1) for s in (h0, c0))
    length, batch = x.shape[0], x.shape[1]
    if not isinstance(length, int):
        raise BadModel(f"torch cannot leave the length of a sequence open in {op}")
    initial_states = [h0, c0] if op == "LSTM" else [h0]
    outputs_by_direction: list[Tensor] = []
    final_states: list[list[Tensor]] = []
    direction = str(call.get("direction", "forward"))
    for direction_index in range(w.shape[0]):
        backwards = direction == "reverse" or direction_index == 1
        gate_rows = w.shape[1]
        bias = bias_pairs[direction_index] if bias_pairs is not None else w.new_zeros(2 * gate_rows)
        state: State = tuple(
            w.new_zeros(batch, hidden_size) if s is None else s[direction_index] for s in initial_states
        )
        activations = _read_activations(call, direction_index)
        projected = x @ w[direction_index].t() + bias[:gate_rows]
        steps = reversed(range(length)) if backwards else range(length)
        outputs: list[Tensor] = [x] * length
        for step in steps:
            next_state = _STEPS[op](
                call,
                projected[step],
                state,
                r[direction_index],
                bias[gate_rows:],
                activations,
                None if peepholes is None else peepholes[direction_index],
            )
            if lengths is None:
                state, outputs[step] = next_state, next_state[0]
            else:
                is_active = (step < lengths).unsqueeze(-1)
                outputs[step] = torch.where(is_active, next_state[0], torch.zeros_like(next_state[0]))
                state = tuple(torch.where(is_active, n, o) for n, o in zip(next_state, state, strict=True))
        outputs_by_direction.append(torch.stack(outputs))
        final_states.append(list(state))
    y = torch.stack(outputs_by_direction, 1)
    stacked_states = [torch.stack(states) for states in zip(*final_states, strict=True)]
    if call.get("layout", 0):
        y = y.permute(2, 0, 1, 3)
        stacked_states = [final.transpose(0, 1) for final in stacked_states]
    return (y, *stacked_states)


TABLE: Mapping[str, Callable[..., Any]] = dict.fromkeys(_STEPS, _run_recurrent)
