"""Attention: the cost of the scores of every query with every key, their softmax and the values."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from explorer.engine.operators.cost_formulas.cost import ELEMENTWISE, Cost, adding, count, product, unbound
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
    """softmax(Q K^T) V. MACs = B x Hq x Lq x Lk x (Dqk + Dv); grouped queries count their own heads.

    A causal mask does not lower the cost, which is that of dense attention; the formula also gives the
    cost of the unmasked pairs alone.

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
