"""Hangup (SIGHUP, such as a dropped SSH connection): saves the sessions and ends the process.

A terminal that disconnects sends SIGHUP to its foreground program. A program that ignores the signal, or is
not in the foreground, would read end of file forever, so a thread also waits for the disconnect. Then the
state of the sessions is written, their engines are killed, and the process ends at once. Textual's shutdown
is skipped, because it would wait for a terminal that accepts no more bytes. SIGTERM has the same effect. All
these sessions can be resumed; only quitting removes a session.
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

_GRACE_SECONDS = 3.0
"""Seconds that the main thread has to end the process after a disconnect."""
_FAREWELL = (
    b"\x1b[?2026l\x1b[m\x1b[?2004l\x1b[?7h\x1b[?2048l\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l"
    b"\x1b[<u\x1b[?1049l\x1b[?25h\x1b[?1004l"
)
"""Sequences that undo the settings of Textual's driver, in the driver's order."""

_RESUME_MESSAGE = b"explorer: ended from outside; explorer --resume goes on from here\r\n"


@contextlib.contextmanager
def end_on_hangup(app: ExplorerApp) -> Iterator[None]:
    """Within this context, a disconnect ends the process and saves the session of each open model."""

    def save_and_exit(number: int, _: object) -> NoReturn:
        try:
            saved = [model.keep_on_hangup() for model in app.models.open]
            _restore_terminal(app, _RESUME_MESSAGE if any(saved) else b"")
        finally:
            os._exit(128 + number)  # the shell's exit code for a signal

    signal_numbers = [n for n in (signal.SIGTERM, getattr(signal, "SIGHUP", None)) if n is not None]
    old_handlers = {number: signal.signal(number, save_and_exit) for number in signal_numbers}
    if hasattr(select, "poll") and sys.stdin is not None:
        threading.Thread(target=_await_hangup, args=(sys.stdin.fileno(),), daemon=True).start()
    try:
        yield
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)


def _await_hangup(terminal: int) -> None:
    """Wait, without polling periodically, until the terminal disconnects."""
    poll = select.poll()
    poll.register(terminal, 0)
    with contextlib.suppress(OSError):
        while True:
            events = poll.poll()
            if any(event & select.POLLNVAL for _, event in events):
                return  # systems that cannot poll a terminal rely on the signal
            if any(event & select.POLLHUP for _, event in events):
                break
            time.sleep(_GRACE_SECONDS)
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(
            _GRACE_SECONDS
        )  # the main thread may be blocked in native code or by a full terminal buffer
        os._exit(128 + signal.SIGHUP)


def _restore_terminal(app: ExplorerApp, farewell: bytes) -> None:
    """Restore the settings of a terminal that is still connected, without waiting for a blocked terminal."""
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
