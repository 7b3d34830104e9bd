"""One input, under the limits that hold for every one: it answers or refuses, in a second, below 1 GiB.

The second is one of processor time: a machine that is shared with others must not make a find of its own
slowness. The clock's signal ends loops of Python; what hangs in native code is ended from outside.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from explorer.base.errors import ExplorerError

__all__ = ["MEMORY", "SECONDS", "Find", "attempt", "bounded_memory"]

SECONDS = 1.0
MEMORY = 1 << 30
_WORDS = 2000
"""Characters of the longest refusal: it is to be one line that somebody reads."""

_PACKAGE = str(Path(__file__).parent.parent.parent / "explorer")


class _TooLong(BaseException):
    """The time of one input is over."""


class Find:
    """What an input did that none may do."""

    def __init__(self, kind: str, text: str, where: str) -> None:
        self.kind, self.text, self.where = kind, text, where

    @property
    def key(self) -> str:
        """The same for two inputs that fail in the same line."""
        return f"{self.kind} at {self.where}"


def _place(error: BaseException) -> str:
    """The innermost line of the program's own in a traceback."""
    found = "?"
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        if name.startswith(_PACKAGE):
            found = f"{name.removeprefix(_PACKAGE)}:{line}"
    return found


@contextlib.contextmanager
def _clock(seconds: float) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def attempt(run: Callable[[str], None], path: str, seconds: float = SECONDS) -> Find | None:
    """Runs one input; None if it answered or was refused as it should be."""
    try:
        with _clock(seconds):
            run(path)
    except ExplorerError as error:
        text = str(error)
        if len(text) > _WORDS or "\n" in text:
            return Find("refusal of many words", text[:300], _place(error))
    except _TooLong as error:
        return Find("more than a second", "".join(traceback.format_exception(error)), _place(error))
    except (Exception, RecursionError, MemoryError) as error:
        return Find(type(error).__name__, "".join(traceback.format_exception(error)), _place(error))
    return None


@contextlib.contextmanager
def bounded_memory(size: int = MEMORY) -> Iterator[None]:
    """Lets this process take `size` bytes more than it has, and no byte beyond."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux: the clock must do
        yield
        return
    data = next(line for line in status.read_text().splitlines() if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (int(data.split()[1]) * 1024 + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
