"""The one-line parts around the panes: header, pane headings, status line, key bar."""

from __future__ import annotations

from collections.abc import Callable

from textual import events
from textual.message import Message

from explorer.tui.actions.commands import COMMANDS, Command
from explorer.tui.text.lines import BLANK, Line
from explorer.tui.widgets.line_view import RoleLines

__all__ = ["Header", "KeyBar", "PaneHead", "Status"]


class _Lines(RoleLines):
    """Lines made by a function of the width; redrawn only if they differ."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._make: Callable[[int], tuple[Line, ...]] = lambda width: ()
        self._drawn: tuple[Line, ...] = ()

    def show(self, make: Callable[[int], tuple[Line, ...]]) -> None:
        """Show `make(width)`."""
        self._make = make
        if make(self.size.width) != self._drawn:
            self.refresh()

    def line_at(self, y: int) -> Line:
        """The line in row `y`."""
        self._drawn = self._make(self.size.width)
        return self._drawn[y] if y < len(self._drawn) else BLANK

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines on show."""
        return self._make(self.size.width)


class Header(_Lines):
    """The model's name and its totals."""


class Status(_Lines):
    """What runs, or what was done last."""


class PaneHead(_Lines):
    """The heading of a pane; on the right one a tab a word, to click."""

    class Clicked(Message):
        """A click at a column of a heading."""

        def __init__(self, source: PaneHead, x: int) -> None:
            super().__init__()
            self.source, self.x = source, x

    async def _on_click(self, event: events.Click) -> None:
        self.post_message(self.Clicked(self, event.x))


class KeyBar(_Lines):
    """The keys used most, from `commands`; a click does what the key does."""

    class Pressed(Message):
        """A key's label was clicked."""

        def __init__(self, action: str) -> None:
            super().__init__()
            self.action = action

    def on_mount(self) -> None:
        """Show the keys."""
        self.show(lambda width: (self._line(width),))

    def _shown(self, width: int) -> list[Command]:
        """The commands that fit; help and quit, the last two, stay when others go."""
        shown = [command for command in COMMANDS if command.footer]
        while len(shown) > 2 and 1 + sum(_cells(command) for command in shown) > width:
            del shown[-3]
        return shown

    def _line(self, width: int) -> Line:
        spans: list[tuple[str, str]] = [(" ", "text")]
        for command in self._shown(width):
            spans += [(command.shown, "key"), (f" {command.footer}  ", "dim")]
        return tuple(spans)

    async def _on_click(self, event: events.Click) -> None:
        x = 1
        for command in self._shown(self.size.width):
            if x <= event.x < x + _cells(command) - 1:
                self.post_message(self.Pressed(command.id))
                return
            x += _cells(command)


def _cells(command: Command) -> int:
    """Cells of a key, its label and the gap behind it."""
    return len(command.shown) + len(command.footer) + 3
