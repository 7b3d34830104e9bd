"""Runs functions on meta tensors with the kernels that torch would choose on a CPU.

For some functions, the kernel depends on device, shape and dtype. The meta device has no kernels, so torch
takes its most general implementation there. Here torch records the operators of the same call on a CPU
(`record_calls_on_cpu`), and these run on meta tensors.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch

from explorer.base.replacement import Replacement
from explorer.engine.compat.torch import (
    RecordedCalls,
    compute_attention_workspace,
    list_kernel_settings,
    map_tensors,
    read_sparse_parts,
    record_calls_on_cpu,
)
from explorer.engine.costs.aten import meta_shapes

FUNCTIONS = ("scaled_dot_product_attention", "lstm", "gru", "rnn_tanh", "rnn_relu")
"""Torch functions with several kernels, which keep different tensors for the backward pass."""

_MAX_OPERATORS = 32_768
"""Maximum number of operators of a recorded function; a recurrent layer has a dozen per step."""

_MAX_CACHED = 256
"""Maximum number of recorded calls in the cache."""

_PROBE_MACS = 50_000_000
"""Maximum MACs of a probe that measures the size of a kernel's workspace."""

_recorded_calls: dict[Any, RecordedCalls | None] = {}


def run(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Runs a function, such as those in `FUNCTIONS`, through the operators that torch uses for it on a CPU.

    Calls with tensor subclasses, or without meta tensors, run as they are.
    """
    types = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    key: list[Any] = [torch.is_grad_enabled(), types, list_kernel_settings()]
    tensors: list[torch.Tensor] = []

    def describe(tensor: torch.Tensor) -> tuple[Any, ...]:
        tensors.append(tensor)
        return tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad

    key.append(map_tensors((args, tuple(sorted(kwargs.items()))), describe))
    # leave tensor subclasses and calls without meta tensors to torch
    is_plain = all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in tensors)
    if not is_plain or not any(t.is_meta for t in tensors):
        return function(*args, **kwargs)
    signature = function, repr(key)
    if signature not in _recorded_calls:
        if len(_recorded_calls) >= _MAX_CACHED:
            _recorded_calls.clear()
        _recorded_calls[signature] = record_calls_on_cpu(function, args, kwargs, _MAX_OPERATORS)
    calls = _recorded_calls[signature]
    # a function that calls no operator (size, type) has the same result on any device
    if calls is None or not calls.calls:
        return function(*args, **kwargs)
    return calls.repeat(args, kwargs, _call_once_per_parameter if types is not None else None)


class _Casts(threading.local):
    """Parameters and their casts by autocast, by id of the parameter, in this thread."""

    def __init__(self) -> None:
        self.by_parameter: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}


_CASTS = _Casts()
_CLEAR: Any = torch.clear_autocast_cache


def _clear_casts() -> None:
    _CASTS.by_parameter.clear()
    _CLEAR()


_CLEARED = Replacement(lambda: [(torch, "clear_autocast_cache", _clear_casts)])


@contextmanager
def keep_casts() -> Iterator[None]:
    """Casts a parameter once in each block of autocast, as torch does, and keeps the cast until its end."""
    with _CLEARED.replaced():
        try:
            yield
        finally:
            _CASTS.by_parameter.clear()


def _call_once_per_parameter(operator: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Calls an operator of a function that runs under autocast; casts of parameters are kept."""
    source = args[0] if args and operator is torch.ops.aten._to_copy.default else None
    if (
        not isinstance(source, torch.Tensor)
        or not (source.requires_grad and source.is_leaf and source.dtype is torch.float32)
        or kwargs.get("dtype") is not torch.get_autocast_dtype("cpu")
        or not torch.is_autocast_cache_enabled()
    ):
        return operator(*args, **kwargs)
    casts = _CASTS.by_parameter
    if id(source) not in casts:
        casts[id(source)] = source, operator(*args, **kwargs)
    return casts[id(source)][1]


# -- results whose size the kernel determines


def _run_recurrent_layer(func: Any, args: Any, kwargs: Any) -> Any:
    """Runs a oneDNN recurrent layer, and gives its workspace the size that it has on a CPU."""
    *outputs, empty = func(*args, **kwargs)
    size = 0
    # without gradients the kernel keeps no workspace; in evaluation mode it does
    if torch.is_grad_enabled():
        source = args[0]
        steps, rows = (int(n) for n in source.shape[:2])
        size = _estimate_workspace(
            *(steps, rows, int(source.shape[2]), int(args[10]), source.dtype), args[1:5], bool(args[12])
        )
    return (*outputs, empty.new_empty(size, dtype=torch.uint8))


def _estimate_workspace(
    steps: int,
    rows: int,
    width: int,
    hidden: int,
    dtype: torch.dtype,
    weights: Iterable[torch.Tensor],
    has_biases: bool,
) -> int:
    """Returns the workspace bytes of one layer in one direction, extrapolated for long sequences."""
    shapes = tuple(tuple(w.shape) for w in weights)
    macs_per_step = rows * sum(math.prod(shape) for shape in shapes if len(shape) == 2)
    max_steps = _PROBE_MACS // max(1, macs_per_step)
    if steps <= max(max_steps, 8):
        return _probe_workspace(steps, rows, width, hidden, dtype, shapes, has_biases)
    # growth per step between two lengths; each part is rounded up to full pages
    short_steps, long_steps = max(2, max_steps // 2), max(4, max_steps)
    first = _probe_workspace(short_steps, rows, width, hidden, dtype, shapes, has_biases)
    last = _probe_workspace(long_steps, rows, width, hidden, dtype, shapes, has_biases)
    return last + (last - first) * (steps - long_steps) // (long_steps - short_steps)


@lru_cache(maxsize=64)
def _probe_workspace(
    steps: int,
    rows: int,
    width: int,
    hidden: int,
    dtype: torch.dtype,
    shapes: tuple[tuple[int, ...], ...],
    has_biases: bool,
) -> int:
    # the kernel only creates its workspace if gradients are enabled
    with torch.enable_grad():
        state = torch.zeros(rows, hidden, dtype=dtype)
        outputs = torch.ops.aten.mkldnn_rnn_layer(
            torch.zeros(steps, rows, width, dtype=dtype),
            *(torch.zeros(shape, dtype=dtype) for shape in shapes),
            *(state, state, False, [], 2, hidden, 1, has_biases, False, False, True),
        )
    return int(outputs[3].untyped_storage().nbytes())


def _run_embedding_bag(func: Any, args: Any, kwargs: Any) -> Any:
    """Runs an embedding bag, and gives its auxiliary tensors the sizes that they have on a CPU."""
    outputs = func(*args, **kwargs)
    table, indices, offsets = args[:3]
    with torch.no_grad():
        cpu_outputs = func(
            torch.zeros(1, table.shape[1], dtype=table.dtype),
            torch.zeros(indices.shape, dtype=indices.dtype),
            torch.zeros(offsets.shape, dtype=offsets.dtype),
            *(torch.zeros(a.shape, dtype=a.dtype) if isinstance(a, torch.Tensor) else a for a in args[3:]),
            **{
                k: torch.zeros(v.shape, dtype=v.dtype) if isinstance(v, torch.Tensor) else v
                for k, v in kwargs.items()
            },
        )
    return tuple(_add_storage(m, r) for m, r in zip(outputs, cpu_outputs, strict=True))


def _add_storage(tensor: torch.Tensor, cpu_tensor: torch.Tensor) -> torch.Tensor:
    """Returns a meta tensor with the layout of `cpu_tensor` and a storage of the same size."""
    elements = cpu_tensor.untyped_storage().nbytes() // cpu_tensor.element_size()
    memory = tensor.new_empty(elements, dtype=cpu_tensor.dtype)
    return memory.as_strided(cpu_tensor.shape, cpu_tensor.stride(), cpu_tensor.storage_offset())


def _run_grouped_product(func: Any, args: Any, kwargs: Any) -> Any:
    """Runs a grouped product. Before torch 2.15, only the CPU kernel accepts float32."""
    rule = meta_shapes.RULES.get(func)
    types = None if rule is None else rule(*args, **kwargs)
    if types is None or isinstance(types, str):
        return func(*args, **kwargs)
    ((shape, strides, dtype),) = types
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


def _run_column_to_image(func: Any, args: Any, kwargs: Any) -> Any:
    """Runs `fold`, whose CPU kernel creates the image in memory of the size of the columns."""
    image = func(*args, **kwargs)
    elements = max(args[0].numel(), image.numel())
    return image.new_empty(elements).as_strided(image.shape, image.stride())


def _run_embedding_bag_backward(func: Any, args: Any, kwargs: Any) -> Any:
    """Returns the gradient of the table of an embedding bag, which may be sparse: a row for each index."""
    gradient, indices, rows, is_sparse = args[0], args[1], args[6], args[9]
    if not is_sparse:
        return func(*args, **kwargs)
    width, count = gradient.shape[-1], indices.numel()
    indices, values = gradient.new_empty((1, count), dtype=torch.int64), gradient.new_empty((count, width))
    return _create_sparse(indices, values, (int(rows), width))


def _run_clone(func: Any, args: Any, kwargs: Any) -> Any:
    """Copies a tensor. A sparse gradient gets no new memory: autograd copies it only in this run."""
    source = args[0]
    if source.layout is not torch.sparse_coo:
        return func(*args, **kwargs)
    return _create_sparse(*read_sparse_parts(source), source.shape)


def _run_addition(func: Any, args: Any, kwargs: Any) -> Any:
    """Adds in place. Torch has no meta kernel that adds a sparse gradient to a parameter."""
    is_sparse = isinstance(args[1], torch.Tensor) and args[1].layout is torch.sparse_coo
    return args[0] if is_sparse and args[0].layout is torch.strided else func(*args, **kwargs)


def _create_sparse(indices: torch.Tensor, values: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    return torch.sparse_coo_tensor(indices, values, tuple(shape), device="meta", check_invariants=False)


SIZED: Mapping[str, Callable[[Any, Any, Any], Any]] = {
    "aten::_grouped_mm": _run_grouped_product,
    "aten::_embedding_bag_backward": _run_embedding_bag_backward,
    "aten::add_": _run_addition,
    "aten::clone": _run_clone,
    "aten::col2im": _run_column_to_image,
    "aten::mkldnn_rnn_layer": _run_recurrent_layer,
    "aten::_embedding_bag": _run_embedding_bag,
    "aten::_embedding_bag_forward_only": _run_embedding_bag,
}
"""Operators whose results differ between the CPU and the meta device, by name."""


def run_operator(func: Any, args: Any, kwargs: Any) -> Any:
    """Returns the result of an ATen operator on meta tensors, with the sizes of the CPU kernel."""
    name = func.name().partition(".")[0]
    sized = SIZED.get(name)
    if sized is not None:
        return sized(func, args, kwargs)
    return match_cpu_kernel(name, func(*args, **kwargs), args)


def match_cpu_kernel(name: str, results: Any, args: Sequence[Any]) -> Any:
    """Returns the results of an operator on meta tensors, with dtypes and memory of the CPU kernel.

    For attention over float64, torch 2.9's meta kernel returns float32 row sums, while the CPU kernel returns
    float64. Statistics of a normalization have the dtype of its weights, or of its input without weights. A
    loss keeps the memory of its elements after it has reduced them to one number.
    """
    training = _NORMALIZATIONS.get(name)
    if training is not None:
        result, *statistics = results
        kinds = [a.dtype for a in args[1:] if isinstance(a, torch.Tensor)]
        kind = torch.float32 if torch.float32 in kinds else args[0].dtype
        if training and not args[training]:  # in evaluation mode, a batch normalization has no statistics
            return result, *(result.new_empty(0, dtype=kind) for _ in statistics)
        return result, *(_with_dtype(tensor, kind) for tensor in statistics)
    if name == "aten::native_group_norm_backward":
        gradient, *others = results
        return gradient if gradient is None else _with_dtype(gradient, args[1].dtype), *others
    if name in _LOSSES and isinstance(results, torch.Tensor) and not results.dim():
        elements = torch.broadcast_shapes(args[0].shape, args[1].shape).numel()  # type: ignore[no-untyped-call]
        return results.new_empty(elements).as_strided((), ()) if elements > 1 else results
    if name != "aten::_scaled_dot_product_flash_attention_for_cpu":
        return results
    result, sums = results
    return result, _with_dtype(sums, torch.float64) if result.dtype == torch.float64 else sums


_NORMALIZATIONS: Mapping[str, int] = {
    "aten::native_layer_norm": 0,
    "aten::native_group_norm": 0,
    "aten::native_batch_norm": 5,
    "aten::_native_batch_norm_legit": 5,
    "aten::_batch_norm_with_update": 0,
}
"""Position of the argument that turns batch statistics on, or 0 if they are always on, by operator."""

_LOSSES = frozenset(
    f"aten::{name}" for name in ("binary_cross_entropy", "mse_loss", "smooth_l1_loss", "soft_margin_loss")
)


def _with_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if tensor.dtype == dtype:
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=tensor.device)


# -- temporary memory of kernels


def _count_attention_workspace(tensors: Sequence[torch.Tensor]) -> int:
    query, key = tensors[:2]
    return compute_attention_workspace(query.shape[-2], key.shape[-2], query.shape[-1], query.dtype)


def _count_backward_workspace(tensors: Sequence[torch.Tensor]) -> int:
    _, query, key = tensors[:3]
    return compute_attention_workspace(
        query.shape[-2], key.shape[-2], query.shape[-1], query.dtype, backward=True
    )


_WORKSPACES: Mapping[str, Callable[[Sequence[torch.Tensor]], int]] = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": _count_attention_workspace,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _count_backward_workspace,
}
"""Functions that compute the temporary memory of an operator's kernel in one thread, in bytes."""


def count_workspace(name: str, tensors: Sequence[torch.Tensor]) -> int:
    """Returns the temporary bytes that an operator's kernel allocates in one thread, or 0 if unknown."""
    size = _WORKSPACES.get(name)
    return 0 if size is None else size(tensors)
