"""Losses, rows of `rules.RULES`: operations per element, and their sum where it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from explorer.engine.operators import formulas
from explorer.engine.operators.formulas import Cost

__all__ = ["LOSSES"]


def _loss(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, what: str, per_element: int) -> Cost:
    result = out[0] if isinstance(out, (tuple, list)) else out
    shape = tuple(args[0].shape)
    # without a reduction the result is as large as the input
    reduced = tuple(result.shape) != shape
    return formulas.elementwise(f"{what}{', sum' if reduced else ''}", shape, per_element + reduced)


def _rule(what: str, per_element: int) -> Any:
    return lambda args, kwargs, out: _loss(args, kwargs, out, what, per_element)


def _likelihood(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    """nll_loss: one element of every row is picked, negated and added up."""
    rows = tuple(args[1].shape)
    weighted = len(args) > 2 and args[2] is not None
    return formulas.elementwise("negate, weigh, sum" if weighted else "negate, sum", rows, 2 + weighted)


LOSSES: dict[str, Any] = {
    "aten::mse_loss": _rule("subtract, square", 2),
    "aten::smooth_l1_loss": _rule("subtract, absolute, compare, square, scale", 5),
    "aten::huber_loss": _rule("subtract, absolute, compare, square, scale", 5),
    "aten::binary_cross_entropy": _rule("2 log, 2 subtract, 2 multiply, add, negate", 8),
    "aten::binary_cross_entropy_with_logits": _rule("subtract, multiply, log sigmoid, subtract", 4),
    "aten::soft_margin_loss": _rule("negate, multiply, exp, add, log", 5),
    "aten::multi_margin_loss": _rule("subtract, add, compare", 3),
    "aten::multilabel_margin_loss_forward": _rule("subtract, subtract, compare", 3),
    "aten::nll_loss_forward": _likelihood,
    "aten::nll_loss2d_forward": _likelihood,
    "aten::dist": _rule("subtract, power", 2),
}
"""Cost of a loss by its schema name."""
