"""Cost of matrix products: MatMul, Gemm and linear layers."""

from __future__ import annotations

from explorer.engine.operators.cost_formulas.cost import Cost, adding, counted, mismatched, unknown
from explorer.facts import Dim, Shape


def broadcast(*shapes: Shape) -> Shape:
    """Returns the shape that `shapes` broadcast to.

    On each axis, a number above 1 decides the size, then a symbolic size, then 1. Two different symbolic
    sizes or two different numbers give None.
    """
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    result: list[Dim] = []
    for dims in zip(*padded, strict=True):
        sizes = dict.fromkeys(d for d in dims if d != 1)
        numbers = [d for d in sizes if isinstance(d, int)]
        if len(numbers) == 1:
            result.append(numbers[0])
        else:
            result.append(1 if not sizes else next(iter(sizes)) if len(sizes) == 1 else None)
    return tuple(result)


def matmul(a: Shape, b: Shape) -> Cost:
    """Returns the cost of a matrix product as in numpy.matmul. MACs = prod(batch) x M x K x N.

    Args:
        a: Shape of the left operand, (*batch, M, K) or (K,).
        b: Shape of the right operand, (*batch, K, N) or (K,).
    """
    if not a or not b:
        return unknown("a scalar cannot be an operand of a matrix product")
    rows = a[-2:-1]
    columns = b[-1:] if len(b) > 1 else ()
    depth, other_depth = a[-1], b[-2 if len(b) > 1 else -1]
    if _are_different(depth, other_depth):
        return mismatched(f"{depth} columns against {other_depth} rows")
    batch = broadcast(a[:-2], b[:-2])
    depth = depth if isinstance(depth, int) else other_depth
    return counted([("batch", batch), ("M", rows), ("K", (depth,)), ("N", columns)])


def _are_different(a: Dim, b: Dim) -> bool:
    """Whether two dimensions are known to differ."""
    return isinstance(a, int) and isinstance(b, int) and a != b


def gemm(
    a: Shape,
    b: Shape,
    *,
    trans_a: bool = False,
    trans_b: bool = False,
    bias: bool = False,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Cost:
    """Returns the cost of a general matrix product, alpha A B + beta C. MACs = M x K x N.

    Args:
        a: Shape of A, (M, K), or (K, M) with `trans_a`.
        b: Shape of B, (K, N), or (N, K) with `trans_b`.
        trans_a: Whether A is transposed.
        trans_b: Whether B is transposed.
        bias: Whether there is a C, which takes one addition per output element.
        alpha: Factor of A B, which takes one multiplication per output element unless it is 1.
        beta: Factor of C, which takes one multiplication per output element unless it is 1. If it is 0, C is
            not added.
    """
    if len(a) != 2 or len(b) != 2:
        return unknown("Gemm takes two matrices")
    m, k = (a[1], a[0]) if trans_a else (a[0], a[1])
    other_k, n = (b[1], b[0]) if trans_b else (b[0], b[1])
    if _are_different(k, other_k):
        return mismatched(f"{k} columns against {other_k} rows")
    cost = counted([("M", (m,)), ("K", (k if isinstance(k, int) else other_k,)), ("N", (n,))])
    for label, applies in (
        ("alpha", alpha != 1.0),
        ("beta", bias and beta != 1.0),
        ("bias", bias and beta != 0.0),
    ):
        if applies:
            cost = adding(cost, label, (m, n))
    return cost


def linear(source: Shape, features: Dim, *, bias: bool = False) -> Cost:
    """Returns the cost of a linear layer, x W^T + b on the last axis. MACs = prod(rows) x in x out.

    Args:
        source: Shape of the input, (*rows, in).
        features: Size of the output's last axis.
        bias: Whether a bias is added to every output element.
    """
    if not source:
        return unknown("a scalar cannot go into a linear layer")
    cost = counted([("rows", source[:-1]), ("in", source[-1:]), ("out", (features,))])
    return adding(cost, "bias", (*source[:-1], features)) if bias else cost
