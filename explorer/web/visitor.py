"""Visitor's session: a program of its own, that stays when the page goes, and the page that shows it now.

textual-serve's service ends its program with the page, and gives a shell one string. This one starts it from
an argument list, and a page that comes back finds the program as it was left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager

from explorer.host import confinement
from explorer.web.compat import BEGIN
from explorer.web.driver import REPAINT, PageDriver

_FAREWELL = 5.0
"""Seconds that a program has to end when it is asked to."""
_MOST_CELLS = 1000
"""Columns, or rows, of a page."""
_TERMINAL = "".join(
    f"\x1b[?{mode}" for mode in ("1049h", "1000h", "1003h", "1015h", "1006h", "25l", "2004h")
).encode()
"""What it says to a terminal once, and a new page has not heard."""
_OF_THE_SERVER = ("SSH_", "TMUX", "STY", "TERM", "NO_COLOR", "COLORTERM", "COLUMNS", "LINES")
"""Beginnings of the names of variables about the terminal of the server, which is not the visitor's."""


class BrowserPage(NamedTuple):
    """The page that shows a session, by what its web socket does."""

    write_bytes: Callable[[bytes], Awaitable[None]]
    write_str: Callable[[str], Awaitable[None]]
    close: Callable[[], Awaitable[object]]


class VisitorSession(AppService):
    """A program, and the page that shows it, if any.

    Args:
        words: The command.
        folder: Where it runs, and all that it may name.
        state: Folder for what it keeps while it runs: nobody but this visitor resumes it.
    """

    def __init__(self, words: Sequence[str], folder: str, state: str) -> None:
        super().__init__(
            shlex.join(words),
            write_bytes=self._write_bytes,
            write_str=self._write_str,
            close=self._hang_up,
            download_manager=DownloadManager(),
        )
        self._words, self._folder, self._state = words, folder, state
        self._page: BrowserPage | None = None
        self._run: asyncio.Task[None] | None = None
        self._program: Process | None = None
        self._last: asyncio.TimerHandle | None = None
        self.lines: list[asyncio.BaseTransport] = []
        """Web sockets of its pages, the newest last."""

    @property
    def running(self) -> bool:
        """Whether there is a program."""
        return self._run is not None and not self._run.done()

    @property
    def watched(self) -> bool:
        """Whether a page shows it."""
        return self._page is not None

    async def show(self, page: BrowserPage, width: int, height: int) -> None:
        """Shows the session on a page, in place of the one that did; starts the program if there is none."""
        if self._last is not None:
            self._last.cancel()
        before, self._page = self._page, page
        if before is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                await before.close()
        if not self.running:
            await self.start(*_cells(width, height))
            return
        await self._write_bytes(_TERMINAL)
        await self.set_terminal_size(width, height)
        await self.send_meta({"type": REPAINT})

    def leave(self, page: BrowserPage, seconds: float) -> None:
        """A page is gone; if no other comes in so many seconds, the program ends."""
        if self._page is page:
            self._page = None
            loop = asyncio.get_running_loop()
            self._last = loop.call_later(seconds, lambda: loop.create_task(self.stop()))

    async def set_terminal_size(self, width: int, height: int) -> None:
        """Tells the program the size of its page."""
        width, height = _cells(width, height)
        await super().set_terminal_size(width, height)

    async def stop(self) -> None:
        """Ends the program, and returns when it has ended."""
        if self._last is not None:
            self._last.cancel()
        task, process = self._run, self._program
        if task is None or process is None:
            return
        await self.send_meta({"type": "quit"})
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), _FAREWELL)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await task

    async def run(self) -> None:
        """Hands on what the program says, until it ends."""
        process = self._program
        assert process is not None
        assert process.stdout is not None
        assert process.stderr is not None
        last_words = asyncio.create_task(_end_of(process.stderr))
        try:
            began = await self._hand_on(process.stdout)
        finally:
            await process.wait()
            last = await last_words
            if process.stdin is not None:
                process.stdin.close()
        if not began:
            text = last.decode("utf-8", "replace").strip() or "explorer: the screen did not start"
            await self._write_bytes(text.replace("\n", "\r\n").encode())
            return
        await self._hang_up()

    async def _hand_on(self, stdout: asyncio.StreamReader) -> bool:
        """Hands packets on; returns whether a screen ever began."""
        handlers = {b"D": self._write_bytes, b"M": self.on_meta, b"P": self.on_packed}
        began = False
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionResetError):
            while True:
                kind = await stdout.readexactly(1)
                if kind in handlers:
                    size = int.from_bytes(await stdout.readexactly(4), "big")
                    await handlers[kind](await stdout.readexactly(size))
                # the screen begins behind the list of models, in the same process
                elif kind + await stdout.readline() == BEGIN:
                    began = True
        return began

    async def on_meta(self, data: bytes) -> None:
        """What the program says about itself; its end is when the process has ended."""
        if b'"exit"' not in data:
            await super().on_meta(data)

    @property
    def stdin(self) -> asyncio.StreamWriter:
        """Where the program reads what the page sends."""
        assert self._program is not None
        assert self._program.stdin is not None
        return self._program.stdin

    async def start(self, width: int, height: int) -> None:
        """Starts the program, and what hands on what it says."""
        await self._begin(width, height)
        self._run = asyncio.create_task(self.run())

    def _environment(self, width: int, height: int) -> dict[str, str]:
        """The variables of the program: the server's, but for those about the server's terminal."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OF_THE_SERVER)}
        return {
            **inherited,
            "COLUMNS": str(width),
            "ROWS": str(height),
            "TEXTUAL_FPS": "60",
            "TEXTUAL_COLOR_SYSTEM": "truecolor",
            "TERM": "xterm-256color",
            "TEXTUAL_DRIVER": f"{PageDriver.__module__}:{PageDriver.__name__}",
            "TERM_PROGRAM": "textual",
            "XDG_STATE_HOME": self._state,
            confinement.VARIABLE: self._folder,
        }

    async def _begin(self, width: int, height: int) -> None:
        self._program = await asyncio.create_subprocess_exec(
            *self._words,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=self._folder,
            env=self._environment(width, height),
            start_new_session=True,  # Ctrl+C is the server's, which ends the program by asking
        )

    async def _write_bytes(self, data: bytes) -> None:
        if self._page is not None:
            # a page that has gone is noticed by who reads from it
            with contextlib.suppress(ConnectionError, RuntimeError):
                await self._page.write_bytes(data)

    async def _write_str(self, text: str) -> None:
        if self._page is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                await self._page.write_str(text)

    async def _hang_up(self) -> None:
        if self._page is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                await self._page.close()


def _cells(width: int, height: int) -> tuple[int, int]:
    return min(max(int(width), 1), _MOST_CELLS), min(max(int(height), 1), _MOST_CELLS)


async def _end_of(stderr: asyncio.StreamReader, most: int = 4096) -> bytes:
    """The last bytes of a stream."""
    last = b""
    while data := await stderr.read(most):
        last = (last + data)[-most:]
    return last
