"""Dispatch of ATen operators while a module runs: their calls, as the table of operators takes them.

Pointwise operators and reductions that have no row are recognised by the tags that torch itself gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from explorer.engine.compat.torch import schema_of
from explorer.engine.costs.aten import quantized_kernels
from explorer.engine.costs.aten.call import AtenCall, OperatorRecord
from explorer.engine.costs.aten.elementwise import POINTWISE, REDUCTION
from explorer.engine.costs.aten.table import TABLE, find
from explorer.engine.operators import cost_formulas
from explorer.engine.operators.cost_formulas import Cost
from explorer.engine.operators.gradients import Gradient, Want

_REDUCTION_TAG = getattr(torch.Tag, "reduction", None)
"""None in torch 2.9. The reductions of torch itself have rows; another library's are then unknown."""


@cache
def operator_of(func: Any) -> OperatorRecord | None:
    """The record of an operator (an OpOverload)."""
    name = schema_of(func).name
    operator = quantized_kernels.TABLE.get(name) or find(name)
    if operator is None and _is_pointwise(func):
        return POINTWISE
    return REDUCTION if operator is None and _REDUCTION_TAG in func.tags else operator


def _is_pointwise(func: Any) -> bool:
    """Whether torch says so, of the operator or of the one that does the same in place of its argument."""
    if torch.Tag.pointwise in func.tags:
        return True
    name = schema_of(func).name.partition("::")[2]
    if not name.endswith("_") or func.namespace != "aten":
        return False
    twin = getattr(
        getattr(torch.ops.aten, name[:-1], None), (schema_of(func).overload_name or "default"), None
    )
    return twin is not None and torch.Tag.pointwise in twin.tags


@cache
def _names(func: Any) -> tuple[str, ...]:
    return tuple(argument.name for argument in schema_of(func).arguments)


def call_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> AtenCall:
    """A call of an operator, with its tensors (on any device) and what it returned."""
    arguments = {**dict(zip(_names(func), args, strict=False)), **kwargs}
    result = next(iter(out), None) if isinstance(out, (tuple, list)) else out
    return AtenCall(schema_of(func).name.partition("::")[2], arguments, result)


def cost(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
    """What one call of an operator costs.

    Returns:
        Its cost; unknown, with the operator named, when there is no rule for it.

    Raises:
        RuntimeError: The tensors of a product have different types; torch raises this error on values.
    """
    operator = operator_of(func)
    if operator is None:
        return cost_formulas.unknown(f"no rule for the operator {schema_of(func).name}")
    call = call_of(func, args, kwargs, out)
    if operator.one_type:
        # on the meta device a product of float16 with float32 goes unnoticed
        kinds = {tensor.dtype: None for tensor in call.tensors()}
        if len(kinds) > 1:
            names = " and ".join(str(kind).removeprefix("torch.") for kind in kinds)
            raise RuntimeError(f"the operands of a product have to be of one type, not of {names}")
    return operator.cost(call)


def gradient(
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    out: Any,
    macs: int,
    want: Callable[[Any], Want],
) -> Gradient | None:
    """What the backward pass of one call multiplies; None if there is no rule for it.

    Args:
        func: The operator.
        args: As it was called.
        kwargs: As it was called.
        out: What it returned.
        macs: Of the call.
        want: Tells for a tensor who needs its gradient.
    """
    operator = operator_of(func)
    if operator is None or operator.gradient is None:
        return None
    return operator.gradient(call_of(func, args, kwargs, out), macs, want)


def function_cost(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost | None:
    """The cost of a torch function that has a formula of its own; None for any other."""
    operator = TABLE.get(f"aten::{name}")
    if operator is None or not operator.whole or not isinstance(out, torch.Tensor):
        return None
    return operator.cost(call_of(getattr(torch.ops.aten, name).default, args, kwargs, out))
