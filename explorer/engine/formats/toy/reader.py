"""Reader of toy files: K and N of a product."""

from __future__ import annotations

from explorer.engine.graph.model import Graph, Inline, Model, Node, Tensor, Value

_OPERATORS = {"times": "MatMul"}


def read(path: str) -> Model:
    """The product in a file."""
    with open(path) as file:
        _, op, k, n = file.read().split()
    K, N = int(k), int(n)
    weight = Tensor("w", "float32", (K, N), Inline(bytes(4 * K * N)))
    x, y = Value("x", "float32", (1, K)), Value("y", "float32", (1, N))
    node = Node(_OPERATORS[op], ["x", "w"], ["y"])
    return Model(Graph("toy", (node,), (x,), (y,), {"w": weight}), {"": 17}, 8, path=path)
