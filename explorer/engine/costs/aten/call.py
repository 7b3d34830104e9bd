"""Call of an ATen operator, how it is read: the nouns that every table of rules shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from explorer.engine.operators.formulas import Cost

__all__ = ["Rule", "argument", "leading", "sizes"]

Rule = Callable[[Sequence[Any], Mapping[str, Any], Any], Cost]
"""Arguments, keyword arguments and result of a call to its cost."""


def sizes(tensor: Any) -> tuple[int, ...]:
    """The shape of a tensor."""
    return tuple(tensor.shape)


def leading(out: Any) -> Any:
    """The first result of an operator that returns several."""
    return out[0] if isinstance(out, (tuple, list)) else out


def argument(
    args: Sequence[Any], kwargs: Mapping[str, Any], index: int, name: str, default: Any = None
) -> Any:
    """An argument given by position or by name."""
    return args[index] if index < len(args) else kwargs.get(name, default)
