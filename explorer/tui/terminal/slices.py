"""Time slices: runs long work on the event loop without delaying key presses.

A thread would delay keys more: it holds the interpreter lock for 5 ms each time the loop needs it, about a
dozen times per key.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from explorer.tui.compat import is_being_removed

if TYPE_CHECKING:
    from textual.app import App
    from textual.dom import DOMNode
    from textual.message_pump import MessagePump

_SLICE_SECONDS, _PAUSE_SECONDS = 0.004, 0.0015
"""Maximum time of work that a key press waits for, and the pause after it."""
_QUIET_SECONDS = 0.06
"""Seconds after a key press without long work, so that the effect of the key can be drawn."""

MAX_PAINT_SECONDS = 0.5
"""Seconds after which a paint is assumed to be finished."""


class Slices:
    """Tells long work on the event loop when to pause.

    Args:
        app: The application. Its `last_key` is the time of the last key press.
    """

    def __init__(self, app: App[object]) -> None:
        self._app = app
        self._slice_end = time.monotonic() + _SLICE_SECONDS

    def is_over(self) -> bool:
        """Whether the current slice is over."""
        return time.monotonic() >= self._slice_end

    async def pause(self) -> None:
        """Pause, so that keys can be handled and their effects drawn."""
        await asyncio.sleep(_PAUSE_SECONDS)
        while (remaining := getattr(self._app, "last_key", 0.0) + _QUIET_SECONDS - time.monotonic()) > 0:
            await asyncio.sleep(remaining)
        self._slice_end = time.monotonic() + _SLICE_SECONDS


async def wait_for_paint(pump: MessagePump) -> None:
    """Wait until pending changes are painted."""
    painted = asyncio.Event()
    pump.call_after_refresh(painted.set)
    with contextlib.suppress(TimeoutError):  # Textual does not refresh a screen that has nothing to repaint
        await asyncio.wait_for(painted.wait(), MAX_PAINT_SECONDS)


def call_after_paint(node: DOMNode, call: Callable[[], object]) -> None:
    """Call a function once pending changes are painted, unless `node` is removed before that.

    Textual alone would call it in any case, even after a key has closed the screen of `node`: on the next
    screen that is painted.
    """

    def call_unless_removed() -> object:
        return None if is_being_removed(node) else call()

    node.call_after_refresh(call_unless_removed)
