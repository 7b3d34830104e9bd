"""Cost rules that operator families share: elementwise work, data movement, and work fused into a product."""

from __future__ import annotations

from functools import cache

from msgspec.structs import replace

from explorer.engine.operators import cost_formulas
from explorer.engine.operators.call import Call, Rule
from explorer.engine.operators.cost_formulas import ELEMENTWISE, FREE, Cost
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim


def free(_: Call) -> Cost:
    """Returns the cost of operators that move or describe data."""
    return FREE


def data_movement(reason: str) -> Rule:
    """Makes the cost rule of an operator without arithmetic; `reason` appears in the formula."""
    cost = replace(FREE, formula=f"0 ({reason})")
    return lambda _: cost


@cache
def per_output(per_element: int = 1, detail: str = "") -> Rule:
    """Makes a cost rule with `per_element` operations per element of the first output.

    `detail` lists the operations in the formula.
    """

    def rule(call: Call) -> Cost:
        label = f"{call.op} ({detail})" if detail else call.op
        info = call.outputs[0] if call.outputs else None
        return cost_formulas.elementwise(label, None if info is None else info.shape, per_element)

    return rule


def from_table(key: str, *extra_operations: str) -> Rule:
    """Makes a cost rule with the operations per output element that `ELEMENTWISE` has for `key`.

    `extra_operations` are the names of operations that precede them.
    """
    count, detail = ELEMENTWISE[key]
    return per_output(count + len(extra_operations), ", ".join((*extra_operations, detail)))


def per_output_with(per_element: int, detail: str, **optional: int) -> Rule:
    """Makes a cost rule with `per_element` operations per output element, plus one per optional input.

    `optional` maps the name of each optional input to its index.
    """

    def rule(call: Call) -> Cost:
        names = [name.replace("_", " ") for name, index in optional.items() if call.has(index)]
        operations = ", ".join((detail, *(f"add the {name}" for name in names)))
        return cost_formulas.elementwise(f"{call.op} ({operations})", call.output(), per_element + len(names))

    return rule


@cache
def per_input(per_element: int = 1, detail: str = "", index: int = 0) -> Rule:
    """Makes a cost rule with `per_element` operations per element of one input, as in reductions."""

    def rule(call: Call) -> Cost:
        label = f"{call.op} ({detail})" if detail else f"{call.op}, each input element"
        return cost_formulas.elementwise(label, call.shape(index), per_element)

    return rule


def unknown_cost(reason: str, *, products: bool = True) -> Rule:
    """Makes a cost rule that returns an unknown cost.

    Args:
        reason: Why shapes do not determine the cost.
        products: Whether the operator may have MACs; if not, the MACs are 0.
    """
    cost = cost_formulas.unknown(reason)
    cost = cost if products else replace(cost, macs=0)
    return lambda _: cost


def divide(size: Dim, parts: int) -> Dim:
    """Returns the size of one of `parts` equal parts, such as of one head, or None if `size` is unknown."""
    return size // parts if isinstance(size, int) and parts else None


def with_past(length: Dim, past: Dim) -> Dim:
    """Adds the cached positions to the new key positions; the sum may be symbolic, as in `past+4`."""
    if past == 0:
        return length
    if isinstance(length, int) and isinstance(past, int):
        return length + past
    total = dims.add(past, length)
    return dims.format_for_display(total) if isinstance(total, str) else total


_QUANTIZE = ELEMENTWISE["quantize"][0]


def add_requantization(cost: Cost, call: Call) -> Cost:
    """Adds the cost of quantizing the result to 8 bits."""
    return cost_formulas.adding(cost, "requantize", call.output(), _QUANTIZE)


def add_activation(cost: Cost, call: Call) -> Cost:
    """Adds the cost of the activation that the attribute `activation` names, if any."""
    name = call.attributes.get("activation", "")
    return cost_formulas.adding(cost, str(name), call.output()) if name and name != "none" else cost


UNPACKING_REASON = (
    "the cost of unpacking a weight depends on its packed format, which the node gives only as a number"
)


def mark_unpacking_unknown(cost: Cost) -> Cost:
    """Marks the elementwise operations as unknown, because the weight's packed format is not known."""
    return replace(cost, elementwise_ops=None, status="unknown", reason=cost.reason or UNPACKING_REASON)


def count_swiglu_operations(call: Call) -> tuple[int, str]:
    """Returns the number of operations per element of onnxruntime's SwiGLU, and their names."""
    limits = ["limit the gate", "limit the value"] if call.attributes.get("limit", 0.0) > 0 else []
    shift = ["shift"] if call.attributes.get("activation_beta", 0.0) else []
    parts = [*limits, "activate", *shift, "multiply"]
    return len(parts), ", ".join(parts)
