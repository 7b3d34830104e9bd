"""LSTM, GRU and RNN, step by step, with ONNX's gates, directions, lengths and peepholes.

Torch's own layers support only a part of them.
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
_DEFAULTS = {"hardsigmoid": (0.2, 0.5), "leakyrelu": (0.01, 0.0), "elu": (1.0, 0.0)}
_USUAL = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def _activations(call: OperatorCall, direction: int) -> list[Activation]:
    usual = _USUAL[call.node.op]
    names = call.get("activations") or usual * 2
    alphas, betas = list(call.get("activation_alpha", ())), list(call.get("activation_beta", ()))
    activations = []
    for at in range(len(usual)):
        place = direction * len(usual) + at
        name = str(names[place]).lower()
        a, b = _DEFAULTS.get(name, (1.0, 1.0))
        a = alphas[place] if place < len(alphas) else a
        b = betas[place] if place < len(betas) else b
        activations.append(_ACTIVATIONS[name](a, b))
    return activations


def _lstm_step(
    call: OperatorCall, x: Tensor, state: State, r: Tensor, rb: Tensor, acts: Sequence[Activation], extra: Any
) -> State:
    h, c = state
    i, o, f, g = (x + h @ r.t() + rb).chunk(4, -1)
    p = extra.chunk(3) if extra is not None else (0, 0, 0)
    i = acts[0](_clip(call, i + p[0] * c))
    f = 1 - i if call.get("input_forget", 0) else acts[0](_clip(call, f + p[2] * c))
    c = f * c + i * acts[1](_clip(call, g))
    o = acts[0](_clip(call, o + p[1] * c))
    return o * acts[2](c), c


def _gru_step(
    call: OperatorCall, x: Tensor, state: State, r: Tensor, rb: Tensor, acts: Sequence[Activation], extra: Any
) -> State:
    (h,) = state
    xz, xr, xh = x.chunk(3, -1)
    rz, rr, rh = r.chunk(3)
    bz, br, bh = rb.chunk(3)
    z = acts[0](_clip(call, xz + h @ rz.t() + bz))
    reset = acts[0](_clip(call, xr + h @ rr.t() + br))
    if call.get("linear_before_reset", 0):
        new = acts[1](_clip(call, xh + reset * (h @ rh.t() + bh)))
    else:
        new = acts[1](_clip(call, xh + (reset * h) @ rh.t() + bh))
    return ((1 - z) * new + z * h,)


def _rnn_step(
    call: OperatorCall, x: Tensor, state: State, r: Tensor, rb: Tensor, acts: Sequence[Activation], extra: Any
) -> State:
    return (acts[0](_clip(call, x + state[0] @ r.t() + rb)),)


def _clip(call: OperatorCall, x: Tensor) -> Tensor:
    clip = call.get("clip")
    return x if clip is None else x.clamp(-clip, clip)


_STEPS = {"LSTM": _lstm_step, "GRU": _gru_step, "RNN": _rnn_step}


def _recurrent(call: OperatorCall, x: Tensor, w: Tensor, r: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """(Y, Y_h[, Y_c]) of all directions."""
    op = call.node.op
    b, lengths, h0, c0, peep = (*rest, *(None,) * 5)[:5]
    size = int(r.shape[-1])
    if call.get("layout", 0):
        x = x.transpose(0, 1)
        h0, c0 = (s if s is None else s.transpose(0, 1) for s in (h0, c0))
    count, batch = x.shape[0], x.shape[1]
    if not isinstance(count, int):
        raise BadModel(f"torch cannot leave the length of a sequence open in {op}")
    starts = [h0, c0] if op == "LSTM" else [h0]
    every: list[Tensor] = []
    finals: list[list[Tensor]] = []
    direction = str(call.get("direction", "forward"))
    for at in range(w.shape[0]):
        backwards = direction == "reverse" or at == 1
        half = w.shape[1]
        bias = b[at] if b is not None else w.new_zeros(2 * half)
        state: State = tuple(w.new_zeros(batch, size) if s is None else s[at] for s in starts)
        acts = _activations(call, at)
        projected = x @ w[at].t() + bias[:half]
        steps = reversed(range(count)) if backwards else range(count)
        outputs: list[Tensor] = [x] * count
        for step in steps:
            after = _STEPS[op](
                call, projected[step], state, r[at], bias[half:], acts, None if peep is None else peep[at]
            )
            if lengths is None:
                state, outputs[step] = after, after[0]
            else:
                going = (step < lengths).unsqueeze(-1)
                outputs[step] = torch.where(going, after[0], torch.zeros_like(after[0]))
                state = tuple(torch.where(going, n, o) for n, o in zip(after, state, strict=True))
        every.append(torch.stack(outputs))
        finals.append(list(state))
    y = torch.stack(every, 1)
    last = [torch.stack(states) for states in zip(*finals, strict=True)]
    if call.get("layout", 0):
        y = y.permute(2, 0, 1, 3)
        last = [final.transpose(0, 1) for final in last]
    return (y, *last)


TABLE: Mapping[str, Callable[..., Any]] = dict.fromkeys(_STEPS, _recurrent)
