"""Accumulator overflow: the layers with integer sums too large for an accumulator."""

from __future__ import annotations

from collections.abc import Mapping

from explorer.base.units import printable
from explorer.facts.quantize import Accumulator
from explorer.report.blocks import Block, Column, Line, Paragraph, Span, table_of
from explorer.report.present.figures import plain


def summarize_overflow(bits: int, sums: Mapping[str, Accumulator]) -> Span:
    """Summarize how many layers overflow an accumulator of `bits` bits, and how many bits are needed."""
    if not sums:
        return Span("no effect: no matmul here sums stored integers, as in a quantized model", "quiet")
    count = sum(need.bits > bits for need in sums.values())
    max_bits = max(need.bits for need in sums.values())
    summary = f"{count:,} of {len(sums):,} overflow {bits} bits" if count else f"{bits} bits hold every sum"
    return Span(f"{summary}: {max_bits} bits are needed", "warning" if count else "good")


def overflows(bits: int, sums: Mapping[str, Accumulator]) -> list[Block]:
    """Return a table of the layers that overflow an accumulator of `bits` bits, or a note that none does."""
    if not bits:
        return []
    if not sums:
        return [Line(), Line((f"accumulator of {bits} bits: ", summarize_overflow(bits, sums)), 2)]
    overflowing = [name for name, need in sums.items() if need.bits > bits]
    if not overflowing:
        max_bits = max(need.bits for need in sums.values())
        message = f"an accumulator of {bits} bits holds every sum, whatever the inputs: {max_bits} are needed"
        return [Line(), Line((Span(message, "good"),), 2)]
    limit = f"{(1 << (bits - 1)) - 1:,}"
    table = table_of(
        overflowing,
        (
            (Column(f"overflows {bits} bits", shrink=True), lambda name: Span(printable(name), "strong")),
            (Column("K", "right"), lambda name: plain(sums[name].depth)),
            (Column("bits needed", "right"), lambda name: Span(str(sums[name].bits), "warning")),
            (Column("a sum reaches", "right"), lambda name: Span(f"{sums[name].reach:,}")),
            (Column("in channel", "right"), lambda name: plain(sums[name].channel)),
        ),
    )
    note = f"Sums may reach {limit} in both directions. Some input reaches each printed sum."
    return [Line(), table, Paragraph(note, "quiet")]
