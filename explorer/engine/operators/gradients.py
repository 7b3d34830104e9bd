"""Backward pass of an operator: its MACs, from the MACs of the forward pass.

A product of two operands has two gradients, each as many multiply-accumulates as the product itself: for
the one with the other. Which of them are computed depends on who wants one: a trained weight does, a value
does if a trained weight lies before it, and nothing else. The reason for a module of its own beside
`cost_formulas` is that some operators hold several products (attention, recurrent layers), of which not all
are wanted.

Records of operators (`registry`, `aten.table`) say what theirs are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

Want = Literal["", "input", "weight"]
"""What an operand is: nobody wants its gradient; a value with a trained weight before it; a weight."""


class Gradient(NamedTuple):
    """Multiply-accumulates of the gradients of values and of weights, and elementwise operations of both."""

    input: int = 0
    weight: int = 0
    elementwise: int | None = 0

    def __add__(self, other: object) -> Gradient:
        assert isinstance(other, Gradient)
        is_known = self.elementwise is not None and other.elementwise is not None
        total = (self.elementwise or 0) + (other.elementwise or 0) if is_known else None
        return Gradient(self.input + other.input, self.weight + other.weight, total)


def elementwise(forward: int | None, wants: Iterable[Want]) -> int | None:
    """Elementwise operations of the backward pass of an operator, by definition as many as forward has.

    They count once if the gradient of a value is wanted, and once more if that of a trained parameter is: a
    ReLU is backward one multiplication an element, a bias one addition, a scale and shift two of each.
    """
    return None if forward is None else forward * len({want for want in wants if want})


def _one(macs: int, want: Want) -> Gradient:
    return Gradient(macs if want == "input" else 0, macs if want == "weight" else 0)


def pair(macs: int, first: Want, second: Want) -> Gradient:
    """Of one product of two operands."""
    return _one(macs, first) + _one(macs, second)


def attention(scores: int, values: int, query: Want, key: Want, value: Want) -> Gradient:
    """Of softmax(Q K^T) V: the scores have a gradient if query or key has.

    What a fused kernel computes again in its backward pass (the scores) is the kernel's cost, not the
    algorithm's, and not counted.

    Args:
        scores: Multiply-accumulates of Q K^T.
        values: Multiply-accumulates of the product with V.
        query: Who wants the gradient of Q.
        key: Of K.
        value: Of V.
    """
    inner: Want = "input" if query or key else ""
    return pair(scores, query, key) + pair(values, inner, value)


def recurrent(
    macs: int, into: int, start: int, source: Want, state: Want, weights: Sequence[Want]
) -> Gradient | None:
    """Of a recurrent layer of any depth.

    Between steps and layers every gradient is wanted; those of the input of the first layer and of the
    state before the first step only if somebody asked for them.

    Args:
        macs: Of the whole layer.
        into: Of these, products with the input of the first layer.
        start: Of these, products with the states before the first step.
        source: Who wants the gradient of the input.
        state: Of the first state.
        weights: Of each weight.

    Returns:
        None if only some of the weights are trained: which products those take part in is not told apart.
    """
    trained = sum(1 for want in weights if want)
    if trained not in (0, len(weights)):
        return None
    if not (trained or source or state):
        return Gradient()
    inward = macs - (0 if source else into) - (0 if state else start)
    return Gradient(inward, macs if trained else 0)
