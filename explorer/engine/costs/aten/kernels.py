"""The operators that torch runs on a CPU for a function that chooses its kernel by device, shape and type.

Tensors without values are on a device that has no kernels, so torch takes the most general way there. Here
torch is asked what it does with the same arguments on a CPU (`calls_on_cpu`), and that is run without values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from explorer.engine.compat.torch import (
    RecordedCalls,
    attention_workspace,
    calls_on_cpu,
    mapped_tensors,
)

FUNCTIONS = ("scaled_dot_product_attention", "lstm", "gru", "rnn_tanh", "rnn_relu")
"""Functions of torch that choose among kernels which keep different tensors for the backward pass."""

_LONGEST = 32_768
"""Operators of the longest function that is answered: a recurrent layer runs a dozen for each step."""

_REMEMBERED = 256
"""Sets of arguments whose operators are remembered."""

_PROBE_MACS = 50_000_000
"""The most multiply-accumulates that are run to learn the size of a kernel's workspace."""

_memo: dict[Any, RecordedCalls | None] = {}


def run(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The result of a function of `FUNCTIONS`, by the operators that torch takes for it on a CPU."""
    types = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    key: list[Any] = [torch.is_grad_enabled(), types]
    tensors: list[torch.Tensor] = []

    def place(tensor: torch.Tensor) -> tuple[Any, ...]:
        tensors.append(tensor)
        return tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad

    key.append(mapped_tensors((args, tuple(sorted(kwargs.items()))), place))
    # tensor subclasses may behave differently, and tensors with values run on a CPU anyway
    if not tensors or not all(type(t) in (torch.Tensor, torch.nn.Parameter) and t.is_meta for t in tensors):
        return function(*args, **kwargs)
    signature = function, repr(key)
    if signature not in _memo:
        if len(_memo) >= _REMEMBERED:
            _memo.clear()
        _memo[signature] = calls_on_cpu(function, args, kwargs, _LONGEST)
    calls = _memo[signature]
    # a function that calls no operator (a size, a type) gives the same anywhere
    return calls.again(args, kwargs) if calls is not None and calls.calls else function(*args, **kwargs)


# -- results whose size a kernel decides


def _recurrent_workspace(func: Any, args: Any, kwargs: Any) -> Any:
    """A recurrent layer of oneDNN, with the workspace that it has no size for on meta."""
    *outputs, empty = func(*args, **kwargs)
    size = 0
    # without gradients nothing is kept
    if args[-1] if args else kwargs.get("train", False):
        source = args[0]
        steps, rows = (int(n) for n in source.shape[:2])
        size = _workspace(steps, rows, int(source.shape[2]), int(args[10]), source.dtype, args[1:5])
    return (*outputs, empty.new_empty(size, dtype=torch.uint8))


def _workspace(
    steps: int, rows: int, width: int, hidden: int, dtype: torch.dtype, weights: Iterable[torch.Tensor]
) -> int:
    """Bytes of the workspace of one layer in one direction; 0 where it would take too long to learn them."""
    shapes = tuple(tuple(w.shape) for w in weights)
    a_step = rows * sum(math.prod(shape) for shape in shapes if len(shape) == 2)
    most = _PROBE_MACS // max(1, a_step)
    if steps <= max(most, 8):
        return _probed(steps, rows, width, hidden, dtype, shapes)
    # the growth per step between two lengths: each part is rounded up to whole pages
    short, long = max(2, most // 2), max(4, most)
    first = _probed(short, rows, width, hidden, dtype, shapes)
    last = _probed(long, rows, width, hidden, dtype, shapes)
    return last + (last - first) * (steps - long) // (long - short)


@lru_cache(maxsize=64)
def _probed(
    steps: int, rows: int, width: int, hidden: int, dtype: torch.dtype, shapes: tuple[tuple[int, ...], ...]
) -> int:
    # the kernel makes its workspace where gradients are wanted
    with torch.enable_grad():
        state = torch.zeros(rows, hidden, dtype=dtype)
        outputs = torch.ops.aten.mkldnn_rnn_layer(
            torch.zeros(steps, rows, width, dtype=dtype),
            *(torch.zeros(shape, dtype=dtype) for shape in shapes),
            *(state, state, False, [], 2, hidden, 1, True, False, False, True),
        )
    return int(outputs[3].untyped_storage().nbytes())


def _bag(func: Any, args: Any, kwargs: Any) -> Any:
    """Sums of rows of a table; their bookkeeping tensors have other sizes on a CPU than on meta."""
    outputs = func(*args, **kwargs)
    table, indices, offsets = args[:3]
    with torch.no_grad():
        real = func(
            torch.zeros(1, table.shape[1], dtype=table.dtype),
            torch.zeros(indices.shape, dtype=indices.dtype),
            torch.zeros(offsets.shape, dtype=offsets.dtype),
            *(torch.zeros(a.shape, dtype=a.dtype) if isinstance(a, torch.Tensor) else a for a in args[3:]),
            **{
                k: torch.zeros(v.shape, dtype=v.dtype) if isinstance(v, torch.Tensor) else v
                for k, v in kwargs.items()
            },
        )
    return tuple(_with_storage(m, r) for m, r in zip(outputs, real, strict=True))


def _with_storage(tensor: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """A tensor of the shape of `real` without values, with as much memory behind it."""
    elements = real.untyped_storage().nbytes() // real.element_size()
    memory = tensor.new_empty(elements, dtype=real.dtype)
    return memory.as_strided(real.shape, real.stride(), real.storage_offset())


SIZED: Mapping[str, Callable[[Any, Any, Any], Any]] = {
    "aten::mkldnn_rnn_layer": _recurrent_workspace,
    "aten::_embedding_bag": _bag,
    "aten::_embedding_bag_forward_only": _bag,
}
"""Operators whose results a CPU makes in other sizes than a device without values, by name."""


def operator(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of an ATen operator without values, in the sizes that a CPU gives it."""
    name = func.name().partition(".")[0]
    sized = SIZED.get(name)
    return typed(name, func(*args, **kwargs)) if sized is None else sized(func, args, kwargs)


def typed(name: str, results: Any) -> Any:
    """The results of an operator of this name without values, in the types that a CPU gives them.

    For attention over float64 torch 2.9 says that the sums of the rows are float32, and a CPU keeps float64.
    """
    if name != "aten::_scaled_dot_product_flash_attention_for_cpu":
        return results
    result, sums = results
    if result.dtype == torch.float64 != sums.dtype:
        sums = torch.empty_strided(sums.shape, sums.stride(), dtype=result.dtype, device=sums.device)
    return result, sums


# -- memory that a kernel works in


def _attention(tensors: Sequence[torch.Tensor]) -> int:
    query, key = tensors[:2]
    return attention_workspace(query.shape[-2], key.shape[-2], query.shape[-1], query.dtype)


def _attention_backward(tensors: Sequence[torch.Tensor]) -> int:
    _, query, key = tensors[:3]
    return attention_workspace(query.shape[-2], key.shape[-2], query.shape[-1], query.dtype, backward=True)


_WORKSPACES: Mapping[str, Callable[[Sequence[torch.Tensor]], int]] = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
"""Operators whose kernels take memory of torch's allocator while they run: the bytes for one thread."""


def workspace(name: str, tensors: Sequence[torch.Tensor]) -> int:
    """Bytes that an operator of this name, called with these tensors, takes for one thread while it runs."""
    size = _WORKSPACES.get(name)
    return 0 if size is None else size(tensors)
