"""Figures as cells: counts, sizes, shares and times. Inexact, unknown and zero values are marked.

The text output takes most of its numbers from here. `explorer.base.units` does the rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from explorer.base.units import (
    bytes_text,
    count_text,
    dims_text,
    exact_text,
    number_text,
    percent_text,
    printable,
    seconds_text,
    seeds_text,
    shape_text,
)
from explorer.facts import TensorInfo
from explorer.report.blocks import Block, Cell, Column, Field, Line, Role, Span, Table


def count(value: int | None, sign: str = "") -> Span:
    """Format a count with SI prefixes; `sign` marks an inexact value, as in `Totals.sign`."""
    return _format_figure(value, count_text(value), exact_text(value), sign)


def size(value: int | None, sign: str = "") -> Span:
    """Format a size in bytes with IEC prefixes; `sign` as for `count`."""
    return _format_figure(value, bytes_text(value), f"{exact_text(value)} B", sign)


def plain(value: int | None, sign: str = "") -> Span:
    """Format a count with all digits; `sign` as for `count`."""
    if value is None or _is_zero_bound(value, sign):
        return Span("?", "warning")
    return Span(sign + exact_text(value), "warning" if sign else "figure", value=value)


def number(value: float) -> Span:
    """Format an external figure of unknown unit with at least four digits."""
    return Span(number_text(value), "figure", f"{value:,.15g}", value)


def _is_zero_bound(value: int, sign: str) -> bool:
    """Whether a figure is a lower bound of zero, which is shown as unknown."""
    return not value and sign.strip() in (">=", "≥")


def _format_figure(value: int | None, rounded: str, exact: str, sign: str) -> Span:
    if value is None or _is_zero_bound(value, sign):
        return Span(rounded if value is None else "?", "warning")
    role: Role = "warning" if sign else "figure"
    return Span(sign + rounded, role, sign + exact, value)


def seconds(value: float | None, sign: str = "") -> Span:
    """Format a duration; `sign` as for `count`."""
    if value is None:
        return Span("?", "warning")
    return Span(sign + seconds_text(value), "warning" if sign else "figure", value=value)


def share(part: float | None, total: float | None) -> Span:
    """Format a share in percent."""
    is_known = part is not None and bool(total)
    return Span(percent_text(part, total), value=part / total if is_known and part and total else None)


def dash_zero(figure: Span) -> Span:
    """Return a figure for a table, with a dash for zero."""
    return figure if figure.value != 0 else Span("-", "quiet", value=0)


def count_field(label: str, value: int | None, sign: str = "", remark: Cell = "", short: str = "") -> Field:
    """Create a labeled count."""
    return Field(label, count(value, sign), remark, short)


def bytes_field(label: str, value: int | None, sign: str = "", remark: Cell = "", short: str = "") -> Field:
    """Create a labeled size in bytes."""
    return Field(label, size(value, sign), remark, short)


def share_text(part: float | None, total: float | None) -> str:
    """Format a share in percent. Shares that would round to 0 or 100 % become '<0.1 %' or '>99.9 %'."""
    share = part / total if part and total else 0
    if 0 < share < 0.0005:
        return "<0.1 %"
    return ">99.9 %" if 0.9995 <= share < 1 else percent_text(part, total)


def utilization(share: float | None) -> Span:
    """Format tile utilization: the needed share of the tiles' arithmetic."""
    if share is None:
        return Span("?", "warning")
    role: Role = "good" if share >= 0.75 else "" if share >= 0.25 else "warning"
    return Span(share_text(share, 1), role, value=share)


def format_in_unit(unit: str, value: Any) -> Span:
    """Format a figure in a unit of `settings.columns`; '?' for unknown.

    Zero is '-', but '' for a share and 0 for the unit 'plain'.
    """
    if value is None:
        return Span("?", "warning")
    if unit == "count":
        return dash_zero(count(value))
    if unit == "bytes":
        return dash_zero(size(round(value)))
    if unit == "number":
        return dash_zero(number(value))
    if unit == "seconds":
        return dash_zero(seconds(value))
    if unit == "plain":
        return plain(value)
    if unit == "share":
        text = share_text(value, 1) if value else ""
        return Span(text, value=value)
    if unit == "mebibytes":
        text = "<0.01" if 0 < value / 2**20 < 0.005 else f"{value / 2**20:,.2f}"
        return dash_zero(Span(text, "figure", f"{value / 2**20:,.6f}", value))
    return dash_zero(Span(f"{value:,.2f}".removesuffix(".00"), "figure", value=value))


def bar_text(value: float | None, largest: float, cells: int = 10) -> str:
    """Draw a bar of at most `cells` cells, rounded to half cells."""
    if not value or not largest:
        return ""
    halves = round(2 * cells * value / largest)
    return "█" * (halves // 2) + "▌" * (halves % 2)


def value_text(value: Any, max_items: int | None = None) -> str:
    """Format the value of an attribute or assumption, with at most `max_items` items of a list."""
    if isinstance(value, Mapping):
        return ", ".join(f"{k} = {value_text(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        ellipsis = [] if max_items is None or len(value) <= max_items else ["…"]
        return "[" + ", ".join([*(value_text(v, max_items) for v in value[:max_items]), *ellipsis]) + "]"
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, int) and not isinstance(value, bool):
        return exact_text(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def build_port_table(inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> Table:
    """Return a table of the inputs and outputs of a model: name, dtype, shape, and conflict of two shapes."""
    rows = [
        (
            Span(label if index == 0 else "", "quiet"),
            printable(tensor.name),
            Span(tensor.dtype or "?", "quiet"),
            shape_text(tensor.shape),
            Span(tensor.conflict, "warning"),
        )
        for label, tensors in (("inputs", inputs), ("outputs", outputs))
        for index, tensor in enumerate(tensors)
    ]
    columns = (Column(""), Column("", shrink=True), Column("", role="quiet"), Column(""), Column(""))
    return Table(columns, rows)


def report_written(output: str, *about: str) -> list[Block]:
    """Return the line that reports a written file, with optional details."""
    details = [Span(f"   {', '.join(about)}", "quiet")] if about else []
    return [Line((Span("written  ", "quiet"), Span(output, "strong"), *details))]


def runs_text(seeds: Sequence[int], sizes: Sequence[Mapping[str, int]]) -> list[str]:
    """Describe the random inputs of runs, and the sizes of their dimensions."""
    sizes_text = [f"sizes: {'; '.join(dims_text(dims) for dims in sizes)}"] if sizes else []
    return [*([seeds_text(seeds)] if seeds else []), *sizes_text]


def snr_text(snr: float) -> str:
    """Format a signal-to-noise ratio: '38.2 dB', 'exact' if it is infinite, otherwise 'all lost'."""
    return f"{snr:.1f} dB" if math.isfinite(snr) else "exact" if snr > 0 else "all lost"
