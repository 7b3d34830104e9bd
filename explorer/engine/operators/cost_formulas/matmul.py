"""MatMul, Gemm, Linear: the cost of a matrix product, from its shapes."""

from __future__ import annotations

from explorer.engine.operators.cost_formulas.cost import Cost, adding, counted, unknown
from explorer.facts import Dim, Shape


def broadcast(*shapes: Shape) -> Shape:
    """The shape that `shapes` broadcast to.

    A number above 1 wins over a name, a name over 1; two names or two numbers that differ give None.
    """
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    out: list[Dim] = []
    for dims in zip(*padded, strict=True):
        sizes = dict.fromkeys(d for d in dims if d != 1)
        numbers = [d for d in sizes if isinstance(d, int)]
        if len(numbers) == 1:
            out.append(numbers[0])
        else:
            out.append(1 if not sizes else next(iter(sizes)) if len(sizes) == 1 else None)
    return tuple(out)


def matmul(a: Shape, b: Shape) -> Cost:
    """Matrix product with broadcast batch; vectors as numpy.matmul takes them.

    MACs = prod(batch) x M x K x N.

    Args:
        a: (*batch, M, K) or (K,).
        b: (*batch, K, N) or (K,).
    """
    if not a or not b:
        return unknown("a scalar cannot be an operand of a matrix product")
    rows = a[-2:-1]
    columns = b[-1:] if len(b) > 1 else ()
    depth, other_depth = a[-1], b[-2 if len(b) > 1 else -1]
    if _apart(depth, other_depth):
        return unknown(f"its operands do not fit: {depth} columns against {other_depth} rows")
    batch = broadcast(a[:-2], b[:-2])
    depth = depth if isinstance(depth, int) else other_depth
    return counted([("batch", batch), ("M", rows), ("K", (depth,)), ("N", columns)])


def _apart(a: Dim, b: Dim) -> bool:
    """Whether two dimensions that have to be equal are known to differ."""
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
    """General matrix product, alpha A B + beta C: M x K x N MACs however transposed, the rest elementwise.

    Args:
        a: (M, K), or (K, M) with `trans_a`.
        b: (K, N), or (N, K) with `trans_b`.
        trans_a: Whether A comes transposed.
        trans_b: Whether B comes transposed.
        bias: Whether C is given: one addition per output element.
        alpha: One multiplication per output element unless 1.
        beta: One multiplication per output element unless 1, no addition if 0.
    """
    if len(a) != 2 or len(b) != 2:
        return unknown("Gemm takes two matrices")
    m, k = (a[1], a[0]) if trans_a else (a[0], a[1])
    other_k, n = (b[1], b[0]) if trans_b else (b[0], b[1])
    if _apart(k, other_k):
        return unknown(f"its operands do not fit: {k} columns against {other_k} rows")
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
    """Linear layer, x W^T + b on the last axis: MACs = prod(rows) x in x out.

    Args:
        source: (*rows, in).
        features: The size of the output's last axis.
        bias: Whether one is added to every output element.
    """
    if not source:
        return unknown("a scalar cannot go into a linear layer")
    cost = counted([("rows", source[:-1]), ("in", source[-1:]), ("out", (features,))])
    return adding(cost, "bias", (*source[:-1], features)) if bias else cost
