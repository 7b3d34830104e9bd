"""Pareto screen: a table of what was tried beside the plot of its front, filled by jobs that Esc stops.

Tilings and number formats are shown so; each says what its rows, its plot and its facts are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container

from explorer.base.errors import ExplorerError
from explorer.tui.dialogs.dialogs import MessageDialog, SubScreen, ask_path
from explorer.tui.state.jobs import Jobs
from explorer.tui.text.lines import Line, fit, safe
from explorer.tui.widgets.line_view import LineList, LineView, PanelView
from explorer.tui.widgets.status_line import JobLine, job_line
from explorer.tui.widgets.strips import PaneHead, Status, TitleBar

if TYPE_CHECKING:
    from explorer.process.client import EngineProcess

T = TypeVar("T")

_PLOT_WIDTH, _SHARE = 40, 0.55
"""Cells that a plot beside a table keeps, and the table's share of the width where it needs no more."""


class ParetoScreen(SubScreen[T], Generic[T]):
    """A table, a plot, and facts about the current row; answers with what is to be done.

    Args:
        table: Its rows.
        engine: Answers.
        ask: Whether it begins with a question.

    Attributes:
        BESIDE: Columns from which on table and plot stand beside each other.
        TALL: Rows under which only one of both is shown.
        FACTS: Lines of facts where there is room.
    """

    BESIDE: ClassVar[int]
    TALL: ClassVar[int]
    FACTS: ClassVar[int]
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "stop", show=False)]
    AUTO_FOCUS = "#sweep-rows"

    def __init__(self, table: LineList, engine: EngineProcess, *, ask: bool) -> None:
        super().__init__()
        self._table, self._begins = table, ask
        self._jobs = Jobs(engine, self._show_status)
        self._said, self._began = "", 0.0
        self._plotted = False

    def compose(self) -> ComposeResult:
        """The widgets of the screen."""
        yield TitleBar()
        yield PaneHead(id="sweep-head")
        with Container(id="sweep"):
            yield self._table
            yield PanelView(self._plot, id="sweep-plot")
        yield LineView(id="sweep-facts", focusable=False)
        yield JobLine(self._jobs, self._status)
        yield Status(id="sweep-keys")

    def on_mount(self) -> None:
        """Show the rows there are; without any ask what to try."""
        self.show_keys()
        self._lay_out()
        self._show()
        if self._begins:
            self.action_more()

    def on_resize(self) -> None:
        """Lay table and plot out anew."""
        self._lay_out()
        self._show()

    def _lay_out(self) -> None:
        tall = self.size.height >= self.TALL
        alone = self.size.width < self.BESIDE and not tall
        self._table.display = self.query_one("#sweep-head").display = not (alone and self._plotted)
        self.query_one(PanelView).display = self._plotted or not alone
        self.query_one("#sweep-facts").styles.height = self.FACTS if tall else 2

    def _divide(self) -> None:
        """Give the table the width of its columns, if enough is left for the plot."""
        wanted = min(self._wanted_width(), self.size.width - _PLOT_WIDTH)
        more = self.size.width >= self.BESIDE and wanted > _SHARE * self.size.width
        self._table.styles.width = wanted if more else None

    def _show(self) -> None:
        self._fill()
        self._divide()
        self._show_head()
        self.query_one(TitleBar).show(self._title)
        self._tell()
        self._show_status()

    @on(LineList.SizeChanged)
    def _show_head(self) -> None:
        """The headings over the columns, as wide as the table is."""
        self.query_one("#sweep-head", PaneHead).show(lambda _: (self._head(self._table.size.width),))

    @on(LineList.RowHighlighted)
    def _tell(self) -> None:
        self.query_one("#sweep-facts", LineView).show(self._facts, top=True)
        self.query_one(PanelView).again()

    def _show_status(self) -> None:
        self.query_one(JobLine).draw_status()

    def _status(self, width: int) -> Line:
        running = self._jobs.current
        if running is None:
            return ((fit(f" {safe(self._said)}", width), "dim"),)
        elapsed = time.monotonic() - self._began
        return job_line(self._progress(), running.job.progress, elapsed, width, refused=False)

    def _say(self, said: str) -> None:
        self._said = said
        self._show_status()

    def action_more(self) -> None:
        """Ask what to try, and begin."""
        if self._jobs.current is not None:
            self.app.bell()
            return
        self._ask()

    def action_stop(self) -> None:
        """Stop the running job; without one go back."""
        if not self._jobs.stop():
            self.dismiss(None)

    def action_leave(self) -> None:
        """Go back, even while a job runs."""
        self._jobs.stop()
        super().action_leave()

    @on(LineList.RowSelected)
    def action_take(self) -> None:
        """Answer with the row under the cursor."""
        if self._jobs.current is not None:
            self.app.bell()
            return
        self._choose()

    def action_plot(self) -> None:
        """Show plot or table, where there is no room for both."""
        self._plotted = not self._plotted
        self._lay_out()
        if self._table.display:
            self._table.focus()
        self.query_one(PanelView).again()

    def _write(
        self,
        title: str,
        path: str,
        explanation: str,
        work: Callable[[str, bool], None],
        done: Callable[[str], None],
    ) -> None:
        """Ask for a path and write there in a thread, then call `done`; after an error ask again."""

        async def written(path: str, overwrite: bool, again: Callable[[], None]) -> None:
            try:
                await asyncio.to_thread(work, path, overwrite)
            except ExplorerError as error:
                self.app.push_screen(MessageDialog("Write", str(error)), lambda _: again())
                return
            done(path)

        def write(path: str, overwrite: bool, again: Callable[[], None]) -> None:
            self.run_worker(written(path, overwrite, again), exit_on_error=False)

        ask_path(self.app, title, path, explanation, write)

    # what a subclass says

    def _wanted_width(self) -> int:
        """Width of the table with all columns; 0 for a fixed share of the screen."""
        return 0

    def _ask(self) -> None:
        """Asks what to try, and begins."""
        raise NotImplementedError

    def _choose(self) -> None:
        """Answers with the row under the cursor."""
        raise NotImplementedError

    def _fill(self) -> None:
        """Gives the table its rows."""
        raise NotImplementedError

    def _head(self, width: int) -> Line:
        """The headings of the columns."""
        raise NotImplementedError

    def _title(self, width: int) -> tuple[Line, ...]:
        """The lines of the title bar."""
        raise NotImplementedError

    def _facts(self, width: int) -> Sequence[Line]:
        """Facts about the row under the cursor."""
        raise NotImplementedError

    def _plot(self, width: int, height: int) -> Sequence[Line]:
        """The plot."""
        raise NotImplementedError

    def _progress(self) -> str:
        """The running job and its progress."""
        raise NotImplementedError
