"""Progress line on standard error: shows the state of a job, and is removed at the end.

The line is drawn only on a terminal, because a log file or a pipe would collect every update. This module
uses only the standard library, because commands that print JSON load no drawing library.
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
"""Minimum seconds between two drawings of the line."""
_SILENT_S = 0.3
"""Seconds of a job before its line is first drawn."""
_COUNTABLE = 100_000
"""Largest total that is shown as a count ('3/12'). A larger total is shown as a percentage."""


class ProgressLine:
    """A progress callback. Call `clear` before printing anything else.

    Args:
        stream: Terminal to draw on; standard error by default. If it is not a terminal, nothing is drawn.
        quiet: Whether to draw nothing.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._is_on = not quiet and self._stream is not None and self._stream.isatty()
        self._started = self._drawn_at = time.monotonic()
        self._drawn = 0  # characters of the current line

    def __call__(self, progress: Progress) -> None:
        """Draw the state of a job, at most ten times per second, if the job has taken a moment."""
        now = time.monotonic()
        if not self._is_on or now - self._started < _SILENT_S or now - self._drawn_at < _PERIOD_S:
            return
        self._drawn_at = now
        self._draw(
            f"{printable(progress.phase)}{_format_share(progress)}   {seconds_text(now - self._started)}"
        )

    def clear(self) -> None:
        """Remove the line."""
        if self._drawn:
            self._draw("")

    def _draw(self, text: str) -> None:
        text = text[: max(10, _count_columns(self._stream) - 1)]
        # spaces work on all terminals; an erase sequence does not
        self._stream.write("\r" + text.ljust(self._drawn) + ("" if text else "\r"))
        self._stream.flush()
        self._drawn = len(text)


def _format_share(progress: Progress) -> str:
    if not progress.total:
        return ""
    if progress.total > _COUNTABLE:
        return f" {100 * progress.done // progress.total} %"
    return f" {progress.done:,}/{progress.total:,}"


def _count_columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
