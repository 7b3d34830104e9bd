"""Builds the table of ATen operators, and looks up the cost of exported calls in it.

A record has the cost of a call, the matrix products of its backward pass, and flags (`OperatorRecord`).

Every PyTorch model consists of calls of ATen operators. `dispatch` runs a module on tensors without data and
records the operators that torch executes. An exported program lists the operators that its author called
(`aten.conv2d`, `aten.linear`), and this module computes their costs from the shapes in the file, without
torch. Both use the same rules. Operators that only move data have records, too. The cost of an operator
without a record is unknown, never 0.
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
"""Records by schema name. To add an operator, add an entry to the `TABLE` of one of the modules."""


def find_record(name: str) -> OperatorRecord | None:
    """Returns the record of an operator, or the record of its out-of-place form, or None."""
    return TABLE.get(name) or TABLE.get(name.removesuffix("_"))


def count_exported_call(
    kind: str,
    inputs: Sequence[tuple[str, str | None, Shape | None]],
    outputs: Sequence[tuple[str, str | None, Shape | None]],
    settings: Mapping[str, Any],
) -> Cost:
    """Returns the cost of one operator of an exported program.

    Args:
        kind: Name of the operator, such as 'aten.conv2d' or 'aten.add.Tensor'.
        inputs: Argument name, dtype and shape of every input tensor.
        outputs: Name, dtype and shape of every output tensor.
        settings: Non-tensor arguments by name.

    Returns:
        The cost; unknown, with the reason, if there is no rule or the file lacks a shape.
    """
    library, _, operator_name = kind.partition(".")
    name = operator_name.partition(".")[0]
    operator = find_record(f"{library}::{name}")
    if operator is None:
        if not outputs:  # such as an assertion: nothing is computed that counts
            return cost_formulas.FREE
        return cost_formulas.unknown(f"no rule for {kind}")
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
