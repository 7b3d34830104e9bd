"""Building a model where tensors have no values: nothing is drawn for them.

torch works out the shapes of random numbers in Python, on its slowest path, and the first call imports its
compiler: longer than everything else together. On the meta device there is nothing to fill.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Unfilled"]

_FILLS = frozenset(
    f"aten::{name}_"
    for name in (
        "bernoulli", "cauchy", "exponential", "fill", "geometric", "log_normal", "normal", "random",
        "uniform", "zero",
    )
)  # fmt: skip


class Unfilled(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Leaves tensors of the meta device as they are where they would be filled."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # what torch wraps around the method below otherwise imports the compiler
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func._schema.name in _FILLS and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))
