"""The Operators tab: a histogram of the operator types; open, a row shows the range of every attribute."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from explorer.base import units
from explorer.base.errors import ExplorerError
from explorer.tui.pages.tensors import value_text
from explorer.tui.tabs.tab import Tab
from explorer.tui.text.lines import Line, Span, bar, count_figure, field, fit, safe
from explorer.tui.widgets.fold_list import FoldEntry, FoldList

if TYPE_CHECKING:
    from explorer.facts import Analysis, OpStat, Range


_VALUES = 8
"""Values of an attribute that are shown with their counts."""


class OperatorsTab(Tab[FoldList]):
    """Every operator type."""

    def paint(self) -> None:
        """The operators, as soon as they are known."""
        store = self.store
        assert store.analysis is not None
        if store.ops is None:
            work = self._fetch(store.analysis)
            self.view.screen.run_worker(work, group="operators", exclusive=True)
        else:
            entries = operator_entries(store.ops, store.analysis.info.totals.macs, store.exact)
            self.view.set_entries(entries, keep=True)

    async def _fetch(self, analysis: Analysis) -> None:
        """What the engine was not asked for when the model was opened."""
        with suppress(ExplorerError):
            ops = await self.store.jobs.ask("ops")
            if self.store.analysis is analysis:
                self.store.ops = ops
                self.store.notify("found")


def operator_entries(stats: Sequence[OpStat], macs: int | None, exact: bool) -> list[FoldEntry]:
    """A row a type, costliest first as the engine lists them; bars show counts and MACs beside each other."""
    most = max((s.count for s in stats), default=0)
    rows = [
        FoldEntry(partial(_row, s, most, macs, exact), partial(_ranges, s) if s.attributes else None)
        for s in stats
    ]
    return [FoldEntry(partial(_head, exact)), *rows]


_COUNT = 6


def _widths(width: int, exact: bool) -> tuple[int, int, int, int]:
    """Cells of the name, of a bar with a blank on its left, of the MACs and of the parameters."""
    macs = 16 if exact and width >= 60 else 10
    params = (16 if exact else 10) if width >= 64 else 0
    bars = 12 if width >= 70 else 8 if width >= 50 else 6 if width >= 34 else 0
    both = 2 if width >= 50 else 1
    return max(6, width - _COUNT - macs - params - both * bars - 1), bars, macs, params


def _head(exact: bool, width: int) -> Line:
    name, gauge, macs, params = _widths(width, exact)
    columns = fit("count", _COUNT, right=True) + " " * gauge + fit("MACs", macs, right=True)
    columns += " " * (gauge if width >= 50 else 0) + fit("params", params, right=True)
    return ((fit("operator", name), "head"), (columns, "dim"))


def _row(stat: OpStat, most: int, macs: int | None, exact: bool, width: int) -> Line:
    name, gauge, number, last = _widths(width, exact)
    figure = count_figure(stat.macs, exact and width >= 60)
    role = "warn" if stat.macs is None else "number" if stat.macs else "dim"
    spans: list[Span] = [
        (fit(safe(stat.op), name), "text"),
        (fit(f"{stat.count:,}", _COUNT, right=True), "number"),
        *_bar(stat.count / most if most else 0.0, gauge),
        (fit(figure, number, right=True), role),
    ]
    if width >= 50:
        spans += _bar(stat.macs / macs if stat.macs and macs else 0.0, gauge)
    if last:
        params = count_figure(stat.params, exact)
        spans.append((fit(params, last, right=True), "number" if stat.params else "dim"))
    return tuple(spans)


def _bar(share: float, width: int) -> list[Span]:
    return [(" ", "text"), *bar(share, width - 1)] if width else []


def _ranges(stat: OpStat, width: int) -> list[Line]:
    """The range of every attribute, and where it takes several values a histogram of them."""
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
        if values.distinct > 1:
            lines.extend(_histogram(values, stat.count, label_width, width - 1))
    return lines


def _histogram(values: Range, count: int, indent: int, width: int) -> list[Line]:
    shown = values.values[:_VALUES]
    number = max(len(f"{n:,}") for _, n in shown) + 1
    gauge = max(6, min(20, (width - indent) // 3))
    room = max(6, width - indent - gauge - number)
    lines: list[Line] = []
    for value, n in shown:
        filled, track = bar(n / count if count else 0.0, gauge - 1)
        said = fit(value_text(value), room)
        times = (fit(f"{n:,}", number, right=True), "dim")
        lines.append(((" " * indent, "text"), (said, "text"), (" ", "text"), filled, track, times))
    if values.distinct > len(shown):
        lines.append(((" " * indent, "text"), (f"{values.distinct - len(shown):,} more values", "dim")))
    return lines


def range_text(values: Range) -> tuple[Span, ...]:
    """`3`, or `[1, 1] … [11, 11]`; of values without an order how many there are."""
    if values.distinct <= 1:
        return ((value_text(values.values[0][0] if values.values else values.minimum), "number"),)
    if values.minimum is None or values.maximum is None:
        return ((f"{values.distinct:,} values", "number"),)
    return ((f"{value_text(values.minimum)} … {value_text(values.maximum)}", "number"),)
