"""The Model tab: the whole model in figures, and what was assumed to get them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.report.blocks import Heading, Line, Paragraph
from explorer.report.present.look.info import details, overview, symbolic_hint
from explorer.report.present.look.training import figures, heading, memory_blocks, theory
from explorer.report.present.shell.history import states
from explorer.tui.pages.outline import failed_page, header_page
from explorer.tui.tabs.tab import Tab
from explorer.tui.text.drawing import draw
from explorer.tui.text.lines import Line as TextLine
from explorer.tui.widgets.line_view import LineView

if TYPE_CHECKING:
    from explorer.facts import History, Info
    from explorer.facts.training import Training


class ModelTab(Tab[LineView]):
    """The whole model in figures."""

    def paint_outline(self) -> None:
        """What the header says, if it could be read."""
        outlined, failure = self.store.outline, self.store.failure
        if outlined is None:
            self.view.show(failed_page(failure))
        else:
            self.view.show(lambda width: header_page(outlined.header, width, failure))

    def paint(self) -> None:
        """The totals, and what a training step costs if that was asked for."""
        store = self.store
        assert store.analysis is not None
        info, history, exact, training = (
            store.analysis.info,
            store.history,
            store.exact,
            store.on_demand.training,
        )
        self.view.show(lambda width: model_page(info, history, width, exact, training))


def model_page(
    info: Info, history: History | None, width: int, exact: bool, training: Training | None = None
) -> list[TextLine]:
    """Totals, training if it was asked for, inputs and outputs, assumptions, the history."""
    blocks = overview(info)
    if training is not None:
        notes = [Paragraph(note, "warning") for note in training.notes]
        blocks += [Line(), heading(training), figures(info, training), *notes]
        if training.memory is not None:
            blocks += [*memory_blocks(training.memory), *theory(info, training)]
    if symbolic_hint(info):
        blocks += [Line(), Paragraph("D binds the sizes that are open.", "warning")]
    blocks += details(info)
    if history is not None and len(history.entries) > 1:
        blocks += [Line(), Heading("History"), states(history, "●")]
    return draw(blocks, width - 1, exact)
