"""Plots of serving in cells: memory over the context, and tokens a second over the batch."""

from __future__ import annotations

from explorer.base.units import bytes_text, count_text, rate_text
from explorer.facts.serving.serving import Serving, contexts_to_draw, devices_to_draw, rates_to_draw
from explorer.report.blocks import Axis, Dot, Role, Scatter

_MARKS: tuple[tuple[str, Role], ...] = (
    ("●", "good"),
    ("◆", "bar"),
    ("▲", "formula"),
    ("■", "warning"),
    ("○", "strong"),
    ("◇", "figure"),
)
_PLACES = 48
"""Contexts for which memory is drawn."""


def serving_plots(fact: Serving) -> list[Scatter]:
    """Memory of weights and cache over the context; tokens a second over the batch, or MACs of a token."""
    return [_memory(fact), _rates(fact) if fact.machine is not None else _macs(fact)]


def _tokens(value: float) -> str:
    return f"{value:,.0f}"


def _memory(fact: Serving) -> Scatter:
    dots: list[Dot] = []
    legend: list[tuple[str, Role, str]] = []
    contexts = contexts_to_draw(fact, _PLACES) if fact.cache.bytes.pieces else []
    if fact.spec.card is not None:
        dots += [Dot((float(size), float(fact.spec.card)), "─", "bad") for size in contexts]
        legend.append(("─", "bad", "a device"))
    for at, batch in enumerate(fact.spec.batches):
        mark, role = _MARKS[at % len(_MARKS)]
        for size in contexts:
            held = fact.weight_bytes + batch * (fact.cache.bytes.at(size) or 0)
            dots.append(Dot((float(size), float(held)), mark, role))
        legend.append((mark, role, f"batch {batch:,}"))
    across = Axis("tokens in the cache", _tokens)
    return Scatter("memory", across, Axis("memory", lambda v: bytes_text(round(v))), dots, tuple(legend))


def _rates(fact: Serving) -> Scatter:
    dots: list[Dot] = []
    legend: list[tuple[str, Role, str]] = []
    fits = True
    for at, context in enumerate(fact.spec.contexts):
        mark, role = _MARKS[at % len(_MARKS)]
        mine = rates_to_draw(fact, context)
        fits &= all(one.fits is not False for one in mine)
        dots += [Dot((one.batch, one.rate or 0.0), "×" if one.fits is False else mark, role) for one in mine]
        legend.append((mark, role, f"{context:,} tokens"))
    if not fits:
        legend.append(("×", "quiet", "does not fit"))
    on = f", {devices:,} devices" if (devices := devices_to_draw(fact)) > 1 else ""
    axes = Axis("batch", _tokens), Axis("tokens/s", lambda value: rate_text(value, "/s"))
    return Scatter(f"tokens a second{on}", *axes, dots, tuple(legend))


def _macs(fact: Serving) -> Scatter:
    known = [
        (size, macs)
        for size in contexts_to_draw(fact, _PLACES)
        if (macs := fact.decode_macs.at(size)) is not None
    ]
    dots = [Dot((float(size), float(macs)), *_MARKS[0]) for size, macs in known]
    axes = (
        Axis("tokens in the cache", _tokens),
        Axis("MACs of a token", lambda value: count_text(round(value))),
    )
    return Scatter("MACs of a token", *axes, dots)
