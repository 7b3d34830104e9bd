"""A real terminal for the program to run in: a pty, a screen drawn by pyte, and a count of the bytes sent.

What a test client of the framework draws cannot tell how many bytes go over the line, whether the terminal
is put back as it was, or whether a process stays behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil
import pyte

ROOT = Path(__file__).parent.parent
SSH = {"SSH_CONNECTION": "10.0.0.2 50022 10.0.0.1 22", "SSH_TTY": "/dev/pts/0"}

PATIENCE = 120.0
"""Seconds that a test waits for what must come: a loaded machine is slow, and not wrong."""

KEYS = {
    "down": "\x1b[B",
    "up": "\x1b[A",
    "left": "\x1b[D",
    "right": "\x1b[C",
    "page down": "\x1b[6~",
    "end": "\x1b[F",
    "escape": "\x1b",
}


class Terminal:
    """A program in a pty of its own.

    Args:
        words: The command.
        columns, rows: Size of the terminal.
        env: Added to an environment that names nothing of the machine's.
        cwd: Where it runs.
        background: Color that the terminal tells who asks for its background, such as 'ffff/ffff/ffff'.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        columns: int = 120,
        rows: int = 40,
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        background: str = "",
    ) -> None:
        self.screen = pyte.Screen(columns, rows)
        # a terminal tells who asks what it is
        self.screen.write_process_input = lambda text: os.write(self.master, text.encode())
        self.background = background
        self.stream = pyte.ByteStream(self.screen)
        self.sent = bytearray()
        self.master, self.slave = os.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.modes_before = termios.tcgetattr(self.slave)
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV")}
        # where sessions are kept: never among the user's own
        self.state = tempfile.TemporaryDirectory(prefix="explorer-state-")
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**kept, "TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONPATH": path}
        environment |= {"XDG_STATE_HOME": self.state.name, "EXPLORER_NO_CACHE": "1", **(env or {})}
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            words,
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env=environment,
            cwd=cwd,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            for child in self.children():
                child.kill()
            self.process.kill()
        self.process.wait()
        self.hang_up()
        self.state.cleanup()

    def hang_up(self) -> None:
        """Drops the line: both ends of it are closed, as when a connection breaks."""
        for end in (self.master, self.slave):
            if end >= 0:
                os.close(end)
        self.master = self.slave = -1

    def resize(self, columns: int, rows: int) -> None:
        """Makes the window another size, which the system tells the program."""
        self.screen.resize(rows, columns)
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def pump(self, seconds: float) -> int:
        """Reads for at most `seconds`, or until something came; how many bytes that was."""
        if not select.select([self.master], [], [], seconds)[0]:
            return 0
        data = os.read(self.master, 1 << 16)
        if self.background and b"\x1b]11;?" in data:
            os.write(self.master, f"\x1b]11;rgb:{self.background}\x1b\\".encode())
        self.sent += data
        self.stream.feed(data)
        return len(data)

    def settle(self, quiet: float = 0.2, limit: float = 60.0) -> int:
        """Reads until the program rested for `quiet` seconds and sent nothing; how many bytes came.

        The program waits for no clock of its own longer than that, but for the one that writes its view down.
        """
        total, end = 0, time.monotonic() + limit
        with contextlib.suppress(psutil.NoSuchProcess):
            its = [psutil.Process(self.process.pid), *self.children()]
            used = _cpu_seconds(its)
            while time.monotonic() < end:
                count = self.pump(quiet)
                total += count
                before, used = used, _cpu_seconds(its)
                if not count and used - before <= 0.03 and not _is_at_work(its):
                    return total  # else a loaded machine gave it no time to say what it has to say
        while count := self.pump(0.0):  # what it had sent before it ended
            total += count
        return total

    def wait_for(self, what: str | Callable[[], bool], limit: float = PATIENCE) -> None:
        """Reads until `what` stands on the screen, or is true; fails with the screen if it never is."""
        end = time.monotonic() + limit

        def seen() -> bool:
            return what in self.text() if isinstance(what, str) else what()

        found = seen()
        while not found:
            assert time.monotonic() < end, f"waited for {what!r} in vain; the screen:\n{self.text()}"
            ended = self.process.poll() is not None
            came = self.pump(0.0 if ended else 0.02)
            assert came or not ended, f"it ended; the screen:\n{self.text()}"
            # what it shows is looked at again where something came: a screen takes long to put together
            found = (came > 0 or callable(what)) and seen()

    def text(self) -> str:
        """What stands on the screen."""
        across, lines = range(self.screen.columns), self.screen.buffer
        # behind a letter of two cells lies one with no text
        rows = ("".join([lines[row][at].data for at in across]) for row in range(self.screen.lines))
        return "\n".join(row.rstrip() for row in rows)

    def written(self) -> str:
        """Everything sent so far, without escape sequences."""
        plain = re.sub(rb"\x1b(\[[0-?]*[ -/]*[@-~]|\].*?(\x07|\x1b\\)|[@-Z\\-_])", b"", bytes(self.sent))
        return plain.decode("utf-8", "replace")

    def press(self, key: str) -> None:
        os.write(self.master, KEYS.get(key, key).encode())

    def key_bytes(self, key: str, quiet: float = 0.2) -> int:
        """Bytes that one key costs."""
        self.press(key)
        return self.settle(quiet)

    def end(self, limit: float = PATIENCE) -> int:
        """Reads until the program has ended, which waits for whoever reads; its exit code."""
        limit += time.monotonic()
        while self.process.poll() is None:
            assert time.monotonic() < limit, f"it does not end; the screen:\n{self.text()}"
            self.pump(0.02)
        self.settle(0.05)
        return self.process.returncode

    def children(self) -> list[psutil.Process]:
        """The processes that the program started."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def modes(self) -> list[object]:
        """The line's settings as they are now."""
        return termios.tcgetattr(self.slave)


def command_of(process: psutil.Process) -> str:
    """What it was started with; nothing of one that has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    """What they have used; where one of them has ended, what the others have."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:2])
    return total


def _is_at_work(processes: Sequence[psutil.Process]) -> bool:
    """Whether a thread of theirs runs, or would if it had its turn; Linux alone tells."""
    for process in processes:
        for stat in Path(f"/proc/{process.pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                if stat.read_text(errors="replace").rpartition(")")[2].split()[0] in "RD":
                    return True
    return False


def explorer(model: str | Path, *options: str, **kwargs: object) -> Terminal:
    """The program itself on a model."""
    return Terminal([sys.executable, "-m", "explorer", str(model), *options], **kwargs)  # type: ignore[arg-type]
