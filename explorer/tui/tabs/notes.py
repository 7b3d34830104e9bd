"""Notes of a model: what was assumed to count it, on a tab of its own."""

from __future__ import annotations

from explorer.tui.tabs.tab import Tab, note_page
from explorer.tui.text.lines import BLANK, Line, safe, wrap
from explorer.tui.widgets.line_view import LineView

__all__ = ["NotesTab"]


class NotesTab(Tab[LineView]):
    """What was assumed, a paragraph each."""

    def paint(self) -> None:
        """All notes of the model."""
        assert self.store.analysis is not None
        notes = self.store.analysis.info.model.notes
        if not notes:
            self.view.show(note_page("Nothing was assumed"))
            return

        def page(width: int) -> list[Line]:
            return [BLANK, *(line for note in notes for line in wrap(((f" {safe(note)}", "text"),), width))]

        self.view.show(page)
