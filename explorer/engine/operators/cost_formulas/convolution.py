"""Cost of convolution, transposed convolution and pooling."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.engine.operators.cost_formulas.cost import (
    Cost,
    Term,
    adding,
    counted,
    product,
    unknown,
    why_unknown,
)
from explorer.facts import Dim, Shape


def conv(output: Shape, weight: Shape, *, bias: bool = False) -> Cost:
    """Returns the cost of a convolution with any number of dimensions and groups, with or without a batch.

    MACs = B x Cout x prod(out) x (Cin / groups) x prod(kernel).

    Args:
        output: Shape of the output, (B, Cout, *out), or (Cout, *out) without a batch.
        weight: Shape of the weight, (Cout, Cin / groups, *kernel).
        bias: Whether a bias is added to every output element.
    """
    if len(weight) < 2 or len(output) not in (len(weight), len(weight) - 1):
        return unknown("weight and output of the convolution do not have matching ranks")
    spatial = len(weight) - 2
    spatial_start = len(output) - spatial
    cost = counted(
        [
            ("batch", output[: spatial_start - 1]),
            ("Cout", output[spatial_start - 1 : spatial_start]),
            ("out", output[spatial_start:]),
            ("Cin/groups", weight[1:2]),
            ("kernel", weight[2:]),
        ]
    )
    return adding(cost, "bias", output) if bias else cost


def conv_transpose(source: Shape, weight: Shape, output: Shape | None = None, *, bias: bool = False) -> Cost:
    """Returns the cost of a transposed convolution, which multiplies every *input* element by the kernel.

    MACs = B x Cin x prod(in) x (Cout / groups) x prod(kernel).

    Args:
        source: Shape of the input, (B, Cin, *in), or (Cin, *in) without a batch.
        weight: Shape of the weight, (Cin, Cout / groups, *kernel).
        output: Shape of the output, (B, Cout, *out), which only the bias needs.
        bias: Whether a bias is added to every output element.
    """
    if len(weight) < 2 or len(source) not in (len(weight), len(weight) - 1):
        return unknown("weight and input of the transposed convolution do not have matching ranks")
    spatial = len(weight) - 2
    spatial_start = len(source) - spatial
    cost = counted(
        [
            ("batch", source[: spatial_start - 1]),
            ("Cin", source[spatial_start - 1 : spatial_start]),
            ("in", source[spatial_start:]),
            ("Cout/groups", weight[1:2]),
            ("kernel", weight[2:]),
        ]
    )
    return adding(cost, "bias", output) if bias else cost


def pooling(what: str, output: Shape | None, kernel: Sequence[Dim], per_tap: int = 1) -> Cost:
    """Returns the cost of pooling: `per_tap` elementwise operations per output element and window tap.

    Taps that fall into the padding are counted, too. `what` is the name of the operator in the formula.
    """
    if output is None:
        return unknown("the shape of its output is not known")
    if any(isinstance(size, int) and size < 0 for size in kernel):
        return unknown("its window has a size below 0")
    terms: list[Term] = [("out", output), ("window", kernel)]
    value, text = product([*terms, ("", (per_tap,))] if per_tap != 1 else terms)
    if value is None:
        return Cost(0, None, f"{what}: {text}", "unknown", why_unknown([("", output), ("", kernel)]))
    return Cost(0, value, f"{what}: {text} elementwise")
