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
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from explorer.host import memory_limit, scratch
from explorer.process import screen_choices
from explorer.process.client import EngineProcess

if TYPE_CHECKING:
    from explorer.process.saved_sessions import SavedSession, ScreenState, SessionStore
    from explorer.process.screen_choices import ScreenChoices
    from explorer.tui.program import ExplorerApp

_GRACE = 3.0
"""Seconds that the main thread has to end the process, once the terminal is gone."""
_FAREWELL = (
    b"\x1b[?2026l\x1b[m\x1b[?2004l\x1b[?7h\x1b[?2048l\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l"
    b"\x1b[<u\x1b[?1049l\x1b[?25h\x1b[?1004l"
)
"""Puts back what Textual's driver sets, in its own order."""

_KEPT = b"explorer: ended from outside; explorer --resume goes on from here\r\n"


class ResumableSession:
    """A session, its engine, and the folder in which both outlive the terminal.

    Args:
        source: As for `session.Session`.
        options: Its other arguments.
        memory: Most bytes that the engine may take.
        resumed: The session to go on with.
    """

    def __init__(
        self,
        source: str,
        options: Mapping[str, Any],
        memory: int | None = None,
        resumed: tuple[SessionStore, SavedSession] | None = None,
    ) -> None:
        self._source, self._options, self._memory = source, options, memory
        self._cwd = os.getcwd()
        self._kept = resumed[0] if resumed else None
        self._view = resumed[1].view if resumed else None
        self.engine = EngineProcess(
            source,
            folder=self._folder,
            history=resumed[1].history if resumed else None,
            memory=memory if memory is not None else memory_limit.machine(),
            **options,
        )

    def _folder(self) -> str:
        """A place for the session, made with the engine and hence after the first paint."""
        if sys.platform == "win32":
            return ""
        from explorer.process import saved_sessions

        if self._kept is None:
            self._kept = saved_sessions.begin(os.environ)
            self.keep(None)
            threading.Thread(target=_clear_left, daemon=True).start()
        return self._kept.folder if self._kept is not None else ""

    def keep(self, view: ScreenState | None) -> None:
        """Write down where the user is; any thread may."""
        self._view = view
        if self._kept is None:
            return
        from explorer.process.saved_sessions import Opening, SavedSession, ScreenState

        opening, history = Opening(**self._options), self.engine.history
        self._kept.save(
            SavedSession(self._source, self._cwd, opening, history, view or ScreenState(), self._memory)
        )

    def has_resumable(self) -> bool:
        """Whether another session of this model waits to be resumed; reads files."""
        if self._kept is None:
            return False
        from explorer.process import saved_sessions

        return saved_sessions.waiting(self._source, os.environ, self._cwd)

    def choices(self) -> ScreenChoices:
        """How its user wants the screen; reads a small file."""
        return screen_choices.kept(os.environ)

    def keep_choices(self, choices: ScreenChoices) -> None:
        """Write down how its user wants it; any thread may."""
        screen_choices.keep(choices, os.environ)

    @contextlib.contextmanager
    def end_on_hangup(self, app: ExplorerApp) -> Iterator[None]:
        """While the screen is there, a line that drops ends it and keeps the session."""

        def drop(number: int, _: object) -> NoReturn:
            try:
                with contextlib.suppress(Exception):
                    self._view = app.view() or self._view
                with contextlib.suppress(Exception):
                    self.keep(self._view)
                self.engine.kill()
                _put_back(app, _KEPT if self._kept is not None else b"")
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

    def close(self, *, properly: bool) -> None:
        """End the engine; the session goes too if its user quit, and stays if the screen failed."""
        self.engine.close()
        if self._kept is not None:
            (self._kept.remove if properly else self._kept.release)()


def _clear_left() -> None:
    """Removes what nobody resumes, and what killed processes left among the temporary files."""
    from explorer.process import saved_sessions

    saved_sessions.clear_old(os.environ)
    scratch.clear_temporary()


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


def _put_back(app: ExplorerApp, said: bytes) -> None:
    """Leaves a terminal that is still there as it was found; one that takes nothing is not waited for."""
    import termios

    attributes = getattr(app._driver, "attrs_before", None)
    with contextlib.suppress(termios.error, OSError):
        if attributes is not None:
            termios.tcsetattr(0, termios.TCSANOW, attributes)
    with contextlib.suppress(OSError):
        os.set_blocking(2, False)
        try:
            os.write(2, _FAREWELL + said)
        finally:
            os.set_blocking(2, True)
