"""The Operators tab: a row an operator type; open, it shows the range of every attribute."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from explorer import units
from explorer.tui.lines import Line, bar, count_figure, field, fit, safe
from explorer.tui.pages.layer import value_text
from explorer.tui.widgets.fold_list import Entry

if TYPE_CHECKING:
    from explorer.facts import OpStat, Range

__all__ = ["operator_entries", "range_text"]


def _head(width: int) -> Line:
    name, gauge = _widths(width)
    params = fit("params", 11, right=True) if width >= 46 else ""
    columns = f"{fit('count', 7, right=True)}{fit('MACs', 11, right=True)}{' ' * gauge}{params}"
    return ((fit("operator", name), "head"), (columns, "dim"))


def _widths(width: int) -> tuple[int, int]:
    gauge = 8 if width >= 56 else 0
    return max(8, width - 7 - 11 - gauge - (11 if width >= 46 else 0) - 1), gauge


def operator_entries(stats: Sequence[OpStat], macs: int | None, exact: bool) -> list[Entry]:
    """A row a type, costliest first as the engine lists them."""
    rows = [
        Entry(partial(_row, s, macs, exact), partial(_ranges, s) if s.attributes else None) for s in stats
    ]
    return [Entry(_head), *rows]


def _row(stat: OpStat, macs: int | None, exact: bool, width: int) -> Line:
    name, gauge = _widths(width)
    share = stat.macs / macs if stat.macs and macs else 0.0
    filled, track = bar(share, max(0, gauge - 1))
    figure = count_figure(stat.macs, exact and width >= 60)
    spans = [
        (fit(safe(stat.op), name), "text"),
        (fit(f"{stat.count:,}", 7, right=True), "number"),
        (fit(figure, 11, right=True), "warn" if stat.macs is None else "number" if stat.macs else "dim"),
        (" " if gauge else "", "text"),
        filled,
        track,
    ]
    if width >= 46:
        params = count_figure(stat.params, exact and width >= 60)
        spans.append((fit(params, 11, right=True), "number" if stat.params else "dim"))
    return tuple(spans)


def _ranges(stat: OpStat, width: int) -> list[Line]:
    label_width = min(max(len(safe(name)) for name in stat.attributes) + 6, 20)
    lines: list[Line] = []
    if stat.elementwise_ops:
        said = units.count_text(stat.elementwise_ops)
        lines.extend(
            field("    elementwise", ((said, "number"),), width - 1, label_width=max(label_width, 17))
        )
    for name, values in stat.attributes.items():
        label = fit("    " + safe(name), label_width - 1) + " "
        lines.extend(field(label, range_text(values), width - 1, label_width=label_width))
    return lines


def range_text(values: Range) -> tuple[tuple[str, str], ...]:
    """`3`, or `[1, 1] … [11, 11]  [3, 3] ×3, [1, 1] ×2`."""
    if values.distinct <= 1:
        return ((value_text(values.values[0][0] if values.values else values.minimum), "number"),)
    common = ", ".join(f"{value_text(v)} ×{n:,}" for v, n in values.values[:4])
    more = f", {values.distinct - 4:,} more" if values.distinct > 4 else ""
    if values.minimum is None or values.maximum is None:
        return ((common + more, "number"),)
    span = f"{value_text(values.minimum)} … {value_text(values.maximum)}"
    return ((span, "number"), (f"  {common}{more}", "dim"))
