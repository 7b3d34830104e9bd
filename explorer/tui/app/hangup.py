"""Hangup (SIGHUP, a dropped SSH line): it may come at any moment, and then nothing is lost.

A terminal that goes away sends SIGHUP to the program in its foreground; a program that is not there, or
was told to ignore it, reads end of file for ever. Both end here: the session's state is written, the
engine is killed, and this process ends at once, without Textual's farewell, which would wait for a
terminal that takes no more bytes. A polite kill is the same. Only a user who quits ends the session.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from explorer.tui.program import ExplorerApp

_GRACE = 3.0
"""Seconds that the main thread has to end the process, once the terminal is gone."""
_FAREWELL = (
    b"\x1b[?2026l\x1b[m\x1b[?2004l\x1b[?7h\x1b[?2048l\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l"
    b"\x1b[<u\x1b[?1049l\x1b[?25h\x1b[?1004l"
)
"""Puts back what Textual's driver sets, in its own order."""

_KEPT = b"explorer: ended from outside; explorer --resume goes on from here\r\n"


@contextlib.contextmanager
def end_on_hangup(app: ExplorerApp) -> Iterator[None]:
    """While the screen is there, a line that drops ends it and keeps the session of each open model."""

    def drop(number: int, _: object) -> NoReturn:
        try:
            saved = [model.keep_on_hangup() for model in app.models.open]
            _put_back(app, _KEPT if any(saved) else b"")
        finally:
            os._exit(128 + number)

    numbers = [n for n in (signal.SIGTERM, getattr(signal, "SIGHUP", None)) if n is not None]
    previous = {number: signal.signal(number, drop) for number in numbers}
    if hasattr(select, "poll") and sys.stdin is not None:
        threading.Thread(target=_await_hangup, args=(sys.stdin.fileno(),), daemon=True).start()
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _await_hangup(terminal: int) -> None:
    """Waits, without a tick, until nobody is at the other end of the terminal."""
    poll = select.poll()
    poll.register(terminal, 0)
    with contextlib.suppress(OSError):
        while True:
            events = poll.poll()
            if any(event & select.POLLNVAL for _, event in events):
                return  # a system that cannot poll a terminal sends the signal only
            if any(event & select.POLLHUP for _, event in events):
                break
            time.sleep(_GRACE)
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(_GRACE)  # the main thread may be kept in native code, or by a terminal that is full
        os._exit(128 + signal.SIGHUP)


def _put_back(app: ExplorerApp, farewell: bytes) -> None:
    """Leaves a terminal that is still there as it was found; one that takes nothing is not waited for."""
    import termios

    attributes = app.terminal_attributes
    with contextlib.suppress(termios.error, OSError):
        if attributes is not None:
            termios.tcsetattr(0, termios.TCSANOW, attributes)
    with contextlib.suppress(OSError):
        os.set_blocking(2, False)
        try:
            os.write(2, _FAREWELL + farewell)
        finally:
            os.set_blocking(2, True)
