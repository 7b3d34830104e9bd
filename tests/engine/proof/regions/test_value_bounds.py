"""Bounds of values: a conversion to a small float type neither drops fractions nor keeps its bounds."""

from __future__ import annotations

import pytest

from explorer.engine.graph.model import Node
from explorer.engine.proof.regions.value_bounds import Bounds, compute_bounds

FLOAT, INT8, FLOAT8 = 1, 3, 17


@pytest.mark.parametrize(
    ("target", "expected"),
    [(FLOAT, Bounds(0.0, 0.75)), (INT8, Bounds(0.0, 0.0, True)), (FLOAT8, Bounds())],
)
def test_a_cast_keeps_fractions_except_of_integers(target: int, expected: Bounds) -> None:
    nodes = [
        Node("Sigmoid", ["x"], ["s"]),
        Node("Clip", ["s"], ["c"], attributes={"max": 0.75}),
        Node("Cast", ["c"], ["t"], attributes={"to": target}),
    ]
    assert compute_bounds(nodes, {"x": "float32"}, {}, {})["t"] == expected
