"""Computes the MACs of an operator's backward pass from the MACs of its forward pass.

A product of two operands has two gradients, one per operand. Each takes as many MACs as the product itself. A
gradient is computed only if it is needed: for a trained weight, and for a value that depends on a trained
weight. Operators such as attention and recurrent layers contain several products, of which some may need no
gradient.

The records of operators (`registry`, `aten.table`) refer to these functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

GradientPurpose = Literal["", "input", "weight"]
"""Purpose of an operand's gradient.

- '': not needed.
- 'input': the operand is a value that depends on a trained weight.
- 'weight': the operand is a trained weight.
"""


class Gradient(NamedTuple):
    """Cost of gradients.

    Attributes:
        input: MACs of the gradients of values.
        weight: MACs of the gradients of weights.
        elementwise: Elementwise operations of both, or None if unknown.
    """

    input: int = 0
    weight: int = 0
    elementwise: int | None = 0

    def __add__(self, other: object) -> Gradient:
        assert isinstance(other, Gradient)
        is_known = self.elementwise is not None and other.elementwise is not None
        total = (self.elementwise or 0) + (other.elementwise or 0) if is_known else None
        return Gradient(self.input + other.input, self.weight + other.weight, total)


def elementwise(forward: int | None, purposes: Iterable[GradientPurpose]) -> int | None:
    """Counts the elementwise operations of an operator's backward pass.

    By convention it is the number of the forward pass, once if the gradient of a value is needed and once
    more for the gradient of a parameter. So a ReLU takes one multiplication per element, a bias one addition.

    Args:
        forward: Elementwise operations of the forward pass, or None if unknown.
        purposes: Purposes of the gradients of the inputs.
    """
    return None if forward is None else forward * len({purpose for purpose in purposes if purpose})


def _operand_gradient(macs: int, purpose: GradientPurpose) -> Gradient:
    return Gradient(macs if purpose == "input" else 0, macs if purpose == "weight" else 0)


def product_gradient(macs: int, first: GradientPurpose, second: GradientPurpose) -> Gradient:
    """Returns the gradient of a product of two operands with `macs` forward MACs."""
    return _operand_gradient(macs, first) + _operand_gradient(macs, second)


def attention(
    scores: int, values: int, query: GradientPurpose, key: GradientPurpose, value: GradientPurpose
) -> Gradient:
    """Returns the gradient of softmax(Q K^T) V.

    The scores need a gradient if the query or the key needs one. A fused kernel recomputes the scores in its
    backward pass; this is a cost of the kernel and not counted.

    Args:
        scores: MACs of Q K^T.
        values: MACs of the product with V.
        query: Purpose of the gradient of Q.
        key: Purpose of the gradient of K.
        value: Purpose of the gradient of V.
    """
    inner: GradientPurpose = "input" if query or key else ""
    return product_gradient(scores, query, key) + product_gradient(values, inner, value)


def recurrent(
    macs: int,
    input_macs: int,
    state_macs: int,
    source: GradientPurpose,
    state: GradientPurpose,
    weights: Sequence[GradientPurpose],
) -> Gradient | None:
    """Returns the gradient of a recurrent operator with one or several layers.

    Between steps and layers every gradient is needed. The gradients of the first layer's input and of the
    initial state are counted only if they are needed.

    Args:
        macs: Forward MACs of the operator.
        input_macs: Part of `macs` for products with the input of the first layer.
        state_macs: Part of `macs` for products with the initial state.
        source: Purpose of the gradient of the input.
        state: Purpose of the gradient of the initial state.
        weights: Purpose of the gradient of each weight.

    Returns:
        The gradient, or None if only some of the weights are trained, because the MACs of single weights are
        not known.
    """
    trained_count = sum(1 for purpose in weights if purpose)
    if trained_count not in (0, len(weights)):
        return None
    if not (trained_count or source or state):
        return Gradient()
    value_macs = macs - (0 if source else input_macs) - (0 if state else state_macs)
    return Gradient(value_macs, macs if trained_count else 0)
