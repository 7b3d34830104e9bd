"""RNN, GRU, LSTM: the cost of the gates and the state, by step, layer and direction."""

from __future__ import annotations

from collections.abc import Mapping

from explorer.engine.operators.cost_formulas.cost import Cost, Term, adding, counted, product, total, unbound
from explorer.facts import Dim, Shape

RECURRENT: Mapping[str, tuple[int, int]] = {"RNN": (1, 0), "GRU": (3, 5), "LSTM": (4, 5)}
"""Gates, and operations on the state per hidden unit and step.

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
    """LSTM, GRU or RNN: T x B x directions x sum over layers of gates x H x (input + state).

    A layer above the first takes the directions of the one below side by side. With a projection P the
    state is P wide and each step takes P x H more.

    Args:
        kind: 'LSTM', 'GRU' or 'RNN'.
        length: Steps (T).
        batch: Sequences side by side (B).
        inputs: Features of a step.
        hidden: Units (H).
        directions: 2 if bidirectional.
        layers: Layers on top of each other.
        projection: Width of a projected LSTM state, 0 for none.
        bias: Whether both biases (input and recurrent) are added at each gate.
    """
    gates, state_ops = RECURRENT[kind]
    state: Dim = projection or hidden
    outer: list[Term] = [("steps", (length,)), ("batch", (batch,)), ("directions", (directions,))]
    costs = []
    for layer in range(layers):
        width = inputs if layer == 0 else (state * directions if isinstance(state, int) else None)
        numbers = isinstance(width, int) and isinstance(state, int)
        both = f"(in {width} + state {state})"
        value, text = product(
            [*outer, ("gates", (gates,)), ("H", (hidden,)), (both, (width + state if numbers else None,))]  # type: ignore[operator]
        )
        text = text.replace(f"{both} {width + state}" if numbers else f"{both} ?", both)  # type: ignore[operator]
        cost = (
            Cost(value, 0, text)
            if value is not None
            else Cost(None, 0, text, "unknown", unbound([*outer, ("", (width, hidden))]))
        )
        costs.append(cost)
        if projection:
            costs.append(counted([*outer, ("P", (projection,)), ("H", (hidden,))]))
    per_unit = gates * (2 + 2 * bias) + state_ops
    units: Shape = (length, batch, directions, layers, hidden)
    return adding(total(costs), "gates and state", units, per_unit)
