"""Driver of the screen in a browser: Textual's web driver, extended by a repaint on request."""

from __future__ import annotations

import asyncio
from typing import Any

from textual.app import App
from textual.drivers.web_driver import WebDriver
from textual.events import AppFocus

REPAINT = "repaint"
"""Packet type with which the server requests a repaint. Sending the same size again draws nothing."""


class PageDriver(WebDriver):
    """Driver that communicates with the server over the standard streams."""

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        self._screen_app, self._event_loop = app, asyncio.get_running_loop()

    def start_application_mode(self) -> None:
        """Start with the focus. Textual waits for a click, and fields accept no keys before."""
        super().start_application_mode()
        self._screen_app.call_later(self._screen_app.post_message, AppFocus())

    def on_meta(self, packet_type: str, payload: dict[str, object]) -> None:
        """Handle a packet of the server. Runs in the thread that reads the input."""
        super().on_meta(packet_type, payload)
        if packet_type == REPAINT:
            self._event_loop.call_soon_threadsafe(self._screen_app.call_later, self._screen_app.refresh)
