"""Keys one after the other: the next goes on when all is done that the one before it asks for."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from textual.app import App
    from textual.events import Event

_PATIENCE = 1.0
"""Seconds after which a key that something holds up holds up no other."""


class KeysInOrder:
    """Holds keys back that come while another is on its way.

    Textual gives each key to what has the focus as it comes. Where several come at once, as on a slow
    line, the first may move the focus or open a dialog, and what was typed behind it would land where the
    user is no longer; a key with priority would even go before what was typed ahead of it.

    Args:
        app: The program.
        hand_on: Gives one to what has the focus.
    """

    def __init__(self, app: App[Any], hand_on: Callable[[Event], Awaitable[None]]) -> None:
        self._app, self._hand_on = app, hand_on
        self._waiting: deque[Event] = deque()
        self._turn: float | None = None

    async def take(self, event: Event) -> None:
        """Hand it on, now or in its turn."""
        self._waiting.append(event)
        if self._turn is None or time.monotonic() - self._turn > _PATIENCE:
            await self._next()

    async def _next(self) -> None:
        self._turn = None
        if self._waiting:
            self._turn = turn = time.monotonic()
            node = self._app.focused or self._app.screen
            await self._hand_on(self._waiting.popleft())
            self._follow(node, turn)

    def _follow(self, node: Any, turn: float) -> None:
        """Behind the key through the queues of all that it bubbles through."""
        while node is not self._app and node is not None:
            if node.call_later(self._follow, node.parent, turn):
                return
            node = node.parent
        self._app.call_later(self._mounted, turn)

    def _mounted(self, turn: float) -> None:
        """Behind the first steps of a screen that it opened, and behind the focus that these ask for."""
        if not self._app.screen.call_later(self._app.call_later, self._done, turn):
            self._app.call_later(self._done, turn)

    async def _done(self, turn: float) -> None:
        if turn == self._turn:
            await self._next()
