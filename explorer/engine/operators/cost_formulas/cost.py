"""Defines `Cost`, in MACs and elementwise operations, and the functions that combine costs."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.facts import Dim, Shape, Status


class Cost(Struct, frozen=True):
    """Cost of one operator in one forward pass.

    Attributes:
        macs: Number of multiply-accumulates, or None if unknown.
        elementwise_ops: Number of other arithmetic operations on elements, or None if unknown.
        formula: Formula of the figures, with the numbers filled in.
        status: 'exact', 'bound' or 'unknown'.
        reason: Why the cost is a bound or unknown; '' if it is exact.
    """

    macs: int | None = 0
    elementwise_ops: int | None = 0
    formula: str = ""
    status: Status = "exact"
    reason: str = ""


FREE = Cost(formula="0 (moves or describes data, no arithmetic)")
"""Cost of operators without arithmetic, such as Reshape, Transpose, Gather and Concat."""

ELEMENTWISE: Mapping[str, tuple[int, str]] = {
    "softmax": (5, "max, subtract, exp, sum, divide"),
    "log_softmax": (6, "max, subtract, exp, sum, log, subtract"),
    "batch_norm": (2, "scale, shift; the statistics are constants"),
    "layer_norm": (7, "mean, subtract, square, mean, normalize, scale, shift"),
    "rms_norm": (4, "square, mean, normalize, scale"),
    "lp_norm": (3, "power, sum, divide"),
    "quantize": (3, "divide, round, add the zero point"),
    "dequantize": (2, "subtract the zero point, multiply"),
}
"""Number and names of the operations per element, for operators that take more than one."""

Term = tuple[str, Sequence[Dim]]
"""A factor of a count: its label in the formula ('Cout', 'kernel') and its dimensions."""


def count(dims: Sequence[Dim]) -> int | None:
    """Returns the product of the dimensions, or None if one is not a number; the empty product is 1."""
    product = 1
    for dim in dims:
        if not isinstance(dim, int):
            return None
        product *= dim
    return product


def product(terms: Sequence[Term]) -> tuple[int | None, str]:
    """Returns the product of the labeled terms (None if a dimension is no number) and its formula.

    Terms without dimensions are left out.
    """
    value: int | None = 1
    texts = []
    for label, dims in terms:
        if not dims:
            continue
        part = count(dims)
        value = None if value is None or part is None else value * part
        texts.append(f"{label} {'x'.join('?' if d is None else str(d) for d in dims)}".strip())
    text = " x ".join(texts) or "1"
    return value, text if value is None else f"{text} = {value:,}"


def why_unknown(terms: Sequence[Term]) -> str:
    """Explains which unknown dimension makes the product of the terms unknown."""
    names = dict.fromkeys(d for _, dims in terms for d in dims if isinstance(d, str))
    if names:
        quoted = ", ".join(f"'{n}'" for n in names)
        return f"the size of {quoted} is not given"
    return "a dimension is not known"


def counted(terms: Sequence[Term]) -> Cost:
    """Returns the cost whose MACs are the product of the terms."""
    value, text = product(terms)
    if value is None:
        return Cost(None, 0, text, "unknown", why_unknown(terms))
    return Cost(value, 0, text)


def unknown(reason: str) -> Cost:
    """Returns an unknown cost; `reason` explains why."""
    return Cost(None, None, "", "unknown", reason)


class Mismatch(str):
    """A reason why a cost is unknown: the shapes of the operands cannot occur together in a run."""

    __slots__ = ()


def mismatched(reason: str) -> Cost:
    """Returns an unknown cost of operands whose shapes do not fit; `reason` tells which sizes."""
    return unknown(Mismatch(f"its operands do not fit: {reason}"))


class WorkBound(str):
    """A reason why MACs and elementwise operations are upper bounds, while shapes and bytes are exact.

    The engine passes this class around. The facts store the plain text and set `work_bound`.
    """

    __slots__ = ()


def bounded(cost: Cost, reason: str) -> Cost:
    """Marks an exact cost as an upper bound; `reason` explains why. An unknown cost stays unknown."""
    return replace(cost, status="bound", reason=reason) if cost.status == "exact" else cost


def bounded_work(cost: Cost, reason: str) -> Cost:
    """Marks an exact cost as an upper bound of the work, while sizes and bytes are exact; see `bounded`."""
    return bounded(cost, WorkBound(reason))


def pick_bound(first: str, second: str) -> str:
    """Returns the first reason of a bound, or the second if only it also bounds sizes."""
    return second if not first or (isinstance(first, WorkBound) and second) else first


def adding(cost: Cost, what: str, shape: Shape | None, per_element: int = 1) -> Cost:
    """Adds `per_element` elementwise operations on each element of `shape` to a cost.

    Args:
        cost: Cost so far.
        what: Name of the operations in the formula ('bias').
        shape: Shape of the elements, or None if unknown.
        per_element: Number of operations per element.
    """
    dims: Shape = (None,) if shape is None else shape
    terms: list[Term] = [("", dims if dims else (1,))]
    if per_element != 1:
        terms.insert(0, ("", (per_element,)))
    value, text = product(terms)
    formula = "; ".join(t for t in (cost.formula, f"{what}: {text} elementwise") if t)
    if value is None or cost.elementwise_ops is None:
        reason = cost.reason or why_unknown(terms)
        return replace(cost, elementwise_ops=None, formula=formula, status="unknown", reason=reason)
    return replace(cost, elementwise_ops=cost.elementwise_ops + value, formula=formula)


def elementwise(what: str, shape: Shape | None, per_element: int = 1) -> Cost:
    """Returns the cost of `per_element` operations for each element of `shape`, without MACs.

    The shape is that of the output, or of the input for a reduction.
    """
    return adding(Cost(), what, shape, per_element)


def times(cost: Cost, trips: Dim, what: str = "times") -> Cost:
    """Multiplies a cost by the iterations of a loop; if their number is unknown, only zeros stay known."""
    if trips == 1 or (cost.macs == 0 and cost.elementwise_ops == 0):
        return cost
    formula = f"{'?' if trips is None else trips} {what} x ({cost.formula})"
    if isinstance(trips, int):
        return replace(
            cost,
            macs=None if cost.macs is None else cost.macs * trips,
            elementwise_ops=None if cost.elementwise_ops is None else cost.elementwise_ops * trips,
            formula=formula,
        )
    reason = cost.reason or unknown_runs(trips)
    return Cost(
        0 if cost.macs == 0 else None, 0 if cost.elementwise_ops == 0 else None, formula, "unknown", reason
    )


def unknown_runs(trips: Dim) -> str:
    """Returns the reason for a figure that is unknown because the number of runs is unknown or symbolic."""
    return f"how often it runs is not known{f' ({trips})' if trips else ''}"


def total(costs: Sequence[Cost]) -> Cost:
    """Returns the sum of several costs. A figure is unknown if it is unknown in any of them."""
    macs: int | None = 0
    ops: int | None = 0
    for cost in costs:
        macs = None if macs is None or cost.macs is None else macs + cost.macs
        ops = None if ops is None or cost.elementwise_ops is None else ops + cost.elementwise_ops
    worst = next((c for s in ("unknown", "bound") for c in costs if c.status == s), Cost())
    reason = worst.reason
    if worst.status == "bound":
        reason = functools.reduce(pick_bound, [c.reason for c in costs if c.status == "bound"])
    formula = " + ".join(c.formula for c in costs if c.formula)
    return Cost(macs, ops, formula, worst.status, reason)
