"""Driver of the screen in a browser: Textual's, that draws all of it again for a page that comes back."""

from __future__ import annotations

from textual.drivers.web_driver import WebDriver
from textual.events import AppFocus

REPAINT = "repaint"
"""What the server says to have it do so; a size that has not changed draws nothing."""


class PageDriver(WebDriver):
    """Speaks to the server through the standard streams."""

    def start_application_mode(self) -> None:
        """Begins with the focus: Textual's waits for a click, and until then no field takes a key."""
        super().start_application_mode()
        self._app.call_later(self._app.post_message, AppFocus())

    def on_meta(self, packet_type: str, payload: dict[str, object]) -> None:
        """Does what the server asks for; runs in the thread that reads."""
        super().on_meta(packet_type, payload)
        if packet_type == REPAINT:
            self._loop.call_soon_threadsafe(self._app.call_later, self._app.refresh)
