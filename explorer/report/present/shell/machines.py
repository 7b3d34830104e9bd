"""The machines that have a name, in text: `explorer machines`."""

from __future__ import annotations

from explorer.base.units import printable, rate_text
from explorer.facts.roofline import Machines, NamedMachine
from explorer.report.blocks import Block, Cell, Column, Line, Paragraph, Rows, Span, Table

__all__ = ["machines"]


def machines(fact: Machines) -> list[Block]:
    """The answer of `explorer machines`."""
    columns = (
        Column("name"),
        Column("peak", "right"),
        Column("of"),
        Column("bandwidth", "right"),
        Column("what it is", shrink=True),
        Column("source", shrink=True),
    )
    own = "Peaks are dense, without sparsity, of the type beside them. Machines of your own stand in "
    return [
        Table(columns, Rows(_row, fact.machines), what="machines"),
        Line(),
        Paragraph(f"{own}{printable(fact.config)}, and go first.", "quiet"),
    ]


def _row(one: NamedMachine) -> tuple[Cell, ...]:
    known = one.hardware
    return (
        Span(printable(one.name), "strong"),
        _rate(known.peak_macs, "MAC/s"),
        one.dtype,
        _rate(known.bandwidth, "B/s"),
        one.about,
        Span(printable(one.source), "quiet"),
    )


def _rate(value: float | None, unit: str) -> str:
    return "?" if value is None else rate_text(value, unit)
