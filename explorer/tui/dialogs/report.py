"""Report screen: figures to scroll through, exact or rounded, and copied as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from textual.app import ComposeResult

from explorer.report.html.draw import markdown_text
from explorer.tui.dialogs.dialogs import SubScreen
from explorer.tui.text.lines import Line
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.strips import Status, TitleBar

T = TypeVar("T")


class ReportScreen(SubScreen[T], Generic[T]):
    """A report.

    Args:
        exact: Whether figures are written out.
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
        """The parts."""
        yield TitleBar()
        yield self.VIEW(id="figures")
        yield Status(id="figure-keys")

    def on_mount(self) -> None:
        """Show the report."""
        self.show_report()
        self.show_keys()

    def show_report(self) -> None:
        """Show it as it is asked for now."""
        head = self.head()
        self.query_one(TitleBar).show(lambda width: head)
        self.query_one("#figures", LineView).show(self.report_lines)

    def head(self) -> tuple[Line, Line]:
        """What stands above."""
        raise NotImplementedError

    def report_lines(self, width: int) -> Sequence[Line]:
        """The report."""
        raise NotImplementedError

    def action_figures_exact(self) -> None:
        """Write the figures out, or round them."""
        self._exact = not self._exact
        self.show_report()

    def action_figures_copy(self) -> None:
        """Send all of it to the terminal's clipboard."""
        self.app.copy_to_clipboard(markdown_text(self.page_blocks()))
        self.query_one(Status).show(lambda width: (((" sent to terminal as Markdown", "dim"),),))
