"""Report screen: a scrollable page of figures, exact or rounded, that can be copied as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from textual.app import ComposeResult

from explorer.report.html.draw import format_markdown
from explorer.tui.dialogs.dialogs import SubScreen
from explorer.tui.text.lines import Line
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.strips import Status, TitleBar

T = TypeVar("T")


class ReportScreen(SubScreen[T], Generic[T]):
    """Base class of screens that show a report.

    Args:
        exact: Whether numbers are written out instead of rounded.
    """

    AUTO_FOCUS = "#figures"
    FOOTER: ClassVar[Sequence[tuple[str, str]]] = (
        *(("↑↓", "scroll"), ("e", "exact"), ("y", "copy as Markdown"), ("Esc", "back")),
    )
    VIEW: ClassVar[type[LineView]] = LineView

    def __init__(self, *, exact: bool) -> None:
        super().__init__()
        self._exact = exact

    def compose(self) -> ComposeResult:
        """Yield the widgets."""
        yield TitleBar()
        yield self.VIEW(id="figures")
        yield Status(id="figure-keys")

    def on_mount(self) -> None:
        """Show the report and its keys."""
        self.show_report()
        self.show_keys()

    def show_report(self) -> None:
        """Draw the title and the report."""
        head = self.head()
        self.query_one(TitleBar).show(lambda width: head)
        self.query_one("#figures", LineView).show(self.report_lines)

    def head(self) -> tuple[Line, Line]:
        """Return the two lines of the title bar."""
        raise NotImplementedError

    def report_lines(self, width: int) -> Sequence[Line]:
        """Draw the report in `width` cells."""
        raise NotImplementedError

    def action_figures_exact(self) -> None:
        """Toggle exact and rounded numbers."""
        self._exact = not self._exact
        self.show_report()

    def action_figures_copy(self) -> None:
        """Copy the whole report to the terminal's clipboard as Markdown."""
        self.app.copy_to_clipboard(format_markdown(self.page_blocks()))
        self.query_one(Status).show(lambda width: (((" sent to terminal as Markdown", "dim"),),))
