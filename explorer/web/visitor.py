"""Session of a visitor: a program that survives the page, and the page that currently shows it.

The service of textual-serve ends its program with the page, and passes a string to a shell. This one starts
the program from a list of arguments, and a returning page shows the running program.
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

_STOP_SECONDS = 5.0
"""Seconds within which a program must end after it was told to quit. Then it is killed."""
_MAX_CELLS = 1000
"""Maximum columns and rows of a page."""
_TERMINAL = "".join(
    f"\x1b[?{mode}" for mode in ("1049h", "1000h", "1003h", "1015h", "1006h", "25l", "2004h")
).encode()
"""Terminal modes that the program sets once at its start, and that a new page needs as well."""
_TERMINAL_VARIABLES = ("SSH_", "TMUX", "STY", "TERM", "NO_COLOR", "COLORTERM", "COLUMNS", "LINES")
"""Prefixes of environment variables about the server's own terminal, which the program must not inherit."""


class BrowserPage(NamedTuple):
    """The page that shows a session, as the functions of its web socket."""

    write_bytes: Callable[[bytes], Awaitable[None]]
    write_str: Callable[[str], Awaitable[None]]
    close: Callable[[], Awaitable[object]]


class VisitorSession(AppService):
    """A program, and the page that shows it, if any.

    Args:
        command: Command line of the program.
        folder: Working folder of the program, and the only folder in which it may open files.
        state: Folder for the program's saved sessions. Only this visitor can resume them.
    """

    def __init__(self, command: Sequence[str], folder: str, state: str) -> None:
        super().__init__(
            shlex.join(command),
            write_bytes=self._write_bytes,
            write_str=self._write_str,
            close=self._close_page,
            download_manager=DownloadManager(),
        )
        self._command, self._folder, self._state = command, folder, state
        self._page: BrowserPage | None = None
        self._run: asyncio.Task[None] | None = None
        self._program: Process | None = None
        self._stop_timer: asyncio.TimerHandle | None = None
        self.sockets: list[asyncio.BaseTransport] = []
        """Web sockets of its pages, the newest last."""

    @property
    def running(self) -> bool:
        """Whether the program is running."""
        return self._run is not None and not self._run.done()

    @property
    def watched(self) -> bool:
        """Whether a page shows the program."""
        return self._page is not None

    async def show(self, page: BrowserPage, width: int, height: int) -> None:
        """Show the program on a page, replacing the previous page. Starts the program if necessary."""
        if self._stop_timer is not None:
            self._stop_timer.cancel()
        previous_page, self._page = self._page, page
        if previous_page is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                await previous_page.close()
        if not self.running:
            await self.start(*_limit_size(width, height))
            return
        await self._write_bytes(_TERMINAL)
        await self.set_terminal_size(width, height)
        await self.send_meta({"type": REPAINT})

    def leave(self, page: BrowserPage, seconds: float) -> None:
        """Handle the end of a page. If no other page comes within `seconds`, the program is ended."""
        if self._page is page:
            self._page = None
            loop = asyncio.get_running_loop()
            self._stop_timer = loop.call_later(seconds, lambda: loop.create_task(self.stop()))

    async def set_terminal_size(self, width: int, height: int) -> None:
        """Send the size of the page to the program."""
        width, height = _limit_size(width, height)
        await super().set_terminal_size(width, height)

    async def stop(self) -> None:
        """End the program, and wait until it has ended."""
        if self._stop_timer is not None:
            self._stop_timer.cancel()
        task, process = self._run, self._program
        if task is None or process is None:
            return
        await self.send_meta({"type": "quit"})
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), _STOP_SECONDS)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await task

    async def run(self) -> None:
        """Forward the output of the program until it ends."""
        process = self._program
        assert process is not None
        assert process.stdout is not None
        assert process.stderr is not None
        stderr_task = asyncio.create_task(_read_tail(process.stderr))
        try:
            has_started = await self._forward_packets(process.stdout)
        finally:
            await process.wait()
            stderr_end = await stderr_task
            if process.stdin is not None:
                process.stdin.close()
        if not has_started:
            text = stderr_end.decode("utf-8", "replace").strip() or "explorer: the screen did not start"
            await self._write_bytes(text.replace("\n", "\r\n").encode())
            return
        await self._close_page()

    async def _forward_packets(self, stdout: asyncio.StreamReader) -> bool:
        """Forward the packets of the program. Returns whether a screen has started."""
        handlers = {b"D": self._write_bytes, b"M": self.on_meta, b"P": self.on_packed}
        has_started = False
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionResetError):
            while True:
                kind = await stdout.readexactly(1)
                if kind in handlers:
                    size = int.from_bytes(await stdout.readexactly(4), "big")
                    await handlers[kind](await stdout.readexactly(size))
                # the chooser may precede the screen in the same process
                elif kind + await stdout.readline() == BEGIN:
                    has_started = True
        return has_started

    async def on_meta(self, data: bytes) -> None:
        """Handle a packet about the program. Exit packets are ignored: `run` waits for the process."""
        if b'"exit"' not in data:
            await super().on_meta(data)

    @property
    def stdin(self) -> asyncio.StreamWriter:
        """Input stream of the program."""
        assert self._program is not None
        assert self._program.stdin is not None
        return self._program.stdin

    async def start(self, width: int, height: int) -> None:
        """Start the program, and the task that forwards its output."""
        await self._start_process(width, height)
        self._run = asyncio.create_task(self.run())

    def _environment(self, width: int, height: int) -> dict[str, str]:
        """Return the environment of the program: the server's, without variables about its terminal."""
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(_TERMINAL_VARIABLES)
        }
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

    async def _start_process(self, width: int, height: int) -> None:
        self._program = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=self._folder,
            env=self._environment(width, height),
            start_new_session=True,  # Ctrl+C must only reach the server, which asks the program to end
        )

    async def _write_bytes(self, data: bytes) -> None:
        if self._page is not None:
            # the reader of the web socket handles a page that has disconnected
            with contextlib.suppress(ConnectionError, RuntimeError):
                await self._page.write_bytes(data)

    async def _write_str(self, text: str) -> None:
        if self._page is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                await self._page.write_str(text)

    async def _close_page(self) -> None:
        if self._page is not None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                await self._page.close()


def _limit_size(width: int, height: int) -> tuple[int, int]:
    return min(max(int(width), 1), _MAX_CELLS), min(max(int(height), 1), _MAX_CELLS)


async def _read_tail(stderr: asyncio.StreamReader, size: int = 4096) -> bytes:
    """Return the last bytes of a stream."""
    last_bytes = b""
    while data := await stderr.read(size):
        last_bytes = (last_bytes + data)[-size:]
    return last_bytes
