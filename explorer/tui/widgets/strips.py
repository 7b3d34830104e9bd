"""Title bar, pane headings, status line and key bar: widgets of one or two lines around the panes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip

from explorer.tui.text.lines import BLANK, Line
from explorer.tui.widgets.line_view import RoleLines


def render_uniform_lines(render: Callable[[Region], list[Strip]], crop: Region) -> list[Strip]:
    """Render one line of a container and repeat it: the children of the container cover all its lines.

    Textual would render each line of each container, which are half of the lines of the first paint.
    """
    return render(Region(crop.x, crop.y, crop.width, 1)) * crop.height


class _Lines(RoleLines):
    """Lines drawn by a function of the width, and redrawn only if they differ."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._draw_lines: Callable[[int], tuple[Line, ...]] = lambda width: ()
        self._drawn: tuple[Line, ...] = ()

    def show(self, draw: Callable[[int], tuple[Line, ...]]) -> None:
        """Show `draw(width)`."""
        self._draw_lines = draw
        if draw(self.size.width) != self._drawn:
            self.refresh()

    def line_at(self, y: int) -> Line:
        """Return line `y` of the widget."""
        self._drawn = self._draw_lines(self.size.width)
        return self._drawn[y] if y < len(self._drawn) else BLANK

    @property
    def lines(self) -> tuple[Line, ...]:
        """The visible lines."""
        return self._draw_lines(self.size.width)


class TitleBar(_Lines):
    """The model's name and its totals."""


class Status(_Lines):
    """One line: the running job, the last message or the keys of a screen."""


class PaneHead(_Lines):
    """The heading of a pane. The heading of the right pane contains the titles of the tabs."""

    class HeadingClicked(Message):
        """Sent when the user clicks column `x` of a heading."""

        def __init__(self, source: PaneHead, x: int) -> None:
            super().__init__()
            self.source, self.x = source, x

    async def on_click(self, event: events.Click) -> None:
        """Send `HeadingClicked`."""
        self.post_message(self.HeadingClicked(self, event.x))


class FooterKey(NamedTuple):
    """A key as shown in the key bar, its label, and the action of the screen that it runs."""

    shown: str
    label: str
    action: str


class KeyBar(_Lines):
    """The most important keys. A click on a key runs its action.

    Args:
        keys: Keys to show. If not all fit, the keys before the last two are left out from the right.
    """

    def __init__(self, keys: Sequence[FooterKey]) -> None:
        super().__init__()
        self._keys = keys

    def on_mount(self) -> None:
        """Show the keys."""
        self.show(lambda width: (self._draw_keys(width),))

    def show_keys(self, keys: Sequence[FooterKey]) -> None:
        """Show other keys."""
        self._keys = keys
        self.show(lambda width: (self._draw_keys(width),))

    def _select_visible_keys(self, width: int) -> list[FooterKey]:
        """Return the keys that fit."""
        keys = list(self._keys)
        while len(keys) > 2 and 1 + sum(_measure_key(key) for key in keys) > width:
            del keys[-3]
        return keys

    def _draw_keys(self, width: int) -> Line:
        spans: list[tuple[str, str]] = [(" ", "text")]
        for key in self._select_visible_keys(width):
            spans += [(key.shown, "key"), (f" {key.label}  ", "dim")]
        return tuple(spans)

    async def on_click(self, event: events.Click) -> None:
        """Run the action of the clicked key."""
        x = 1
        for key in self._select_visible_keys(self.size.width):
            if x <= event.x < x + _measure_key(key) - 1:
                await self.screen.run_action(key.action)
                return
            x += _measure_key(key)


def _measure_key(key: FooterKey) -> int:
    """Return the width of a key, its label and the gap after it in cells."""
    return len(key.shown) + len(key.label) + 3
