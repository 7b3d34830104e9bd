"""Conv, ConvTranspose, pooling: the cost of a sliding window, from its shapes."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.engine.operators.cost_formulas.cost import (
    Cost,
    Term,
    adding,
    counted,
    product,
    unbound,
    unknown,
)
from explorer.facts import Dim, Shape


def conv(output: Shape, weight: Shape, *, bias: bool = False) -> Cost:
    """Convolution of one, two or three dimensions, grouped or not, batched or not.

    MACs = B x Cout x prod(out) x (Cin / groups) x prod(kernel); the weight carries Cin / groups.

    Args:
        output: (B, Cout, *out), or (Cout, *out) without a batch.
        weight: (Cout, Cin / groups, *kernel).
        bias: Whether one is added to every output element.
    """
    if len(weight) < 2 or len(output) not in (len(weight), len(weight) - 1):
        return unknown("weight and output of the convolution do not have matching ranks")
    spatial = len(weight) - 2
    at = len(output) - spatial
    cost = counted(
        [
            ("batch", output[: at - 1]),
            ("Cout", output[at - 1 : at]),
            ("out", output[at:]),
            ("Cin/groups", weight[1:2]),
            ("kernel", weight[2:]),
        ]
    )
    return adding(cost, "bias", output) if bias else cost


def conv_transpose(source: Shape, weight: Shape, output: Shape | None = None, *, bias: bool = False) -> Cost:
    """Transposed convolution: every *input* element is multiplied with the whole kernel.

    MACs = B x Cin x prod(in) x (Cout / groups) x prod(kernel).

    Args:
        source: The input, (B, Cin, *in), or (Cin, *in) without a batch.
        weight: (Cin, Cout / groups, *kernel).
        output: (B, Cout, *out), needed for the bias only.
        bias: Whether one is added to every output element.
    """
    if len(weight) < 2 or len(source) not in (len(weight), len(weight) - 1):
        return unknown("weight and input of the transposed convolution do not have matching ranks")
    spatial = len(weight) - 2
    at = len(source) - spatial
    cost = counted(
        [
            ("batch", source[: at - 1]),
            ("Cin", source[at - 1 : at]),
            ("in", source[at:]),
            ("Cout/groups", weight[1:2]),
            ("kernel", weight[2:]),
        ]
    )
    return adding(cost, "bias", output) if bias else cost


def pooling(what: str, output: Shape | None, kernel: Sequence[Dim], per_tap: int = 1) -> Cost:
    """`per_tap` elementwise operations per tap of the window and output element, padding taps included."""
    if output is None:
        return unknown("the shape of its output is not known")
    if any(isinstance(size, int) and size < 0 for size in kernel):
        return unknown("its window has a size below 0")
    terms: list[Term] = [("out", output), ("window", kernel)]
    value, text = product([*terms, ("", (per_tap,))] if per_tap != 1 else terms)
    if value is None:
        return Cost(0, None, f"{what}: {text}", "unknown", unbound([("", output), ("", kernel)]))
    return Cost(0, value, f"{what}: {text} elementwise")
