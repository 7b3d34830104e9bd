"""Answers of ATen operators kept by signature: torch's shape functions are slow, and models repeat.

Most of torch's meta kernels are written in Python and take more time than everything that the analysis
does itself. An operator that was asked with the same sizes before is answered with fresh tensors of the
sizes that it returned then, and costs what it cost then.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from explorer.engine.analysis.macs import Cost

__all__ = ["Answer", "Memo"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What an operator returned for one signature, and what it cost."""

    sizes: tuple[tuple[Any, Any, torch.dtype], ...]
    container: type | None
    cost: Cost

    def fresh(self) -> Any:
        """New tensors of the same sizes."""
        made = [torch.empty_strided(s, t, dtype=d, device="meta") for s, t, d in self.sizes]
        return made[0] if self.container is None else self.container(made)


class Memo:
    """Answers by signature, for one run of one model."""

    def __init__(self) -> None:
        self.answers: dict[Hashable, Answer] = {}
        self.reusable: dict[Any, bool] = {}

    def signature(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        """What decides the shapes that an operator returns and its cost; None if they must not be reused."""
        reusable = self.reusable.get(func)
        if reusable is None:
            schema = func._schema
            aliases = schema.is_mutable or any(r.alias_info for r in schema.returns)
            reusable = self.reusable[func] = func.namespace == "aten" and not aliases
        if not reusable:
            return None
        key = (func, _signature(args), _signature(tuple(kwargs.items())) if kwargs else ())
        return None if key[1] is None or key[2] is None else key

    def remember(self, key: Hashable, given: Sequence[torch.Tensor], out: Any, cost: Cost) -> None:
        """Keeps an answer for the next operator with the same signature, unless it is a view."""
        parts = out if isinstance(out, (tuple, list)) else (out,)
        if not given or not all(isinstance(t, torch.Tensor) for t in parts):
            return
        sources = {t.untyped_storage()._cdata for t in given}
        if any(not t.is_meta or t.untyped_storage()._cdata in sources for t in parts):
            return
        sizes = tuple((t.shape, t.stride(), t.dtype) for t in parts)
        self.answers[key] = Answer(sizes, type(out) if isinstance(out, (tuple, list)) else None, cost)


def _signature(values: Any) -> tuple[Hashable, ...] | None:
    """Sizes and types of tensors, type and value of everything else (1, 1.0 and True are equal, but not
    the same); None when a tensor has values.
    """
    key: list[Hashable] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            if not value.is_meta:
                return None
            key.append((value.shape, value.stride(), value.dtype))
        elif isinstance(value, (tuple, list)):
            inner = _signature(value)
            if inner is None:
                return None
            key.append(inner)
        else:
            key.append((type(value), value))
    return tuple(key)
