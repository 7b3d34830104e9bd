"""Key order: handles keys one at a time, each after the effects of the previous one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from textual.app import App
    from textual.events import Event

_PATIENCE = 1.0
"""Seconds after which the next key no longer waits for the previous one."""


class KeysInOrder:
    """Queues keys until the previous key is fully handled.

    Textual sends each key to the widget that has the focus when the key arrives. On a slow connection several
    keys arrive at once. If the first one moves the focus or opens a dialog, the next ones would go to the old
    widget. A priority binding would even run before earlier keys.

    Args:
        app: The application.
        forward: Function that sends a key to the focused widget.
    """

    def __init__(self, app: App[Any], forward: Callable[[Event], Awaitable[None]]) -> None:
        self._app, self._forward = app, forward
        self._waiting: deque[Event] = deque()
        self._current_turn: float | None = None

    async def take(self, event: Event) -> None:
        """Queue a key, and handle it at once if no other key is in progress."""
        self._waiting.append(event)
        if self._current_turn is None or time.monotonic() - self._current_turn > _PATIENCE:
            await self._post_next()

    async def _post_next(self) -> None:
        self._current_turn = None
        if self._waiting:
            self._current_turn = turn = time.monotonic()
            node = self._app.focused or self._app.screen
            await self._forward(self._waiting.popleft())
            self._follow_key(node, turn)

    def _follow_key(self, node: Any, turn: float) -> None:
        """Post a callback through the queues of all nodes that the key bubbles through."""
        while node is not self._app and node is not None:
            if node.call_later(self._follow_key, node.parent, turn):
                return
            node = node.parent
        self._app.call_later(self._await_mount, turn)

    def _await_mount(self, turn: float) -> None:
        """Wait for a screen that the key opened to be mounted, and for its focus to be set."""
        if not self._app.screen.call_later(self._app.call_later, self._handle_next, turn):
            self._app.call_later(self._handle_next, turn)

    async def _handle_next(self, turn: float) -> None:
        if turn == self._current_turn:
            await self._post_next()
