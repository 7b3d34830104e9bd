"""A page with links: lines that lead somewhere, walked as in a browser of text."""

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
    """A line that leads to a layer, by its id."""

    lead: int

    @classmethod
    def to(cls, lead: int, line: tuple[Span, ...]) -> Link:
        """A line that leads to `lead`."""
        link = cls(line)
        link.lead = lead
        return link


class LinkView(LineView):
    """A page some of whose lines are links: the cursor goes from one on show to the next, Enter follows."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(LINK_KEYS)

    class LinkFollowed(Message):
        """A link was followed."""

        def __init__(self, source: LinkView, lead: int) -> None:
            super().__init__()
            self.source, self.lead = source, lead

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._chosen = -1

    def show(self, page: Callable[[int], Sequence[Line]], *, top: bool = False) -> None:
        """As `LineView` does; another page begins at its first link."""
        before = self.link
        if top:
            self._chosen = -1
        super().show(page, top=top)
        if self.has_focus and before != self.link:
            self._draw(before)
            self._draw(self.link)

    @property
    def link(self) -> int | None:
        """The line of the link under the cursor: the first one on show unless another was chosen."""
        shown = self._links()
        return self._chosen if self._chosen in shown else next(iter(shown), None)

    def _links(self) -> list[int]:
        top, end = self.scroll_offset.y, self.scroll_offset.y + self.size.height
        some = enumerate(self.lines[top:end], top)
        return [y for y, line in some if isinstance(line, Link)]

    def action_scroll_by(self, step: int) -> None:
        """To the next link on show; without one scroll."""
        links, link = self._links(), self.link
        at = links.index(link) + step if link is not None and abs(step) == 1 else -1
        if 0 <= at < len(links):
            self._choose(links[at])
        else:
            super().action_scroll_by(step)

    def action_follow(self) -> None:
        """Go where the link leads."""
        link = self.link
        line = self.lines[link] if link is not None else None
        if isinstance(line, Link):
            self.post_message(self.LinkFollowed(self, line.lead))

    async def on_click(self, event: events.Click) -> None:
        """Handles a click."""
        y = event.y + self.scroll_offset.y
        if y in self._links():
            self._choose(y)
            self.action_follow()

    def strip(self, y: int, width: int) -> Strip:
        """Row `y`, drawn."""
        at = y + self.scroll_offset.y
        under = "line--cursor-focus" if self.has_focus and at == self.link else ""
        return self.draw(self.line_at(y), width, under)

    def on_focus(self) -> None:
        """The link under the cursor is seen."""
        self._draw(self.link)

    def on_blur(self) -> None:
        """It is not any more."""
        self._draw(self.link)

    def _choose(self, y: int) -> None:
        self._draw(self.link)
        self._chosen = y
        self._draw(y)

    def _draw(self, link: int | None) -> None:
        if link is not None:
            self.refresh(Region(0, link - self.scroll_offset.y, self.size.width, 1))
