"""Driver of the screen in a browser: Textual's, that draws all of it again for a page that comes back."""

from __future__ import annotations

import asyncio
from typing import Any

from textual.app import App
from textual.drivers.web_driver import WebDriver
from textual.events import AppFocus

REPAINT = "repaint"
"""What the server says to have it do so; a size that has not changed draws nothing."""


class PageDriver(WebDriver):
    """Speaks to the server through the standard streams."""

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        self._shown, self._turns = app, asyncio.get_running_loop()

    def start_application_mode(self) -> None:
        """Begins with the focus: Textual's waits for a click, and until then no field takes a key."""
        super().start_application_mode()
        self._shown.call_later(self._shown.post_message, AppFocus())

    def on_meta(self, packet_type: str, payload: dict[str, object]) -> None:
        """Does what the server asks for; runs in the thread that reads."""
        super().on_meta(packet_type, payload)
        if packet_type == REPAINT:
            self._turns.call_soon_threadsafe(self._shown.call_later, self._shown.refresh)
