"""Figures as cells: counts, sizes, shares and times, with what is not exact, unknown or nothing told apart.

The one place where a number becomes text that people read; `explorer.base.units` rounds.
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
from explorer.report.blocks import Block, Cell, Field, Line, Role, Span


def count(value: int | None, sign: str = "") -> Span:
    """A count in SI; `sign` says how it is not exact, as in `Totals.sign`."""
    return _figure(value, count_text(value), exact_text(value), sign)


def size(value: int | None, sign: str = "") -> Span:
    """A size in IEC; `sign` as for `count`."""
    return _figure(value, bytes_text(value), f"{exact_text(value)} B", sign)


def plain(value: int | None, sign: str = "") -> Span:
    """A count that is written out; `sign` as for `count`."""
    if value is None:
        return Span("?", "warning")
    return Span(sign + exact_text(value), "warning" if sign else "figure", value=value)


def number(value: float) -> Span:
    """A figure from outside, whose unit nobody knows: four digits, of a large one all before the point."""
    return Span(number_text(value), "figure", f"{value:,.15g}", value)


def _figure(value: int | None, rounded: str, exact: str, sign: str) -> Span:
    if value is None:
        return Span(rounded, "warning")
    role: Role = "warning" if sign else "figure"
    return Span(sign + rounded, role, sign + exact, value)


def seconds(value: float | None, sign: str = "") -> Span:
    """A duration; `sign` as for `count`."""
    if value is None:
        return Span("?", "warning")
    return Span(sign + seconds_text(value), "warning" if sign else "figure", value=value)


def share(part: float | None, whole: float | None) -> Span:
    """A share in percent."""
    known = part is not None and bool(whole)
    return Span(percent_text(part, whole), value=part / whole if known and part and whole else None)


def quiet_zero(figure: Span) -> Span:
    """A figure as a cell of a table, where nothing is a dash: nothing to see."""
    return figure if figure.value != 0 else Span("-", "quiet", value=0)


def count_field(label: str, value: int | None, sign: str = "", remark: Cell = "", short: str = "") -> Field:
    """A count with its name."""
    return Field(label, count(value, sign), remark, short)


def bytes_field(label: str, value: int | None, sign: str = "", remark: Cell = "", short: str = "") -> Field:
    """A size with its name."""
    return Field(label, size(value, sign), remark, short)


def share_text(part: float | None, whole: float | None) -> str:
    """A share in percent; one that would round to nothing, or to all, says so: '<0.1 %', '>99.9 %'."""
    share = part / whole if part and whole else 0
    if 0 < share < 0.0005:
        return "<0.1 %"
    return ">99.9 %" if 0.9995 <= share < 1 else percent_text(part, whole)


def utilization(share: float | None) -> Span:
    """How much of the tiles' arithmetic is needed."""
    if share is None:
        return Span("?", "warning")
    role: Role = "good" if share >= 0.75 else "" if share >= 0.25 else "warning"
    return Span(share_text(share, 1), role, value=share)


def in_unit(unit: str, value: Any) -> Span:
    """A figure in a unit of `settings.columns`: nothing is a dash, unknown a question mark."""
    if value is None:
        return Span("?", "warning")
    if unit == "count":
        return quiet_zero(count(value))
    if unit == "bytes":
        return quiet_zero(size(round(value)))
    if unit == "number":
        return quiet_zero(number(value))
    if unit == "seconds":
        return quiet_zero(seconds(value))
    if unit == "plain":
        return plain(value)
    if unit == "share":
        text = share_text(value, 1) if value else ""
        return Span(text, value=value)
    if unit == "mebibytes":
        text = "<0.01" if 0 < value / 2**20 < 0.005 else f"{value / 2**20:,.2f}"
        return quiet_zero(Span(text, "figure", f"{value / 2**20:,.6f}", value))
    return quiet_zero(Span(f"{value:,.2f}".removesuffix(".00"), "figure", value=value))


def bar_text(value: float | None, largest: float, cells: int = 10) -> str:
    """A bar of at most `cells` cells, in halves; a value that is not 0 shows at least half a cell."""
    if not value or not largest:
        return ""
    halves = max(1, round(2 * cells * value / largest))
    return "█" * (halves // 2) + "▌" * (halves % 2)


def value_text(value: Any, most: int | None = None) -> str:
    """A value of an attribute or an assumption; of a list at most `most` items."""
    if isinstance(value, Mapping):
        return ", ".join(f"{k} = {value_text(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        more = [] if most is None or len(value) <= most else ["…"]
        return "[" + ", ".join([*(value_text(v, most) for v in value[:most]), *more]) + "]"
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, int) and not isinstance(value, bool):
        return exact_text(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def ports(head: str, tensors: Sequence[TensorInfo]) -> list[Block]:
    """What goes into a model, or comes out, a line each."""
    return [
        Line(
            (
                Span(f"  {head} ", "quiet"),
                printable(tensor.name),
                Span(f"   {tensor.dtype or '?'} {shape_text(tensor.shape)}", "quiet"),
            )
        )
        for tensor in tensors
    ]


def written(output: str, *about: str) -> list[Block]:
    """The answer of a verb that wrote a file, and what is said of it."""
    said = [Span(f"   {', '.join(about)}", "quiet")] if about else []
    return [Line((Span("written  ", "quiet"), Span(output, "strong"), *said))]


def runs_text(seeds: Sequence[int], sizes: Sequence[Mapping[str, int]]) -> list[str]:
    """On how many random inputs something ran, and at which sizes."""
    at = [f"sizes: {'; '.join(dims_text(one) for one in sizes)}"] if sizes else []
    return [*([seeds_text(seeds)] if seeds else []), *at]


def snr_text(snr: float) -> str:
    """'38.2 dB'; 'exact' where nothing is lost."""
    return f"{snr:.1f} dB" if math.isfinite(snr) else "exact" if snr > 0 else "all lost"
