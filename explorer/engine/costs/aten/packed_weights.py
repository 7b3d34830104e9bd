"""Packed weights of dynamic quantization: native code holds them, and they cannot leave the CPU.

A dynamically quantized Linear, LSTM or cell holds no parameters but a handle; its operators have no shape
function. Here the handle is opened for the sizes of what is in it, and the operators are answered by the
closed form of the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from explorer.engine.operators import formulas
from explorer.engine.operators.formulas import Cost

__all__ = ["ANSWERS", "COSTS", "is_packed", "unpacked"]

_PACKAGE = "torch.ao.nn.quantized"
_DYNAMIC = 5
"""Operations that quantize an element on the way in: min, max, divide, round, add."""


def is_packed(module: nn.Module) -> bool:
    """Whether a module is a quantized layer of torch's, one row whatever modules it keeps its weights in."""
    return type(module).__module__.startswith(_PACKAGE)


def unpacked(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights and biases in the handles that a quantized module itself holds, by a name."""
    for name, value in vars(module).items():
        if isinstance(value, torch.ScriptObject):
            for part, tensor in _opened(value):
                yield (f"{name.strip('_')}.{part}", tensor)


def _opened(handle: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for unpack in (torch.ops.quantized.linear_unpack, torch.ops.quantized.linear_unpack_fp16):
        try:
            weight, bias = unpack(handle)
        except RuntimeError:
            continue
        yield "weight", weight
        if bias is not None:
            yield "bias", bias
        return
    try:
        # a recurrent cell: its kind, its biases, numbers, and the handles of its two matrices
        (_, biases, _, _, handles), *_ = handle.__getstate__()
    except (RuntimeError, ValueError, TypeError):
        return
    sides = ("ih", "hh")
    for side, inner in zip(sides, handles, strict=False):
        yield from ((f"{part}_{side}", tensor) for part, tensor in _opened(inner) if part == "weight")
    yield from ((f"bias_{side}", tensor) for side, tensor in zip(sides, biases, strict=False))


# -- what the operators return


def _rows(handle: Any) -> int:
    """Features that a packed matrix makes."""
    return next(int(tensor.shape[0]) for part, tensor in _opened(handle) if part == "weight")


def _linear(args: Sequence[Any]) -> Any:
    source = args[0]
    return source.new_empty((*source.shape[:-1], _rows(args[1])))


def _is_list(args: Sequence[Any]) -> bool:
    return isinstance(args[1], (tuple, list))


def _recurrent(args: Sequence[Any]) -> Any:
    """(input, states, handles, ...) or, of packed sequences, (input, sizes, states, handles, ...)."""
    source, states, _, bidirectional, _, _ = _layout(args)
    width = int(states[0].shape[-1]) * (2 if bidirectional else 1)
    return (source.new_empty((*source.shape[:-1], width)), *(s.new_empty(s.shape) for s in states))


def _layout(args: Sequence[Any]) -> tuple[Any, list[Any], bool, bool, int, bool]:
    """Input, states, batch first or not, two directions or not, layers, packed sequences or not."""
    packed = isinstance(args[1], torch.Tensor) and args[1].dtype == torch.int64 and args[1].dim() == 1
    rest = args[2:] if packed else args[1:]
    states = list(rest[0]) if isinstance(rest[0], (tuple, list)) else [rest[0]]
    layers, bidirectional = int(rest[3]), bool(rest[6])
    return args[0], states, not packed and len(rest) > 7 and bool(rest[7]), bidirectional, layers, packed


def _cell(args: Sequence[Any]) -> Any:
    states = args[1] if _is_list(args) else [args[1]]
    made = tuple(s.new_empty(s.shape) for s in states)
    return made if len(made) > 1 else made[0]


ANSWERS: dict[str, Callable[[Sequence[Any]], Any]] = {
    **dict.fromkeys(
        (
            "quantized::linear_dynamic",
            "quantized::linear_relu_dynamic",
            "quantized::linear_dynamic_fp16",
            "quantized::linear_relu_dynamic_fp16",
        ),
        _linear,
    ),
    **dict.fromkeys(("aten::quantized_lstm", "aten::quantized_gru"), _recurrent),
    **dict.fromkeys(
        (
            "quantized::quantized_lstm_cell_dynamic",
            "quantized::quantized_gru_cell_dynamic",
            "quantized::quantized_rnn_relu_cell_dynamic",
            "quantized::quantized_rnn_tanh_cell_dynamic",
        ),
        _cell,
    ),
}
"""Results of operators on packed weights, by schema name."""


# -- what they cost: as their float forms, and each input quantized on the way in


def _linear_cost(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    source = tuple(args[0].shape)
    cost = formulas.matmul(source, (source[-1], int(out.shape[-1])))
    cost = formulas.adding(cost, "quantize", source, _DYNAMIC)
    cost = formulas.adding(cost, "rescale", tuple(out.shape))
    return formulas.adding(cost, "bias", tuple(out.shape))


def _recurrent_cost(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    source, states, batch_first, bidirectional, layers, packed = _layout(args)
    length, batch = source.shape[0], 1
    if not packed and source.dim() == 3:
        length, batch = (source.shape[1], source.shape[0]) if batch_first else source.shape[:2]
    kind = "LSTM" if len(states) > 1 else "GRU"
    directions, width = 2 if bidirectional else 1, int(source.shape[-1])
    hidden = int(states[0].shape[-1])
    return formulas.recurrent(
        kind, int(length), int(batch), width, hidden, directions=directions, layers=layers
    )


def _cell_cost(kind: str) -> Callable[..., Cost]:
    def rule(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
        source, state = args[0], args[1][0] if _is_list(args) else args[1]
        batch = int(source.shape[0]) if source.dim() > 1 else 1
        return formulas.recurrent(kind, 1, batch, int(source.shape[-1]), int(state.shape[-1]))

    return rule


_KINDS = {"lstm": "LSTM", "gru": "GRU", "rnn": "RNN"}

COSTS: dict[str, Callable[..., Cost]] = {
    name: _linear_cost
    if rule is _linear
    else _recurrent_cost
    if rule is _recurrent
    else _cell_cost(_KINDS[name.split("_")[1]])
    for name, rule in ANSWERS.items()
}
"""Costs of the same operators."""
