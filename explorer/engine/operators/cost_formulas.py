"""Cost formulas: what a Conv, a MatMul, an LSTM costs by its shapes; MACs are counted here and nowhere else.

Both sources of operators (ONNX nodes, ATen calls) come here with plain shapes, so the same layer costs
the same whichever way it came in. A formula is returned beside every number, with the numbers in it.

A multiply-accumulate (MAC) is counted where products are summed: convolution, matrix product,
attention products, recurrent gates. Everything else that computes is an elementwise operation: one per
arithmetic operation on an element (a bias adds one to each output element, an activation is one
whatever its function, see `ELEMENTWISE` for those that take several). Moving data costs neither.
Padding taps count: it is the algorithm's cost, not the kernel's. Where the algorithm is not unique (a
Fourier transform, a determinant) its definition or the usual way is counted, as a labelled bound.

A dimension may be a name (symbolic) or None (unknown). Then the count is None, never a guess, and the
formula keeps the name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.facts import Dim, Shape, Status


class Cost(Struct, frozen=True):
    """What one operator costs in one forward pass.

    Attributes:
        macs: Multiply-accumulates; None if unknown.
        elementwise_ops: Arithmetic operations on single elements, beside the MACs, never among them.
        formula: How the numbers come about, with the numbers.
        status: 'exact', 'bound' or 'unknown'; `reason` says why when it is not exact.
    """

    macs: int | None = 0
    elementwise_ops: int | None = 0
    formula: str = ""
    status: Status = "exact"
    reason: str = ""


FREE = Cost(formula="0 (moves or describes data, no arithmetic)")
"""Reshape, Transpose, Gather, Concat: nothing is computed."""

ELEMENTWISE: Mapping[str, tuple[int, str]] = {
    "softmax": (5, "max, subtract, exp, sum, divide"),
    "log_softmax": (6, "max, subtract, exp, sum, log, subtract"),
    "batch_norm": (2, "scale, shift; the statistics are constants"),
    "layer_norm": (7, "mean, subtract, square, mean, normalise, scale, shift"),
    "rms_norm": (4, "square, mean, normalise, scale"),
    "lp_norm": (3, "power, sum, divide"),
    "quantize": (3, "divide, round, add the zero point"),
    "dequantize": (2, "subtract the zero point, multiply"),
}
"""Operations per element of those operators that take more than one, and which they are."""

RECURRENT: Mapping[str, tuple[int, int]] = {"RNN": (1, 0), "GRU": (3, 5), "LSTM": (4, 5)}
"""Gates, and operations on the state per hidden unit and step.

