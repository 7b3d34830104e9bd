"""Table of ATen operators: one record for each, with its cost, the products of its gradients, its role.

The ATen level is where every way of writing a model in PyTorch comes together. A module that runs shows the
operators that torch runs in the end (`dispatch`); an exported program is written in those that its author
called (`aten.conv2d`, `aten.linear`), and is counted here from the shapes in its file, without torch. Both
ask the same rules. What only moves data is listed; an operator that is not here is unknown, which is said
and never taken for 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from explorer.engine.costs.aten import elementwise, linear_algebra, movement, products, recurrent
from explorer.engine.costs.aten.call import AtenCall, OperatorRecord, TensorType
from explorer.engine.operators import cost_formulas
from explorer.engine.operators.cost_formulas import Cost
from explorer.facts import Shape

TABLE: Mapping[str, OperatorRecord] = {
    name if "::" in name else f"aten::{name}": operator
    for part in (movement, elementwise, linear_algebra, recurrent, products)
    for name, operator in part.TABLE.items()
}
"""Operators by the names of their schemas. A row in one of the parts is all that a new one needs."""


def find(name: str) -> OperatorRecord | None:
    """The record of an operator, or of the one that does the same but not in place of its argument."""
    return TABLE.get(name) or TABLE.get(name.removesuffix("_"))


def exported_cost(
    kind: str,
    inputs: Sequence[tuple[str, str | None, Shape | None]],
    outputs: Sequence[tuple[str, str | None, Shape | None]],
    settings: Mapping[str, Any],
) -> Cost:
    """The cost of one operator of an exported program.

    Args:
        kind: 'aten.conv2d', 'aten.add.Tensor'.
        inputs: Argument, type and shape of every tensor that goes in.
        outputs: Name, type and shape of every tensor that comes out.
        settings: Its other arguments.

    Returns:
        Its cost; unknown, with the reason, when there is no rule for it or the file lacks a shape.
    """
    library, _, rest = kind.partition(".")
    name = rest.partition(".")[0]
    operator = find(f"{library}::{name}")
    if operator is None:
        if not outputs:
            return cost_formulas.FREE
        return cost_formulas.unknown(f"there is no rule for {kind} without torch")
    tensors_by_argument: dict[str, list[TensorType]] = {}
    for argument, dtype, shape in inputs:
        if shape is not None:
            tensors_by_argument.setdefault(argument, []).append(TensorType(dtype, shape))
    results = [TensorType(dtype, shape) for _, dtype, shape in outputs[:1] if shape is not None]
    try:
        cost = operator.cost(
            AtenCall(name, {**settings, **tensors_by_argument}, results[0] if results else None)
        )
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return cost_formulas.unknown("its sizes are not written in the file")
    if (cost.macs or 0) < 0 or (cost.elementwise_ops or 0) < 0:
        return cost_formulas.unknown("it has a size below 0 among its arguments")
    return cost
