"""Packed weights of dynamic quantization: native code holds them, and they cannot leave the CPU.

A dynamically quantized Linear, LSTM or cell holds no parameters but a handle; its operators have no shape
function. Here the handle is opened for the sizes of what is in it, and the operators are answered by the
closed form of the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from explorer.engine.costs.aten.call import AtenCall
from explorer.engine.costs.aten.products import DYNAMIC_LINEAR
from explorer.engine.costs.aten.recurrent import CELLS


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


def _linear(call: AtenCall) -> Any:
    source, handle = call.tensors()[0], call.get("W_prepack")
    features = next(int(tensor.shape[0]) for part, tensor in _opened(handle) if part == "weight")
    return source.new_empty((*source.shape[:-1], features))


def recurrent_results(call: AtenCall) -> Any:
    """What a recurrent layer returns, packed or not: its steps, and the states after the last."""
    source, states = call.tensors()[0], call.tensors("hx")
    width = int(states[0].shape[-1]) * (2 if call.get("bidirectional") else 1)
    return (source.new_empty((*source.shape[:-1], width)), *(s.new_empty(s.shape) for s in states))


def _cell(call: AtenCall) -> Any:
    made = tuple(s.new_empty(s.shape) for s in call.tensors("hx"))
    return made if len(made) > 1 else made[0]


ANSWERS: dict[str, Callable[[AtenCall], Any]] = {
    **dict.fromkeys(DYNAMIC_LINEAR, _linear),
    **dict.fromkeys(("aten::quantized_lstm", "aten::quantized_gru"), recurrent_results),
    **dict.fromkeys(CELLS, _cell),
}
"""Results of operators on packed weights, by schema name."""
