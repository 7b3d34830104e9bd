"""Text output of `explorer machines`: the known machines."""

from __future__ import annotations

import math
from collections.abc import Sequence

from explorer.base.units import bytes_text, printable, rate_text
from explorer.facts.cost import Hardware
from explorer.facts.roofline import Machines, NamedMachine
from explorer.report.blocks import Block, Column, Field, Fields, Line, Paragraph, Span, Table, table_of
from explorer.report.present.figures import report_written
from explorer.report.present.measure.machine_words import build_measured_blocks

_UNMEASURED = "This machine, 'here', is not measured: explorer machines --measure measures it."


def machines(fact: Machines, *, saved: bool = False) -> list[Block]:
    """Return the answer of `explorer machines`, or of `explorer machines --save` if `saved`."""
    if saved:
        return [
            *report_written(printable(fact.config)),
            Line(),
            *(build_hardware_fields(machine.hardware) for machine in fact.machines),
            *(
                Paragraph(warning, "warning")
                for machine in fact.machines
                if (warning := _warn_array(machine.hardware))
            ),
            *(
                block
                for machine in fact.machines
                if machine.measured
                for block in build_measured_blocks(machine.measured)
            ),
        ]
    has_measured = any(machine.name == "here" for machine in fact.machines)
    peaks = (
        "Peaks are for dense products, without sparsity, of the type beside them. Your own machines are in "
    )
    return [
        _build_machine_table(fact.machines),
        Line(),
        Paragraph(f"{peaks}{printable(fact.config)}, and are listed first.", "quiet"),
        *([] if has_measured else [Paragraph(_UNMEASURED, "quiet")]),
    ]


def _warn_array(machine: Hardware) -> str:
    """Return a warning if an array does not compute one MAC per cell and cycle, or ''."""
    if machine.array is None or machine.macs_per_cycle is None:
        return ""
    cells = machine.array[0] * machine.array[1]
    if math.isclose(machine.macs_per_cycle, cells, rel_tol=1e-6):
        return ""
    rows, columns = machine.array
    return (
        f"{machine.macs_per_cycle:,.6g} MACs a cycle do not match an array of {rows} x {columns},"
        f" which computes {cells:,}: computed times follow the MACs a cycle. Omit one of the two settings,"
        " unless a cell computes more or less than one MAC."
    )


def build_hardware_fields(machine: Hardware) -> Fields:
    """Return the known figures of a machine."""
    pairs: list[tuple[str, str | None]] = [
        ("peak", rate_text(machine.peak_macs, "MAC/s") if machine.peak_macs else None),
        ("bandwidth", rate_text(machine.bandwidth, "B/s") if machine.bandwidth else None),
        ("MACs a cycle", f"{machine.macs_per_cycle:,.6g}" if machine.macs_per_cycle else None),
        ("bytes a cycle", f"{machine.bytes_per_cycle:,.6g}" if machine.bytes_per_cycle else None),
        ("clock", rate_text(machine.clock, "Hz") if machine.clock else None),
        ("buffer", bytes_text(machine.buffer) if machine.buffer else None),
        ("array", " x ".join(map(str, machine.array)) if machine.array else None),
        (
            "next tiles",
            f"loaded {'while computing (double-buffered)' if machine.double_buffered else 'after computing'}",
        ),
    ]
    name = Field("machine", Span(printable(machine.name), "strong"))
    return Fields([name, *(Field(label, text) for label, text in pairs if text is not None)])


def _build_machine_table(machines: Sequence[NamedMachine]) -> Table:
    return table_of(
        machines,
        (
            (Column("name"), lambda row: Span(printable(row.name), "strong")),
            (Column("peak", "right"), lambda row: _format_rate(row.hardware.peak_macs, "MAC/s")),
            (Column("of"), lambda row: row.dtype),
            (Column("bandwidth", "right"), lambda row: _format_rate(row.hardware.bandwidth, "B/s")),
            (Column("what it is", shrink=True), lambda row: row.about),
            (Column("source", shrink=True, paths=True), lambda row: Span(printable(row.source), "quiet")),
        ),
        what="machines",
    )


def _format_rate(value: float | None, unit: str) -> str:
    return "?" if value is None else rate_text(value, unit)
