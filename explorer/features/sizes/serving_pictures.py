"""Picture of `explorer serving`: memory over the context, and tokens per second over the batch."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from explorer.base.units import bytes_text, count_text, printable
from explorer.facts import Info
from explorer.facts.serving.serving import (
    Serving,
    choose_drawn_contexts,
    count_drawn_devices,
    select_drawn_rates,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = ("#3b6fb5", "#d98032", "#3d8f5f", "#8f6fb5", "#b8413f", "#8a8f98")
_CONTEXT_COUNT = 60
"""Number of points of each memory curve."""


def serving(axes: Axes, info: Info, fact: Serving) -> None:
    """Draw weights plus cache over the context, one line per batch; next to it tokens per second, or MACs."""
    figure = axes.figure
    axes.remove()
    memory_axes, right_axes = figure.subplots(1, 2)
    _draw_memory(memory_axes, fact)
    if fact.machine is not None:
        _draw_rates(right_axes, fact)
    else:
        _draw_macs(right_axes, fact)
    name = printable(os.path.basename(info.model.source.rstrip(os.sep)))
    memory_axes.set_title(f"{name}: weights and cache")


def _draw_memory(axes: Axes, fact: Serving) -> None:
    from matplotlib.ticker import MultipleLocator

    contexts = choose_drawn_contexts(fact, _CONTEXT_COUNT)
    cache_bytes = [fact.cache.bytes.at(size) or 0 for size in contexts]
    for index, batch in enumerate(fact.spec.batches):
        values = [fact.weight_bytes + batch * cache for cache in cache_bytes]
        style = "-" if index < len(_COLORS) else "--"
        axes.plot(contexts, values, style, color=_COLORS[index % len(_COLORS)], label=f"batch {batch:,}")
    axes.axhline(fact.weight_bytes, color="#8a8f98", linewidth=0.8, linestyle=":")
    axes.annotate(
        "weights", (contexts[-1], fact.weight_bytes), color="#8a8f98", va="top", ha="right", fontsize=8
    )
    if fact.spec.card is not None:
        axes.axhline(fact.spec.card, color="#b8413f", linewidth=0.8, linestyle="--")
        axes.annotate("a device", (0, fact.spec.card), color="#b8413f", va="bottom", fontsize=8)
    axes.set_xlabel("tokens in the cache")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    # ticks at multiples of a power of two are whole numbers of KiB, MiB or GiB
    axes.yaxis.set_major_locator(MultipleLocator(2 ** math.floor(math.log2(axes.get_ylim()[1] / 4))))
    axes.yaxis.set_major_formatter(lambda value, _: bytes_text(round(max(value, 0))))
    axes.legend(frameon=False, fontsize=8)


def _draw_rates(axes: Axes, fact: Serving) -> None:
    assert fact.machine is not None
    for index, context in enumerate(fact.spec.contexts):
        times = select_drawn_rates(fact, context)
        batches, rates = [time.batch for time in times], [time.rate or 0.0 for time in times]
        color = _COLORS[index % len(_COLORS)]
        axes.plot(batches, rates, color=color, label=f"{context:,} tokens")
        fits_flags = [time.fits is not False for time in times]
        for batch, rate, fits_memory in zip(batches, rates, fits_flags, strict=True):
            axes.plot([batch], [rate], "o", color=color, markerfacecolor=color if fits_memory else "white")
    devices_text = f"{devices:,} x " if (devices := count_drawn_devices(fact)) > 1 else ""
    axes.set_title(f"Tokens a second at best on {devices_text}{fact.machine.name or 'the machine'}")
    axes.set_xlabel("sequences at once; hollow: more than a device holds")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)


def _draw_macs(axes: Axes, fact: Serving) -> None:
    contexts = choose_drawn_contexts(fact, _CONTEXT_COUNT)
    values = [fact.decode_macs.at(size) for size in contexts]
    if None not in values:
        axes.plot(contexts, [value or 0 for value in values], color=_COLORS[0])
    axes.set_title("MACs of a token")
    axes.set_xlabel("tokens in the cache")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: count_text(round(max(value, 0))))
