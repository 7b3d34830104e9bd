"""Rules for custom operators: the functions to import in the file for `--rules my_rules.py --trust`.

    from explorer.rules import Call, Cost, adding, matmul, rule

    @rule("MyLinear", domain="my.ops")
    def my_linear(call: Call) -> Cost:
        cost = matmul(call.shape(0), call.shape(1))
        return adding(cost, "bias", call.output()) if call.has(2) else cost

    @rule("MyHardware", domain="my.ops")
    def my_hardware(call: Call) -> Cost:
        rows, depth = call.shape(0)
        return Cost(macs=rows * depth * call.attributes["N"], formula=f"{rows} x {depth} x N")

A rule is a function from a `Call` (operator, domain, attributes, shapes of inputs and outputs) to a `Cost`
(MACs, elementwise operations, and the formula as text). If a shape is unknown, `call.shape(i)` and
`call.output(i)` end the rule. The node then has status 'unknown', and its reason names the missing shape.

A dimension may be a name instead of a number. The functions below accept names and return None for the count;
your own arithmetic on a name is an error. `bounded(cost, reason)` marks a cost as an upper bound,
`unknown(reason)` reports that the cost is unknown, and `FREE` is the cost of an operator that only moves
data.

A rule replaces the built-in rule of the same operator. Two rules for one operator are an error. A rule for a
local function, or for If, Loop, Scan and SequenceMap, is used instead of the cost of the body. Rules apply to
the session that was opened with them.

This module is stable: the names in `__all__` keep their meaning.
"""

from __future__ import annotations

from collections.abc import Callable

from explorer.base.errors import Misuse
from explorer.engine.operators.call import Call, Rule
from explorer.engine.operators.cost_formulas import (
    FREE,
    Cost,
    adding,
    attention,
    bounded,
    conv,
    conv_transpose,
    elementwise,
    fourier,
    gemm,
    linear,
    matmul,
    pooling,
    recurrent,
    times,
    total,
    unknown,
)
from explorer.engine.operators.einsum import einsum
from explorer.engine.operators.user import register

__all__ = [
    "FREE",
    "Call",
    "Cost",
    "Rule",
    "adding",
    "attention",
    "bounded",
    "conv",
    "conv_transpose",
    "einsum",
    "elementwise",
    "fourier",
    "gemm",
    "linear",
    "matmul",
    "pooling",
    "recurrent",
    "rule",
    "times",
    "total",
    "unknown",
]


def rule(op: str, *, domain: str = "") -> Callable[[Rule], Rule]:
    """Return a decorator that registers a function as the rule for operator `op` of `domain` ('' for ONNX).

    Outside of a file loaded with `--rules`, the decorator only returns the function, so that tests can call
    it.

    Raises:
        Misuse: `op` is not a name, the decorated object is not a function, or the file has another rule for
            the operator.
    """
    if not isinstance(op, str) or not op or not isinstance(domain, str):
        raise Misuse(
            f"rule() takes the name of an operator, not {op!r}", hint="@rule('MyOp', domain='my.ops')"
        )

    def add(function: Rule) -> Rule:
        if not callable(function):
            raise Misuse(f"the rule for {op} is of type {type(function).__name__}, not a function")
        register(("" if domain == "ai.onnx" else domain, op), function)
        return function

    return add
