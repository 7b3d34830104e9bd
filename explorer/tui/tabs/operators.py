"""The Operators tab: one row per operator type; an open row shows the range of each attribute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from explorer.base.errors import ExplorerError
from explorer.report.present.look.ops import attribute_blocks, build_operator_table
from explorer.tui.tabs.tab import Tab
from explorer.tui.text.drawing import draw, row_line, title_line
from explorer.tui.text.lines import Line
from explorer.tui.widgets.fold_list import FoldEntry, FoldList, note_entries

if TYPE_CHECKING:
    from explorer.facts import Analysis, Info, OpStat


_ORDERS: tuple[tuple[str, str, Callable[[OpStat], tuple[object, ...]] | None], ...] = (
    ("by MACs, the largest first", "macs", None),
    ("by count, the largest first", "count", lambda stat: (-stat.count,)),
    ("by parameters, the largest first", "params", lambda stat: (-stat.params,)),
    (
        "by elementwise operations, the largest first",
        "elementwise_ops",
        lambda stat: (stat.elementwise_ops is None, -(stat.elementwise_ops or 0)),
    ),
    ("by name", "", lambda stat: (stat.op.lower(),)),
)
"""Description of each order, the figure with bars, and the sort key; None for the order of the engine."""


class OperatorsTab(Tab[FoldList]):
    """Lists the operator types of the model."""

    _order = 0

    def sort(self) -> bool:
        """Show the operators in the next order."""
        if self.store.analysis is not None and self.store.ops is not None:
            self._order = (self._order + 1) % len(_ORDERS)
            self._show(self.store.analysis.info, self.store.ops, keep=False)
            self.store.say(f"operators {_ORDERS[self._order][0]}")
        return True

    def paint_outline(self) -> None:
        """Show that the operators are unknown while the model is not open."""
        self.view.set_entries(note_entries(self.closed_message))

    def paint(self) -> None:
        """Show the operators, requesting them first if necessary."""
        store = self.store
        assert store.analysis is not None
        if store.ops is None:
            work = self._fetch(store.analysis)
            self.view.screen.run_worker(work, group="operators", exclusive=True)
        else:
            self._show(store.analysis.info, store.ops, keep=True)

    def _show(self, info: Info, stats: Sequence[OpStat], *, keep: bool) -> None:
        """Show the operators in the current order. `keep` keeps open rows and the cursor."""
        _, figure, key = _ORDERS[self._order]
        ordered = stats if key is None else sorted(stats, key=key)
        self.view.set_entries(operator_entries(info, ordered, figure, self.store.exact), keep=keep)
        if stats and not self.view.cursor:
            self.view.move_to(1)  # below the titles

    async def _fetch(self, analysis: Analysis) -> None:
        """Request the operator statistics, which the engine does not compute when it opens a model."""
        with suppress(ExplorerError):
            ops = await self.store.jobs.ask("ops")
            if self.store.analysis is analysis:
                self.store.ops = ops
                self.store.notify("answers")


def operator_entries(info: Info, stats: Sequence[OpStat], sorted_by: str, exact: bool) -> list[FoldEntry]:
    """Build one entry per operator type, in the order of `stats`. An open entry lists attribute values.

    `sorted_by` is the figure with bars, or ''.
    """
    table = build_operator_table(info, stats, sorted_by)

    def row(index: int, width: int) -> Line:
        return row_line(table, index, width - 1, exact, mark=_MARK)

    def values(stat: OpStat, width: int) -> list[Line]:
        return draw(attribute_blocks(stat), width - 1, exact)

    return [
        FoldEntry(lambda width: title_line(table, width - 1, exact)),
        *(
            FoldEntry(partial(row, i), partial(values, stat) if stat.attributes else None)
            for i, stat in enumerate(stats)
        ),
    ]


_MARK = (" ", "text")
