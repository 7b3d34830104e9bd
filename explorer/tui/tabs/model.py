"""The Model tab: totals of the model, and the assumptions behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.base.features import load_all
from explorer.facts import list_dimension_sizes
from explorer.report.blocks import Heading, Line, Paragraph
from explorer.report.present.look.info import details, overview
from explorer.report.present.shell.history_words import states
from explorer.tui.pages.outline_page import failed_page, header_page
from explorer.tui.tabs.tab import Tab
from explorer.tui.text.drawing import draw
from explorer.tui.text.lines import Line as TextLine
from explorer.tui.widgets.line_view import LineView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explorer.facts import History, Info
    from explorer.report.blocks import Block


class ModelTab(Tab[LineView]):
    """Shows the totals of the model."""

    def paint_outline(self) -> None:
        """Show the header of the file, or why it could not be read."""
        outlined, failure = self.store.outline, self.store.failure
        if outlined is None:
            self.view.show(failed_page(failure))
        else:
            self.view.show(lambda width: header_page(outlined.header, width, failure))

    def paint(self) -> None:
        """Show the totals, and the blocks that features add."""
        store = self.store
        assert store.analysis is not None
        info, history, exact = store.analysis.info, store.history, store.exact
        feature_blocks = [block for blocks in load_all("model_blocks") for block in blocks(info, store)]
        self.view.show(lambda width: model_page(info, history, width, exact, feature_blocks))


def model_page(
    info: Info, history: History | None, width: int, exact: bool, feature_blocks: Sequence[Block] = ()
) -> list[TextLine]:
    """Draw the totals, the blocks of features, inputs and outputs, assumptions, and the history."""
    blocks = [*overview(info), *feature_blocks]
    open_sizes = [name for name, size in list_dimension_sizes(info).items() if size is None]
    if open_sizes:
        text = f"Some sizes are open: {', '.join(open_sizes)}. Press D to set them and get every figure."
        blocks += [Line(), Paragraph(text, "warning")]
    blocks += details(info)
    if history is not None and len(history.entries) > 1:
        blocks += [Line(), Heading("History"), states(history, "●")]
    return draw(blocks, width - 1, exact)
