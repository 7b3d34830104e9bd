"""Cost of RNN, GRU and LSTM layers."""

from __future__ import annotations

from collections.abc import Mapping

from explorer.engine.operators.cost_formulas.cost import (
    Cost,
    Term,
    adding,
    counted,
    product,
    total,
    why_unknown,
)
from explorer.facts import Dim, Shape

RECURRENT: Mapping[str, tuple[int, int]] = {"RNN": (1, 0), "GRU": (3, 5), "LSTM": (4, 5)}
"""Number of gates, and operations on the state per hidden unit and step, by kind.

LSTM: c = f c + i g (3), h = o tanh(c) (2). GRU: r h (1), h = (1 - z) n + z h (4).
"""


def recurrent(
    kind: str,
    length: Dim,
    batch: Dim,
    inputs: Dim,
    hidden: Dim,
    *,
    directions: int = 1,
    layers: int = 1,
    projection: int = 0,
    bias: bool = True,
) -> Cost:
    """Returns the cost of an LSTM, GRU or RNN of one or several layers.

    MACs = T x B x directions x sum over the layers of gates x H x (input + state). Each layer after the first
    reads the concatenated directions of the previous layer. An LSTM with a projection to P features has a
    state of width P, and each step takes P x H additional MACs.

    Args:
        kind: 'LSTM', 'GRU' or 'RNN'.
        length: Number of steps (T).
        batch: Number of sequences (B).
        inputs: Number of input features per step.
        hidden: Number of hidden units (H).
        directions: 2 for a bidirectional layer, else 1.
        layers: Number of stacked layers.
        projection: Width of a projected LSTM state (P), or 0 without a projection.
        bias: Whether each gate adds two biases, input and recurrent.
    """
    gates, state_ops = RECURRENT[kind]
    state: Dim = projection or hidden
    common: list[Term] = [("steps", (length,)), ("batch", (batch,)), ("directions", (directions,))]
    costs = []
    for layer in range(layers):
        width = inputs if layer == 0 else (state * directions if isinstance(state, int) else None)
        are_known = isinstance(width, int) and isinstance(state, int)
        label = f"(in {width} + state {state})"
        value, text = product(
            [*common, ("gates", (gates,)), ("H", (hidden,)), (label, (width + state if are_known else None,))]  # type: ignore[operator]
        )
        # `product` writes the value after each label, but this label already shows the numbers of the sum
        text = text.replace(f"{label} {width + state}" if are_known else f"{label} ?", label)  # type: ignore[operator]
        cost = (
            Cost(value, 0, text)
            if value is not None
            else Cost(None, 0, text, "unknown", why_unknown([*common, ("", (width, hidden))]))
        )
        costs.append(cost)
        if projection:
            costs.append(counted([*common, ("P", (projection,)), ("H", (hidden,))]))
    per_unit = gates * (2 + 2 * bias) + state_ops
    units: Shape = (length, batch, directions, layers, hidden)
    return adding(total(costs), "gates and state", units, per_unit)