LSTM: c = f c + i g (3), h = o tanh(c) (2). GRU: r h (1), h = (1 - z) n + z h (4).
"""

Term = tuple[str, Sequence[Dim]]
"""A factor of a count: what it is ('Cout', 'kernel') and its dimensions."""


def count(dims: Sequence[Dim]) -> int | None:
    """Product of the dimensions (1 of none); None if one is not a number."""
    product = 1
    for dim in dims:
        if not isinstance(dim, int):
            return None
        product *= dim
    return product


def product(terms: Sequence[Term]) -> tuple[int | None, str]:
    """Product of the labelled terms and its formula; terms without dimensions are left out."""
    value: int | None = 1
    texts = []
    for label, dims in terms:
        if not dims:
            continue
        part = count(dims)
        value = None if value is None or part is None else value * part
        texts.append(f"{label} {'x'.join('?' if d is None else str(d) for d in dims)}".strip())
    text = " x ".join(texts) or "1"
    return value, text if value is None else f"{text} = {value:,}"


def unbound(terms: Sequence[Term]) -> str:
    """Why the product of the terms is no number, in words."""
    names = dict.fromkeys(d for _, dims in terms for d in dims if isinstance(d, str))
    if names:
        shown = ", ".join(f"'{n}'" for n in names)
        return f"the size of {shown} is not given"
    return "a dimension is not known"


def counted(terms: Sequence[Term]) -> Cost:
    """Cost of as many MACs as the product of the terms."""
    value, text = product(terms)
    if value is None:
        return Cost(None, 0, text, "unknown", unbound(terms))
    return Cost(value, 0, text)


def unknown(reason: str) -> Cost:
    """The cost of an operator of which too little is known; `reason` in words."""
    return Cost(None, None, "", "unknown", reason)


def bounded(cost: Cost, reason: str) -> Cost:
    """`cost` as an upper bound, `reason` in words; what is unknown stays so."""
    return replace(cost, status="bound", reason=reason) if cost.status == "exact" else cost


def adding(cost: Cost, what: str, shape: Shape | None, per_element: int = 1) -> Cost:
    """`cost` with `per_element` elementwise operations on each element of `shape`.

    Args:
        cost: What the operator costs so far.
        what: What the operations are, for the formula ('bias').
        shape: The elements; None if unknown.
        per_element: Operations on each.
    """
    dims: Shape = (None,) if shape is None else shape
    terms: list[Term] = [("", dims if dims else (1,))]
    if per_element != 1:
        terms.insert(0, ("", (per_element,)))
    value, text = product(terms)
    formula = "; ".join(t for t in (cost.formula, f"{what}: {text} elementwise") if t)
    if value is None or cost.elementwise_ops is None:
        reason = cost.reason or unbound(terms)
        return replace(cost, elementwise_ops=None, formula=formula, status="unknown", reason=reason)
    return replace(cost, elementwise_ops=cost.elementwise_ops + value, formula=formula)


def elementwise(what: str, shape: Shape | None, per_element: int = 1) -> Cost:
    """0 MACs and `per_element` operations on each element of `shape` (for a reduction, the input's)."""
    return adding(Cost(), what, shape, per_element)


def times(cost: Cost, trips: Dim, what: str = "times") -> Cost:
    """`cost` as often as a body runs; if that is not a number, what is not 0 becomes unknown."""
    if trips == 1 or (cost.macs == 0 and cost.elementwise_ops == 0):
        return cost
    formula = f"{'?' if trips is None else trips} {what} x ({cost.formula})"
    if isinstance(trips, int):
        return replace(
            cost,
            macs=None if cost.macs is None else cost.macs * trips,
            elementwise_ops=None if cost.elementwise_ops is None else cost.elementwise_ops * trips,
            formula=formula,
        )
    reason = cost.reason or f"how often it runs is not known{f' ({trips})' if trips else ''}"
    return Cost(
        0 if cost.macs == 0 else None, 0 if cost.elementwise_ops == 0 else None, formula, "unknown", reason
    )


def total(costs: Sequence[Cost]) -> Cost:
    """The sum of several costs, formulas side by side; unknown if one of them is."""
    macs: int | None = 0
    ops: int | None = 0
    for cost in costs:
        macs = None if macs is None or cost.macs is None else macs + cost.macs
        ops = None if ops is None or cost.elementwise_ops is None else ops + cost.elementwise_ops
    worst = next((c for s in ("unknown", "bound") for c in costs if c.status == s), Cost())
    formula = " + ".join(c.formula for c in costs if c.formula)
    return Cost(macs, ops, formula, worst.status, worst.reason)


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


def broadcast(*shapes: Shape) -> Shape:
    """The shape that `shapes` broadcast to.

    A number above 1 wins over a name, a name over 1; two names or two numbers that differ give None.
    """
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    out: list[Dim] = []
    for dims in zip(*padded, strict=True):
        seen = dict.fromkeys(d for d in dims if d != 1)
        numbers = [d for d in seen if isinstance(d, int)]
        if len(numbers) == 1:
            out.append(numbers[0])
        else:
            out.append(1 if not seen else next(iter(seen)) if len(seen) == 1 else None)
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
    depth, other = a[-1], b[-2 if len(b) > 1 else -1]
    if _apart(depth, other):
        return unknown(f"its operands do not fit: {depth} columns against {other} rows")
    batch = broadcast(a[:-2], b[:-2])
    depth = depth if isinstance(depth, int) else other
    return counted([("batch", batch), ("M", rows), ("K", (depth,)), ("N", columns)])


def _apart(a: Dim, b: Dim) -> bool:
    """Whether two dimensions that have to be the same are known not to be."""
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
    other, n = (b[1], b[0]) if trans_b else (b[0], b[1])
    if _apart(k, other):
        return unknown(f"its operands do not fit: {k} columns against {other} rows")
    cost = counted([("M", (m,)), ("K", (k if isinstance(k, int) else other,)), ("N", (n,))])
    for what, wanted in (
        ("alpha", alpha != 1.0),
        ("beta", bias and beta != 1.0),
        ("bias", bias and beta != 0.0),
    ):
        if wanted:
            cost = adding(cost, what, (m, n))
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


def attention(
    batch: Sequence[Dim],
    heads: Dim,
    lq: Dim,
    lk: Dim,
    dqk: Dim,
    dv: Dim,
    *,
    causal: bool = False,
    mask: bool = False,
    scale: bool = True,
    past: int = 0,
) -> Cost:
    """softmax(Q K^T) V. MACs = B x Hq x Lq x Lk x (Dqk + Dv); grouped queries count their own heads.

    A causal mask does not lower the headline, which is the dense cost; what only the unmasked pairs
    take stands beside it in the formula.

    Args:
        batch: Leading dimensions.
        heads: Heads of the query (Hq).
        lq: Positions of the query.
        lk: Positions of the key.
        dqk: Width of a head of query and key.
        dv: Width of a head of the value.
        causal: Query i sees keys up to i + `past`.
        mask: Whether a mask is added to the scores.
        scale: Whether the scores are multiplied with a factor.
        past: Keys that come before the first query.
    """
    width = dqk + dv if isinstance(dqk, int) and isinstance(dv, int) else None
    scores: Shape = (*batch, heads, lq, lk)
    value, text = product(
        [("batch", tuple(batch)), ("heads", (heads,)), ("Lq", (lq,)), ("Lk", (lk,)), ("(Dqk+Dv)", (width,))]
    )
    text = text.replace("(Dqk+Dv) ?", "(Dqk+Dv)").replace(f"(Dqk+Dv) {width}", f"(Dqk {dqk} + Dv {dv})")
    if value is None:
        cost = Cost(None, 0, text, "unknown", unbound([("", scores), ("", (dqk, dv))]))
    else:
        cost = Cost(value, 0, text)
    outer = count((*batch, heads))
    if causal and outer is not None and width is not None and isinstance(lq, int) and isinstance(lk, int):
        pairs = _causal_pairs(lq, lk, past)
        cost = replace(cost, formula=f"{text} (dense; causal pairs only: {outer * pairs * width:,})")
    if scale:
        cost = adding(cost, "scale", scores)
    if mask:
        cost = adding(cost, "mask", scores)
    return adding(cost, "softmax", scores, ELEMENTWISE["softmax"][0])


def _causal_pairs(lq: int, lk: int, past: int) -> int:
    """Sum over queries i < lq of min(i + 1 + past, lk)."""
    short = max(min(lq, lk - past - 1), 0)
    return short * (short + 1) // 2 + short * past + (lq - short) * lk


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


def fourier(
    transforms: Shape, samples: Dim, frequencies: Dim, *, complex_in: bool, complex_out: bool = True
) -> Cost:
    """Discrete Fourier transform, by its definition: every frequency is a sum over every sample.

    MACs = transforms x frequencies x samples x real products (2 real by complex, 4 complex by complex).
    That is what a convolution with the same basis counts. A fast transform needs fewer, how many depends
    on the algorithm: hence a bound.

    Args:
        transforms: Signals, one transform each.
        samples: Of one signal, those that pad it included.
        frequencies: Computed of each: all of them, or one side.
        complex_in: Whether a sample has an imaginary part.
        complex_out: Whether a result has one.
    """
    parts = (1 + complex_in) * (1 + complex_out)
    cost = counted(
        [
            ("transforms", transforms or (1,)),
            ("frequencies", (frequencies,)),
            ("samples", (samples,)),
            ("real products", (parts,)),
        ]
    )
    return bounded(cost, "counted by its definition; a fast Fourier transform takes fewer")
