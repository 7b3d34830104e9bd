"""Background color of the terminal, which chooses the light or the dark theme until the user chooses one.

The program asks with the sequence OSC 11, and then for the device attributes, which every terminal answers. A
terminal that does not know OSC 11 answers only the second question, so the program does not wait longer for
it. The answers travel while the program imports the modules of the screen.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual import events

_QUESTION = b"\x1b]11;?\x1b\\\x1b[c"  # OSC 11, then the request of the device attributes
_COLOR = re.compile(rb"\x1b\]11;rgba?:([0-9a-f]{1,4})/([0-9a-f]{1,4})/([0-9a-f]{1,4})", re.IGNORECASE)
_END = re.compile(rb"\x1b\[\?[\d;]*c\Z")
_MAX_BYTES = 256  # more bytes than both answers have
_TIMEOUT_SECONDS, _REMOTE_TIMEOUT_SECONDS = 0.15, 0.4
"""Seconds between the question and the start of the screen, at a local terminal and over SSH."""
_LATE = 10.0
"""Seconds after the start in which a late answer may arrive."""
_BURST = 0.3
"""Seconds within which all characters of a late answer are reported, after waiting for an Esc key."""


class BackgroundQuestion:
    """Asks the terminal for its background color.

    Args:
        terminal: File descriptor of the terminal.
        remote: Whether the terminal is connected over SSH.

    Attributes:
        is_answered: Whether the terminal answered the second question, so that no answer arrives later.
    """

    def __init__(self, terminal: int, *, remote: bool) -> None:
        self._terminal = terminal
        self._deadline = time.monotonic() + (_REMOTE_TIMEOUT_SECONDS if remote else _TIMEOUT_SECONDS)
        self.is_answered = False
        os.write(terminal, _QUESTION)

    def read(self) -> bool | None:
        """Return whether the background is light, or None if the terminal did not say so in time."""
        answer = bytearray()
        while len(answer) < _MAX_BYTES:
            remaining = max(0.0, self._deadline - time.monotonic())
            if not select.select([self._terminal], [], [], remaining)[0]:
                break
            # one byte at a time: keys that follow the answer are for the screen
            answer += os.read(self._terminal, 1)
            if _END.search(answer):
                self.is_answered = True
                break
        return is_light(bytes(answer))


def is_light(answer: bytes) -> bool | None:
    """Return whether an answer to OSC 11 contains a light color, or None if it contains no color."""
    match = _COLOR.search(answer)
    if match is None:
        return None
    red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in match.groups())
    brightness: float = 0.299 * red + 0.587 * green + 0.114 * blue  # luma of ITU-R BT.601
    return brightness > 0.5


@contextlib.contextmanager
def ask_background(*, remote: bool) -> Iterator[BackgroundQuestion | None]:
    """Ask the terminal at the standard input for its background. Yields None if it cannot be asked.

    Within this context, the terminal neither echoes what it receives nor waits for whole lines.
    """
    if sys.platform == "win32":
        yield None
        return
    import termios

    terminal, question = sys.__stdin__, None
    try:
        if terminal is None:
            raise OSError
        before = termios.tcgetattr(terminal)
        changed = list(before)
        changed[3] &= ~(termios.ICANON | termios.ECHO)
        termios.tcsetattr(terminal, termios.TCSANOW, changed)
    except (OSError, ValueError, termios.error):
        yield None
        return
    try:
        with contextlib.suppress(OSError):
            question = BackgroundQuestion(terminal.fileno(), remote=remote)
        yield question
    finally:
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(terminal, termios.TCSANOW, before)


class LateAnswer:
    """Recognizes the characters of an answer that arrives after the screen has started.

    Textual reports the characters of an unknown sequence as keys. An answer begins with `^` or `[`, and its
    characters arrive within a moment.
    """

    _BEGIN = ("circumflex_accent", "left_square_bracket", "alt+left_square_bracket")

    def __init__(self) -> None:
        self._end = time.monotonic() + _LATE
        self._burst_end = 0.0

    def contains(self, event: events.Key) -> bool:
        """Whether a key is a character of a late answer."""
        now = time.monotonic()
        if event.key in self._BEGIN and now < self._end:
            self._burst_end = now + _BURST
        return now < self._burst_end
