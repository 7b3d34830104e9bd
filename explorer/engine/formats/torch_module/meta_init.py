"""Meta initialization: builds a model whose tensors have no values, and draws nothing for them.

torch computes the shapes of random numbers in Python, on its slowest path, and the first call imports its
compiler, which takes longer than everything else together. On the meta device there is nothing to fill.
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


class UnfilledTensors(DispatchMode):
    """Skips filling tensors of the meta device."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if schema_of(func).name in _FILLS and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


_LARGE = 1 << 20
"""Most elements of a tensor with constant or random values that is no weight."""

_ALIKE = frozenset((torch.zeros, torch.ones, torch.rand, torch.randn))


class UninitialisedOnMeta(TorchFunctionMode):
    """Puts tensors of `torch.empty`, with which weights are made, on the meta device; they hold no values to
    read. So do large tensors with constant or random values. Other tensors have values.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = dict(kwargs or {})
        if (func is torch.empty or func in _ALIKE) and keywords.get("device") is None:
            sizes = args[0] if args and not isinstance(args[0], int) else args
            if func is torch.empty or math.prod(keywords.get("size", sizes)) > _LARGE:
                keywords["device"] = "meta"
        return func(*args, **keywords)
