"""Meta initialization: context managers for building a model without initializing its weights.

Tensors on the meta device have no values, but their initialization takes time: torch computes the shapes of
random tensors in Python, and the first call imports torch's compiler, which takes longer than building the
model. `UnfilledTensors` skips the initialization.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from explorer.engine.compat.torch import DispatchMode, schema_of

_FILLS = frozenset(
    f"aten::{name}_"
    for name in (
        "bernoulli", "cauchy", "exponential", "fill", "geometric", "log_normal", "normal", "random",
        "uniform", "zero",
    )
)  # fmt: skip
"""Operators that fill a tensor in place."""


class UnfilledTensors(DispatchMode):
    """Skips the operators that fill tensors on the meta device."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if schema_of(func).name in _FILLS and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


_MAX_REAL_ELEMENTS = 1 << 20
"""Number of elements above which a tensor with constant or random values is created on the meta device."""

_FILLED = frozenset((torch.zeros, torch.ones, torch.rand, torch.randn))
"""Functions that create a tensor with constant or random values."""


class UninitializedOnMeta(TorchFunctionMode):
    """Creates uninitialized tensors on the meta device, unless the caller names a device.

    Layers create their weights with `torch.empty`. Large tensors with constant or random values are also
    created on the meta device. All other tensors have values.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = dict(kwargs or {})
        if (func is torch.empty or func in _FILLED) and keywords.get("device") is None:
            sizes = args[0] if args and not isinstance(args[0], int) else args
            if func is torch.empty or math.prod(keywords.get("size", sizes)) > _MAX_REAL_ELEMENTS:
                keywords["device"] = "meta"
        return func(*args, **keywords)
