"""Text of panes: the lines of a widget as plain text, for the clipboard and for the glossary."""

from __future__ import annotations

from typing import Any

from textual.screen import Screen
from textual.widget import Widget

from explorer.tui.text.lines import line_text
from explorer.tui.widgets.line_view import LineList, LineView

_MAX_COPIED_ROWS = 2_000
"""Maximum number of copied rows, because the clipboard of a terminal is small."""


def read_text(widget: Widget) -> str:
    """Return the text of a widget, including lines that are scrolled out of view."""
    if isinstance(widget, LineList):
        width, count = max(20, widget.size.width), min(widget.row_count, _MAX_COPIED_ROWS)
        lines = [line_text(widget.row_line(index, width)).rstrip() for index in range(count)]
        if widget.row_count > count:
            lines.append(f"({count:,} of {widget.row_count:,} rows)")
    elif isinstance(widget, LineView):
        lines = [line_text(line).rstrip() for line in widget.lines]
    else:
        lines = []
    return "\n".join(lines).strip("\n")


def read_screen_text(screen: Screen[Any]) -> str:
    """Return the texts of all visible panes of a screen, one below the other."""
    panes = [pane for pane in screen.query(Widget) if pane.display and pane.size.height]
    return "\n\n".join(filter(None, map(read_text, panes)))
