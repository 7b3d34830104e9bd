"""Meta initialisation: a model is built where tensors have no values, and nothing is drawn for them.

torch works out the shapes of random numbers in Python, on its slowest path, and the first call imports its
compiler: longer than everything else together. On the meta device there is nothing to fill.
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
    """Leaves tensors of the meta device as they are where they would be filled."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if schema_of(func).name in _FILLS and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


_LARGE = 1 << 20
"""Elements above which a tensor that is filled alike, or by chance, is one of weights."""

_ALIKE = frozenset((torch.zeros, torch.ones, torch.rand, torch.randn))


class UninitialisedOnMeta(TorchFunctionMode):
    """Tensors made by `torch.empty` live on the meta device, others have values: nothing can be read from
    the former anyway, and weights are made with it. So do large ones that are filled alike, or by chance.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords = dict(kwargs or {})
        if (func is torch.empty or func in _ALIKE) and keywords.get("device") is None:
            sizes = args[0] if args and not isinstance(args[0], int) else args
            if func is torch.empty or math.prod(keywords.get("size", sizes)) > _LARGE:
                keywords["device"] = "meta"
        return func(*args, **keywords)
