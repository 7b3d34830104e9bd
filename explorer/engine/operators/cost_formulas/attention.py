"""Cost of attention: the scores of all queries and keys, their softmax, and the product with the values."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from explorer.engine.operators.cost_formulas.cost import (
    ELEMENTWISE,
    Cost,
    adding,
    count,
    product,
    why_unknown,
)
from explorer.facts import Dim, Shape


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
    """Returns the cost of softmax(Q K^T) V. MACs = B x Hq x Lq x Lk x (Dqk + Dv).

    In grouped-query attention, Hq is the number of query heads. The cost is that of dense attention, even
    with a causal mask; the formula then also has the MACs of the unmasked pairs.

    Args:
        batch: Leading dimensions.
        heads: Number of query heads (Hq).
        lq: Number of query positions.
        lk: Number of key positions.
        dqk: Width of a query or key head.
        dv: Width of a value head.
        causal: Whether query i sees only keys up to i + `past`.
        mask: Whether a mask is added to the scores.
        scale: Whether the scores are multiplied by a factor.
        past: Number of keys before the first query.
    """
    width = dqk + dv if isinstance(dqk, int) and isinstance(dv, int) else None
    scores: Shape = (*batch, heads, lq, lk)
    value, text = product(
        [("batch", tuple(batch)), ("heads", (heads,)), ("Lq", (lq,)), ("Lk", (lk,)), ("(Dqk+Dv)", (width,))]
    )
    text = text.replace("(Dqk+Dv) ?", "(Dqk+Dv)").replace(f"(Dqk+Dv) {width}", f"(Dqk {dqk} + Dv {dv})")
    if value is None:
        cost = Cost(None, 0, text, "unknown", why_unknown([("", scores), ("", (dqk, dv))]))
    else:
        cost = Cost(value, 0, text)
    outer = count((*batch, heads))
    if causal and outer is not None and width is not None and isinstance(lq, int) and isinstance(lk, int):
        pairs = _count_causal_pairs(lq, lk, past)
        cost = replace(cost, formula=f"{text} (dense; causal pairs only: {outer * pairs * width:,})")
    if scale:
        cost = adding(cost, "scale", scores)
    if mask:
        cost = adding(cost, "mask", scores)
    return adding(cost, "softmax", scores, ELEMENTWISE["softmax"][0])


def _count_causal_pairs(lq: int, lk: int, past: int) -> int:
    """Counts the unmasked pairs: the sum over queries i < lq of min(i + 1 + past, lk)."""
    growing_rows = max(min(lq, lk - past - 1), 0)
    return growing_rows * (growing_rows + 1) // 2 + growing_rows * past + (lq - growing_rows) * lk
