"""Rules for operators of your own: what you import in the file for `--rules my_rules.py --trust`.

    from explorer.rules import Call, Cost, adding, matmul, rule

    @rule("MyLinear", domain="my.ops")
    def my_linear(call: Call) -> Cost:
        cost = matmul(call.shape(0), call.shape(1))
        return adding(cost, "bias", call.output()) if call.has(2) else cost

    @rule("MyHardware", domain="my.ops")
    def my_hardware(call: Call) -> Cost:
        rows, depth = call.shape(0)
        return Cost(macs=rows * depth * call.attributes["N"], formula=f"{rows} x {depth} x N")

A rule is a function of a `Call` (operator, domain, attributes, shapes of inputs and outputs) that returns
a `Cost`: MACs, elementwise operations beside them, the formula as text. `call.shape(i)` and
`call.output(i)` end the rule if the shape is not known; the node is then 'unknown' and says which shape
is missing. A dimension may be a name: the functions below count with names and give None, arithmetic of
your own on a name is an error. `bounded(cost, reason)` makes an upper bound of a count, `unknown(reason)`
says that there is none, `FREE` is what moves data only.

A rule for an operator that has one already takes its place; one for a local function, or for If, Loop,
Scan and SequenceMap, is used instead of their bodies. Rules hold for the session that was opened with
them.

This module is stable: what is listed in `__all__` keeps its meaning.
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
    """Decorator: the function below counts operator `op` of `domain` ('' is ONNX's own).

    Outside of a file loaded with `--rules` it only hands the function back, so that a test can call it.

    Raises:
        Misuse: `op` is no name, or what stands below is no function.
    """
    if not isinstance(op, str) or not op or not isinstance(domain, str):
        raise Misuse(
            f"rule() takes the name of an operator, not {op!r}", hint="@rule('MyOp', domain='my.ops')"
        )

    def add(function: Rule) -> Rule:
        if not callable(function):
            raise Misuse(f"the rule for {op} is no function but a {type(function).__name__}")
        register(("" if domain == "ai.onnx" else domain, op), function)
        return function

    return add
