"""Converts calls of ATen operators in a running module to `AtenCall`, and looks up their costs.

Pointwise operators and reductions without an entry in the table are recognized by torch's tags.
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
from explorer.engine.costs.aten.table import TABLE, find_record
from explorer.engine.operators import cost_formulas
from explorer.engine.operators.cost_formulas import Cost
from explorer.engine.operators.gradients import Gradient, GradientPurpose

_REDUCTION_TAG = getattr(torch.Tag, "reduction", None)
"""The reduction tag, or None in torch 2.9, which lacks it; there only reductions in the table are known."""


@cache
def find_operator(func: Any) -> OperatorRecord | None:
    """Returns the record of an operator (an OpOverload), or None if unknown."""
    name = schema_of(func).name
    operator = quantized_kernels.TABLE.get(name) or find_record(name)
    if operator is None and _is_pointwise(func):
        return POINTWISE
    return REDUCTION if operator is None and _REDUCTION_TAG in func.tags else operator


def _is_pointwise(func: Any) -> bool:
    """Whether torch tags the operator as pointwise, or its counterpart in aten.

    The counterpart of an in-place operator is its out-of-place form. The counterpart of a prims operator has
    the same name.
    """
    if torch.Tag.pointwise in func.tags:
        return True
    name = schema_of(func).name.partition("::")[2]
    if func.namespace == "prims":  # torch's references call them, such as for sums with a zero tensor
        twins = getattr(torch.ops.aten, name, None)
        return twins is not None and any(
            torch.Tag.pointwise in getattr(twins, overload).tags for overload in twins.overloads()
        )
    if not name.endswith("_") or func.namespace != "aten":
        return False
    twin = getattr(
        getattr(torch.ops.aten, name[:-1], None), (schema_of(func).overload_name or "default"), None
    )
    return twin is not None and torch.Tag.pointwise in twin.tags


@cache
def _list_names(func: Any) -> tuple[str, ...]:
    return tuple(argument.name for argument in schema_of(func).arguments)


def build_call(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> AtenCall:
    """Returns the call of an operator, from its tensors (on any device) and its result."""
    arguments = {**dict(zip(_list_names(func), args, strict=False)), **kwargs}
    result = next(iter(out), None) if isinstance(out, (tuple, list)) else out
    return AtenCall(schema_of(func).name.partition("::")[2], arguments, result)


def compute_cost(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Cost:
    """Returns the cost of one operator call.

    Returns:
        The cost; unknown, with the operator's name, if there is no rule.

    Raises:
        RuntimeError: The tensors of a product have different dtypes, which torch rejects outside the meta
            device.
    """
    operator = find_operator(func)
    if operator is None:
        return cost_formulas.unknown(f"no rule for the operator {schema_of(func).name}")
    call = build_call(func, args, kwargs, result)
    if operator.one_type:
        # on the meta device, torch accepts a product of float16 with float32
        dtypes = {tensor.dtype: None for tensor in call.tensors()}
        if len(dtypes) > 1:
            names = " and ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise RuntimeError(f"the operands of a product have to be of one type, not of {names}")
    return operator.cost(call)


def compute_gradient(
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    result: Any,
    macs: int,
    get_purpose: Callable[[Any], GradientPurpose],
) -> Gradient | None:
    """Returns the matrix-product work of a call's backward pass, or None if there is no rule.

    Args:
        func: Operator.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        result: Result of the call.
        macs: MACs of the call.
        get_purpose: Function that returns the purpose of a tensor's gradient; see `GradientPurpose`.
    """
    operator = find_operator(func)
    if operator is None or operator.gradient is None:
        return None
    return operator.gradient(build_call(func, args, kwargs, result), macs, get_purpose)


def compute_function_cost(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Cost | None:
    """Returns the cost of a torch function, or None if its record has no formula of its own."""
    operator = TABLE.get(f"aten::{name}")
    if operator is None or not operator.has_own_formula or not isinstance(result, torch.Tensor):
        return None
    return operator.cost(build_call(getattr(torch.ops.aten, name).default, args, kwargs, result))
