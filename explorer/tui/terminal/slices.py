"""Event loop, long work on it: in slices so short that a key never waits for it.

A thread would not do: it holds the interpreter's lock for 5 ms whenever the loop wants it back, which a key
does a dozen times on its way from the terminal to the screen.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual.app import App
    from textual.message_pump import MessagePump

_SLICE, _REST = 0.004, 0.0015
_AFTER_KEY = 0.06
"""Seconds in which nothing else is done after a key: what it changes is still to be drawn."""

PAINTED = 0.5
"""Seconds after which what was to be painted is taken to be."""


class Slices:
    """Says when work on the event loop has to let others go first.

    Args:
        app: Whose keys are to be answered; `last_key` tells when the last one came.
    """

    def __init__(self, app: App[object]) -> None:
        self._app = app
        self._until = time.monotonic() + _SLICE

    def due(self) -> bool:
        """Whether this slice is over."""
        return time.monotonic() >= self._until

    async def rest(self) -> None:
        """Let keys be answered, and what they change be drawn."""
        await asyncio.sleep(_REST)
        while (left := getattr(self._app, "last_key", 0.0) + _AFTER_KEY - time.monotonic()) > 0:
            await asyncio.sleep(left)
        self._until = time.monotonic() + _SLICE


async def after_paint(pump: MessagePump) -> None:
    """Let out what is to be painted."""
    painted = asyncio.Event()
    pump.call_after_refresh(painted.set)
    with contextlib.suppress(TimeoutError):  # a screen that need not be painted again is never refreshed
        await asyncio.wait_for(painted.wait(), PAINTED)
