"""Base class of the sweep screens: a table of trials next to the plot of their Pareto front.

Jobs of the engine fill the table, and Esc stops them. The screens for tilings and for number formats are
subclasses that define the rows, the plot and the facts.
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
from explorer.tui.text.lines import Line, cut_message, escape_name
from explorer.tui.widgets.line_view import LineList, LineView, PanelView
from explorer.tui.widgets.status_line import JobLine, job_line
from explorer.tui.widgets.strips import PaneHead, Status, TitleBar

if TYPE_CHECKING:
    from explorer.process.client import EngineProcess

T = TypeVar("T")

_MIN_PLOT_WIDTH, _TABLE_SHARE = 40, 0.55
"""Minimum width of the plot in cells, and the usual share of the screen width for the table."""


class ParetoScreen(SubScreen[T], Generic[T]):
    """Show a table, a plot, and facts about the current row; the result is the row to apply.

    Args:
        table: List widget with the rows.
        engine: Engine process that runs the jobs.
        ask: Whether to open the dialog for more trials when the screen opens.

    Attributes:
        MIN_WIDTH_BESIDE: Minimum screen width, in cells, for table and plot side by side.
        MIN_HEIGHT_FOR_BOTH: Minimum screen height, in lines, for both table and plot on a narrow screen.
        FACT_LINES: Number of lines for facts on a tall screen.
    """

    MIN_WIDTH_BESIDE: ClassVar[int]
    MIN_HEIGHT_FOR_BOTH: ClassVar[int]
    FACT_LINES: ClassVar[int]
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "stop", show=False)]
    AUTO_FOCUS = "#sweep-rows"

    def __init__(self, table: LineList, engine: EngineProcess, *, ask: bool) -> None:
        super().__init__()
        self._table, self._asks_on_mount = table, ask
        self._jobs = Jobs(engine, self._show_status)
        self._status_text, self._job_started = "", 0.0
        self._prefers_plot = False

    def compose(self) -> ComposeResult:
        """Yield the title bar, the table, the plot, the facts, the status line and the key line."""
        yield TitleBar()
        yield PaneHead(id="sweep-head")
        with Container(id="sweep"):
            yield self._table
            yield PanelView(self._plot, id="sweep-plot")
        yield LineView(id="sweep-facts", focusable=False)
        yield JobLine(self._jobs, self._draw_status_line)
        yield Status(id="sweep-keys")  # the key line

    def on_mount(self) -> None:
        """Show the rows so far; open the dialog if requested."""
        self.show_keys()
        self._lay_out()
        self._show()
        if self._asks_on_mount:
            self.action_more()

    def on_resize(self) -> None:
        """Update the layout for the new size."""
        self._lay_out()
        self._show()

    def _lay_out(self) -> None:
        is_tall = self.size.height >= self.MIN_HEIGHT_FOR_BOTH
        shows_one_pane = self.size.width < self.MIN_WIDTH_BESIDE and not is_tall
        self._table.display = self.query_one("#sweep-head").display = not (
            shows_one_pane and self._prefers_plot
        )
        self.query_one(PanelView).display = self._prefers_plot or not shows_one_pane
        self.query_one("#sweep-facts").styles.height = self.FACT_LINES if is_tall else 2

    def _set_table_width(self) -> None:
        """Widen the table beyond its share to show all columns, but leave the plot its minimum width."""
        table_width = min(self._compute_wanted_width(), self.size.width - _MIN_PLOT_WIDTH)
        is_wider = self.size.width >= self.MIN_WIDTH_BESIDE and table_width > _TABLE_SHARE * self.size.width
        self._table.styles.width = table_width if is_wider else None

    def _show(self) -> None:
        self._fill()
        self._set_table_width()
        self._show_head()
        self.query_one(TitleBar).show(self._title)
        self._show_facts()
        self._show_status()

    @on(LineList.SizeChanged)
    def _show_head(self) -> None:
        """Draw the column titles as wide as the table."""
        self.query_one("#sweep-head", PaneHead).show(lambda _: (self._draw_head(self._table.size.width),))

    @on(LineList.RowHighlighted)
    def _show_facts(self) -> None:
        self.query_one("#sweep-facts", LineView).show(self._draw_facts, top=True)
        self.query_one(PanelView).redraw()

    def _show_status(self) -> None:
        self.query_one(JobLine).draw_status()

    def _draw_status_line(self, width: int) -> Line:
        running = self._jobs.current
        if running is None:
            return ((cut_message(f" {escape_name(self._status_text)}", width), "dim"),)
        elapsed = time.monotonic() - self._job_started
        return job_line(self._tell_progress(), running.job.progress, elapsed, width, refused=running.refused)

    def _say(self, message: str) -> None:
        self._status_text, self.has_message = message, bool(message)
        self._show_status()

    def action_more(self) -> None:
        """Open the dialog for more trials."""
        if self._jobs.refuse():
            self._show_status()
            self.app.bell()
            return
        self._ask()

    def action_stop(self) -> None:
        """Stop the running job, or leave the screen if no job runs."""
        if not self._jobs.stop():
            self.dismiss(None)

    def action_leave(self) -> None:
        """Leave the screen and stop a running job."""
        self._jobs.stop()
        super().action_leave()

    @on(LineList.RowSelected)
    def action_take(self) -> None:
        """Apply the row under the cursor, unless a job is running."""
        if self._jobs.refuse():
            self._show_status()
            self.app.bell()
            return
        self._choose()

    def action_plot(self) -> None:
        """Switch between plot and table on a screen too small for both."""
        self._prefers_plot = not self._prefers_plot
        self._lay_out()
        if self._table.display:
            self._table.focus()
        self.query_one(PanelView).redraw()

    def _write(
        self,
        title: str,
        path: str,
        explanation: str,
        work: Callable[[str, bool], None],
        on_written: Callable[[str], None],
    ) -> None:
        """Ask for a path, write to it in a thread, then call `on_written`. After an error, ask again."""

        async def write_in_thread(path: str, overwrite: bool, retry: Callable[[], None]) -> None:
            try:
                await asyncio.to_thread(work, path, overwrite)
            except ExplorerError as error:
                self.app.push_screen(MessageDialog("Write", str(error)), lambda _: retry())
                return
            on_written(path)

        def write(path: str, overwrite: bool, retry: Callable[[], None]) -> None:
            self.run_worker(write_in_thread(path, overwrite, retry), exit_on_error=False)

        ask_path(self.app, title, path, explanation, write)

    # methods of subclasses

    def _compute_wanted_width(self) -> int:
        """Return the width of the table with all columns; 0 uses a fixed share of the screen."""
        return 0

    def _ask(self) -> None:
        """Open the dialog, and start the trials that it describes."""
        raise NotImplementedError

    def _choose(self) -> None:
        """Close the screen with the row under the cursor as the result."""
        raise NotImplementedError

    def _fill(self) -> None:
        """Fill the table with the rows."""
        raise NotImplementedError

    def _draw_head(self, width: int) -> Line:
        """Build the line of column titles."""
        raise NotImplementedError

    def _title(self, width: int) -> tuple[Line, ...]:
        """Build the lines of the title bar."""
        raise NotImplementedError

    def _draw_facts(self, width: int) -> Sequence[Line]:
        """Build the facts about the row under the cursor."""
        raise NotImplementedError

    def _plot(self, width: int, height: int) -> Sequence[Line]:
        """Draw the plot."""
        raise NotImplementedError

    def _tell_progress(self) -> str:
        """Describe the running job and its progress."""
        raise NotImplementedError
