"""Title bar, pane headings, status line and key bar: the parts of one line around the panes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip

from explorer.tui.text.lines import BLANK, Line
from explorer.tui.widgets.line_view import RoleLines


def uniform_lines(render: Callable[[Region], list[Strip]], crop: Region) -> list[Strip]:
    """The lines of a container that are all alike, since what it holds covers them: one is drawn for all.

    Textual draws every line of every container, on show or not: half of the lines of the first paint.
    """
    return render(Region(crop.x, crop.y, crop.width, 1)) * crop.height


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


class TitleBar(_Lines):
    """The model's name and its totals."""


class Status(_Lines):
    """What runs, or what was done last."""


class PaneHead(_Lines):
    """The heading of a pane; on the right one a tab a word, to click."""

    class HeadingClicked(Message):
        """A click at a column of a heading."""

        def __init__(self, source: PaneHead, x: int) -> None:
            super().__init__()
            self.source, self.x = source, x

    async def on_click(self, event: events.Click) -> None:
        """Handles a click."""
        self.post_message(self.HeadingClicked(self, event.x))


class FooterKey(NamedTuple):
    """A key as a user reads it, its label, and the action of the screen that it runs."""

    shown: str
    label: str
    action: str


class KeyBar(_Lines):
    """The keys used most; a click does what the key does.

    Args:
        keys: They; the last two stay when there is no room for all.
    """

    def __init__(self, keys: Sequence[FooterKey]) -> None:
        super().__init__()
        self._keys = keys

    def on_mount(self) -> None:
        """Show the keys."""
        self.show(lambda width: (self._line(width),))

    def show_keys(self, keys: Sequence[FooterKey]) -> None:
        """Show other keys."""
        self._keys = keys
        self.show(lambda width: (self._line(width),))

    def _shown(self, width: int) -> list[FooterKey]:
        """The keys that fit."""
        shown = list(self._keys)
        while len(shown) > 2 and 1 + sum(_cells(key) for key in shown) > width:
            del shown[-3]
        return shown

    def _line(self, width: int) -> Line:
        spans: list[tuple[str, str]] = [(" ", "text")]
        for key in self._shown(width):
            spans += [(key.shown, "key"), (f" {key.label}  ", "dim")]
        return tuple(spans)

    async def on_click(self, event: events.Click) -> None:
        """Handles a click."""
        x = 1
        for key in self._shown(self.size.width):
            if x <= event.x < x + _cells(key) - 1:
                await self.screen.run_action(key.action)
                return
            x += _cells(key)


def _cells(key: FooterKey) -> int:
    """Cells of a key, its label and the gap behind it."""
    return len(key.shown) + len(key.label) + 3
