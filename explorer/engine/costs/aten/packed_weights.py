"""Unpacks the weights of quantized layers, which native code keeps on the CPU behind a handle.

A quantized Linear, convolution, embedding, LSTM or cell has a handle in place of parameters, and operators of
dynamic quantization have no meta kernels. This module unpacks the handle to read the sizes of its tensors,
and creates the operators' results in closed form. A quantized PReLU keeps its weight in a plain attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from explorer.engine.compat.torch import read_packed_handle
from explorer.engine.costs.aten.call import AtenCall
from explorer.engine.costs.aten.products import DYNAMIC_LINEAR
from explorer.engine.costs.aten.recurrent import CELLS

_UNPACK = ("linear_unpack", "linear_unpack_fp16", "conv2d_unpack", "conv3d_unpack", "embedding_bag_unpack")
"""Operators that unpack a handle; each accepts the handles of one kind of layer.

One-dimensional and transposed convolutions use the handles of two- and three-dimensional convolutions.
"""


def unpack_weights(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the names and tensors of a quantized module's weights and biases."""
    attributes = read_packed_handle(module) if isinstance(module, torch.jit.ScriptModule) else vars(module)
    for name, value in attributes.items():
        if isinstance(value, torch.ScriptObject):
            for part, tensor in unpack_handle(value):
                is_one_dimensional = part == "weight" and tensor.dim() == 4 and _is_of_one_dimension(module)
                yield (f"{name.strip('_')}.{part}", tensor.squeeze(2) if is_one_dimensional else tensor)
        elif isinstance(value, torch.Tensor) and value.is_quantized:
            yield name.strip("_"), value


def count_bytes(tensor: torch.Tensor) -> int:
    """Returns bytes of an unpacked tensor; dtypes of four and two bits pack several elements into a byte."""
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())


def _is_of_one_dimension(module: nn.Module) -> bool:
    """Whether a module is a convolution over one dimension, whose handle stores it as two-dimensional."""
    size = getattr(module, "kernel_size", None)
    return isinstance(size, (tuple, list)) and len(size) == 1


def unpack_handle(handle: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the weights and biases behind a handle, with their names."""
    for name in _UNPACK:
        try:
            parts = getattr(torch.ops.quantized, name)(handle)
        except (AttributeError, RuntimeError):
            continue
        weight, bias = (parts, None) if isinstance(parts, torch.Tensor) else parts
        yield "weight", weight
        if bias is not None:
            yield "bias", bias
        return
    try:
        # a recurrent cell: type, biases, numbers, and the handles of its two matrices
        (_, biases, _, _, handles), *_ = handle.__getstate__()
    except (RuntimeError, ValueError, TypeError):
        return
    sides = ("ih", "hh")
    for side, inner in zip(sides, handles, strict=False):
        yield from ((f"{part}_{side}", tensor) for part, tensor in unpack_handle(inner) if part == "weight")
    yield from ((f"bias_{side}", tensor) for side, tensor in zip(sides, biases, strict=False))


# -- results of the operators


def _build_linear_result(call: AtenCall) -> Any:
    source, handle = call.tensors()[0], call.get("W_prepack")
    features = next(int(tensor.shape[0]) for part, tensor in unpack_handle(handle) if part == "weight")
    return source.new_empty((*source.shape[:-1], features))


def build_recurrent_results(call: AtenCall) -> Any:
    """Returns the results of a recurrent layer, padded or packed: outputs of all steps, then final states."""
    source, states = call.tensors()[0], call.tensors("hx")
    width = int(states[0].shape[-1]) * (2 if call.get("bidirectional") else 1)
    return (source.new_empty((*source.shape[:-1], width)), *(s.new_empty(s.shape) for s in states))


def _build_cell_result(call: AtenCall) -> Any:
    states = tuple(s.new_empty(s.shape) for s in call.tensors("hx"))
    return states if len(states) > 1 else states[0]


ANSWERS: dict[str, Callable[[AtenCall], Any]] = {
    **dict.fromkeys(DYNAMIC_LINEAR, _build_linear_result),
    **dict.fromkeys(("aten::quantized_lstm", "aten::quantized_gru"), build_recurrent_results),
    **dict.fromkeys(CELLS, _build_cell_result),
}
"""Functions that create the results of operators on packed weights, by schema name."""
