"""Cost rules that families share: elementwise work, data movement, and work fused behind a product."""

from __future__ import annotations

from functools import cache

from msgspec.structs import replace

from explorer.engine.operators import cost_formulas
from explorer.engine.operators.call import Call, Rule
from explorer.engine.operators.cost_formulas import ELEMENTWISE, FREE, Cost
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim


def free(_: Call) -> Cost:
    """Moves or describes data."""
    return FREE


def moves(why: str) -> Rule:
    """No arithmetic; the formula uses the operator's own words."""
    cost = replace(FREE, formula=f"0 ({why})")
    return lambda _: cost


@cache
def each(per_element: int = 1, detail: str = "") -> Rule:
    """`per_element` operations on each element of the first output."""

    def rule(call: Call) -> Cost:
        label = f"{call.op} ({detail})" if detail else call.op
        info = call.outputs[0] if call.outputs else None
        return cost_formulas.elementwise(label, None if info is None else info.shape, per_element)

    return rule


def named(key: str, *more: str) -> Rule:
    """As many operations on each output element as `ELEMENTWISE` says, and `more` before them."""
    count, detail = ELEMENTWISE[key]
    return each(count + len(more), ", ".join((*more, detail)))


def each_with(per_element: int, detail: str, **optional: int) -> Rule:
    """`per_element` operations on each output element, one more for each optional input that is given."""

    def rule(call: Call) -> Cost:
        extra_inputs = [name.replace("_", " ") for name, index in optional.items() if call.has(index)]
        label = f"{call.op} ({', '.join((detail, *(f'add the {g}' for g in extra_inputs)))})"
        return cost_formulas.elementwise(label, call.output(), per_element + len(extra_inputs))

    return rule


@cache
def each_input(per_element: int = 1, detail: str = "", index: int = 0) -> Rule:
    """`per_element` operations on each element of one input: reductions."""

    def rule(call: Call) -> Cost:
        label = f"{call.op} ({detail})" if detail else f"{call.op}, each input element"
        return cost_formulas.elementwise(label, call.shape(index), per_element)

    return rule


def without(reason: str, *, products: bool = True) -> Rule:
    """No rule can be given from shapes; `products` says whether products may be summed at all."""
    cost = cost_formulas.unknown(reason)
    cost = cost if products else replace(cost, macs=0)
    return lambda _: cost


def per_head(width: Dim, heads: int) -> Dim:
    """Width of one head."""
    return width // heads if isinstance(width, int) and heads else None


def grown(length: Dim, past: Dim) -> Dim:
    """Positions of key and value: the new ones behind those of the cache; `past+4` if one is a name."""
    if past == 0:
        return length
    if isinstance(length, int) and isinstance(past, int):
        return length + past
    total = dims.add(past, length)
    return dims.display(total) if isinstance(total, str) else total


_QUANTIZE = ELEMENTWISE["quantize"][0]


def requantized(cost: Cost, call: Call) -> Cost:
    """`cost`, and the result made 8 bits wide again."""
    return cost_formulas.adding(cost, "requantize", call.output(), _QUANTIZE)


def activated(cost: Cost, call: Call) -> Cost:
    """`cost`, and the activation that the node names."""
    name = call.attributes.get("activation", "")
    return cost_formulas.adding(cost, str(name), call.output()) if name and name != "none" else cost


FORMAT = "what unpacking a weight takes depends on its format, which the node names by number only"


def unpacking(cost: Cost) -> Cost:
    """`cost` of products with weights of such a format: the operations that unpack them are unknown."""
    return replace(cost, elementwise_ops=None, status="unknown", reason=cost.reason or FORMAT)


def swiglu(call: Call) -> tuple[int, str]:
    """Operations per element of onnxruntime's SwiGLU, and which: limits and a shift are options."""
    limits = ["limit the gate", "limit the other"] if call.attributes.get("limit", 0.0) > 0 else []
    shift = ["shift"] if call.attributes.get("activation_beta", 0.0) else []
    parts = [*limits, "activate", *shift, "multiply"]
    return len(parts), ", ".join(parts)
