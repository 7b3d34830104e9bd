"""A page with links: the cursor moves between lines that lead to a layer, as in a text browser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip

from explorer.tui.text.keys import MOVE, Key, bindings
from explorer.tui.text.lines import Line, Span
from explorer.tui.widgets.line_view import LineView

_FOLLOW = "On the Layer tab: go to the layer that makes or reads a tensor"
LINK_KEYS = (Key("follow", ("enter",), "Enter", "Follow the link", _FOLLOW, MOVE),)


class Link(tuple[Span, ...]):
    """A line that links to a layer.

    Attributes:
        lead: ID of the layer.
    """

    lead: int

    @classmethod
    def to(cls, lead: int, line: tuple[Span, ...]) -> Link:
        """Create a link to the layer `lead`."""
        link = cls(line)
        link.lead = lead
        return link


class LinkView(LineView):
    """A page with links. The cursor moves between the visible links; Enter follows one."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(LINK_KEYS)

    class LinkFollowed(Message):
        """Sent when the user follows a link."""

        def __init__(self, source: LinkView, lead: int) -> None:
            super().__init__()
            self.source, self.lead = source, lead

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._selected = -1

    def show(self, page: Callable[[int], Sequence[Line]], *, top: bool = False) -> None:
        """Show a page, as `LineView.show` does. With `top`, the cursor starts at the first link."""
        old_link = self.link
        if top:
            self._selected = -1
        super().show(page, top=top)
        if self.has_focus and old_link != self.link:
            self._draw(old_link)
            self._draw(self.link)

    @property
    def link(self) -> int | None:
        """Line number of the selected link, or else of the first visible one; None if no link is visible."""
        links = self._list_links()
        return self._selected if self._selected in links else next(iter(links), None)

    def _list_links(self) -> list[int]:
        top, end = self.scroll_offset.y, self.scroll_offset.y + self.size.height
        visible_lines = enumerate(self.lines[top:end], top)
        return [y for y, line in visible_lines if isinstance(line, Link)]

    def action_scroll_by(self, step: int) -> None:
        """Move to the next visible link, or scroll if there is none."""
        links, link = self._list_links(), self.link
        index = links.index(link) + step if link is not None and abs(step) == 1 else -1
        if 0 <= index < len(links):
            self._choose(links[index])
        else:
            super().action_scroll_by(step)

    def action_follow(self) -> None:
        """Follow the link under the cursor."""
        link = self.link
        line = self.lines[link] if link is not None else None
        if isinstance(line, Link):
            self.post_message(self.LinkFollowed(self, line.lead))

    async def on_click(self, event: events.Click) -> None:
        """Select and follow the clicked link."""
        y = event.y + self.scroll_offset.y
        if y in self._list_links():
            self._choose(y)
            self.action_follow()

    def strip(self, y: int, width: int) -> Strip:
        """Render line `y`, with the background of the cursor if it is there."""
        line = y + self.scroll_offset.y
        background = "line--cursor-focus" if self.has_focus and line == self.link else ""
        return self.draw(self.line_at(y), width, background)

    def on_focus(self) -> None:
        """Highlight the link under the cursor."""
        self._draw(self.link)

    def on_blur(self) -> None:
        """Remove the highlight of the link."""
        self._draw(self.link)

    def _choose(self, y: int) -> None:
        self._draw(self.link)
        self._selected = y
        self._draw(y)

    def _draw(self, link: int | None) -> None:
        if link is not None:
            self.refresh(Region(0, link - self.scroll_offset.y, self.size.width, 1))
