"""Progress line on standard error: it says where a job stands, and leaves nothing behind.

It is drawn only on a terminal: a log file or a pipe would collect every state of it. Standard library
only, because the verbs that print JSON load nothing to draw with.
"""

from __future__ import annotations

import os
import sys
import time

from explorer.base.units import printable, seconds_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

    from explorer.facts import Progress

_PERIOD_S = 0.1
_SILENT_S = 0.3
_COUNTABLE = 100_000


class ProgressLine:
    """Call it with every `Progress`; `clear` it before anything else is printed.

    Args:
        stream: Where to draw; standard error by default. Nothing is drawn unless it is a terminal.
        quiet: Draw nothing at all.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._on = not quiet and self._stream is not None and self._stream.isatty()
        self._started = self._drawn_at = time.monotonic()
        self._drawn = 0

    def __call__(self, progress: Progress) -> None:
        """Draws the state, at most ten times a second, once the job has lasted a moment."""
        now = time.monotonic()
        if not self._on or now - self._started < _SILENT_S or now - self._drawn_at < _PERIOD_S:
            return
        self._drawn_at = now
        self._draw(f"{printable(progress.phase)}{_share(progress)}   {seconds_text(now - self._started)}")

    def clear(self) -> None:
        """Wipes the line."""
        if self._drawn:
            self._draw("")

    def _draw(self, text: str) -> None:
        text = text[: max(10, _columns(self._stream) - 1)]
        # blanks instead of an erase sequence: a dumb terminal understands them too
        self._stream.write("\r" + text.ljust(self._drawn) + ("" if text else "\r"))
        self._stream.flush()
        self._drawn = len(text)


def _share(progress: Progress) -> str:
    if not progress.total:
        return ""
    if progress.total > _COUNTABLE:
        return f" {100 * progress.done // progress.total} %"
    return f" {progress.done:,}/{progress.total:,}"


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
