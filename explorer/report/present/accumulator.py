"""Accumulator: which sums of integers it is too narrow for."""

from __future__ import annotations

from collections.abc import Mapping

from explorer.base.units import printable
from explorer.facts.quantize import Accumulator
from explorer.report.blocks import Block, Cell, Column, Line, Paragraph, Span, Table
from explorer.report.present.figures import plain


def in_a_line(bits: int, sums: Mapping[str, Accumulator]) -> Span:
    """How many layers an accumulator of so many bits is too narrow for, and how wide one has to be."""
    if not sums:
        return Span("nothing here sums stored integers", "quiet")
    narrow, most = sum(one.bits > bits for one in sums.values()), max(one.bits for one in sums.values())
    few = f"{narrow:,} of {len(sums):,} overflow {bits} bits" if narrow else f"{bits} bits hold every sum"
    return Span(f"{few}: {most} bits are needed", "warning" if narrow else "good")


def overflows(bits: int, sums: Mapping[str, Accumulator]) -> list[Block]:
    """Which layers an accumulator of so many bits is too narrow for, by their names, or that it holds all."""
    if not bits or not sums:
        return []
    narrow = [name for name, one in sums.items() if one.bits > bits]
    if not narrow:
        most = max(one.bits for one in sums.values())
        said = f"an accumulator of {bits} bits holds every sum, whatever the inputs: {most} are needed"
        return [Line(), Line((Span(said, "good"),), 2)]
    limit = f"{(1 << (bits - 1)) - 1:,}"
    rows: list[tuple[Cell, ...]] = [
        (
            Span(printable(name), "strong"),
            plain(sums[name].depth),
            Span(str(sums[name].bits), "warning"),
            Span(f"{sums[name].reach:,}"),
            plain(sums[name].channel),
        )
        for name in narrow
    ]
    columns = (
        Column(f"overflows {bits} bits", shrink=True),
        *(Column(word, "right") for word in ("K", "bits needed", "a sum reaches", "in channel")),
    )
    note = f"Sums are held to {limit} either way; for each sum told there is an input that makes it."
    return [Line(), Table(columns, rows), Paragraph(note, "quiet")]
