"""Key order: handles keys one at a time, each after the effects of the previous one.

Text that is pasted into a terminal without bracketed paste arrives as keys, which would run commands: write
files and answer questions. Many different characters that arrive together are therefore treated as a paste.
If the terminal sent them in one piece, not even the first of them acts as a key, except a `/`, which opens
the filter. If an input has the focus, a single line, with or without Enter at its end, is treated as typed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any

from textual.events import Key, Paste
from textual.widgets import Input

if TYPE_CHECKING:
    from textual.app import App
    from textual.events import Event

_MAX_TURN_SECONDS = 1.0
"""Seconds after which the next key no longer waits for the previous one."""
_MIN_PASTED, _MIN_DIFFERENT = 16, 6
"""Minimum number of characters, and of different characters, of a paste. A held key repeats one character."""
_FILTER_KEY = "/"
_MAX_LINE = 256
"""Maximum number of characters that an input takes as typed."""
_MAX_GAP, _MAX_PAUSE = 0.03, 0.1
"""Maximum seconds between two characters of a paste, and between two pieces of it."""
_MAX_WAIT = 0.5
"""Seconds without a key after which keys no longer wait for the rest of their piece."""


class KeysInOrder:
    """Queues keys until the previous key is fully handled.

    Textual sends each key to the widget that has the focus when the key arrives. On a slow connection several
    keys arrive at once. If the first one moves the focus or opens a dialog, the next ones would go to the old
    widget. A priority binding would even run before earlier keys.

    Args:
        app: The application.
        forward: Function that sends a key to the focused widget.
    """

    def __init__(self, app: App[Any], forward: Callable[[Event], Awaitable[None]]) -> None:
        self._app, self._forward = app, forward
        self._waiting: deque[Event] = deque()
        self._current_turn: float | None = None  # time at which the current key started; None between keys
        self._hold_count, self._is_held = 0, False  # screens about to open; whether a turn waits for them
        self._paste_end = 0.0  # time of the last character of the last paste
        self._has_line_end = False  # whether the last paste contained a line end
        self._pieces: deque[tuple[float, int]] = deque()  # time and characters of reads that are expected
        self._piece_start, self._piece_end, self._expected_count = 0.0, 0.0, 0
        self._last_taken, self._is_timed = 0.0, False  # time of the last expected key; whether the timer runs

    def expect(self, count: int) -> None:
        """Let keys wait until `count` characters have arrived, so that a paste is recognized as a whole.

        The thread that reads the terminal calls this before it reports the characters.
        """
        if count >= _MIN_PASTED:
            self._pieces.append((time.monotonic(), count))

    async def take(self, event: Event) -> None:
        """Queue a key, and handle it at once if no other key is in progress."""
        self._waiting.append(event)
        while self._pieces and event.time >= self._pieces[0][0]:
            self._piece_start, self._expected_count = self._pieces.popleft()
        if self._expected_count:
            self._expected_count -= 1
            # a busy machine may take long to report characters that came at once
            self._piece_end, self._last_taken = event.time, time.monotonic()
            event.time = self._piece_start
            if not self._is_timed:
                self._is_timed = True
                self._app.set_timer(_MAX_WAIT, self._stop_expecting)
        if self._current_turn is None or time.monotonic() - self._current_turn > _MAX_TURN_SECONDS:
            await self._post_next()

    def _stop_expecting(self) -> None:
        """Handle the keys that wait for a character that does not arrive."""
        self._is_timed = bool(self._expected_count) and time.monotonic() - self._last_taken < _MAX_WAIT
        if self._is_timed:
            self._app.set_timer(_MAX_WAIT, self._stop_expecting)
        else:
            self._expected_count = 0
            self.put_first(())

    def hold(self) -> Callable[[], None]:
        """Let the next keys wait for a screen that is about to open. The returned function ends the wait."""
        self._hold_count += 1

        def release() -> None:
            self._hold_count -= 1
            if not self._hold_count and self._is_held:
                self._is_held = False
                self._start_turn()

        return release

    def put_first(self, events: Sequence[Event]) -> None:
        """Handle keys before those that wait, once the topmost screen is mounted."""
        self._waiting.extendleft(reversed(events))
        if self._current_turn is None and self._waiting:
            self._start_turn()

    def _start_turn(self) -> None:
        self._current_turn = turn = time.monotonic()
        self._app.call_later(self._await_mount, turn)

    async def _post_next(self) -> None:
        """Handle the next event, unless it must wait for the rest of a paste or for a screen that opens."""
        self._current_turn = None
        if self._waiting and not self._expected_count:
            self._current_turn = turn = time.monotonic()
            if self._hold_count:
                self._is_held = True
                return
            node = self._app.focused or self._app.screen
            await self._forward(self._pop_next())
            self._follow_key(node, turn)

    def _pop_next(self) -> Event:
        """Return the next event. Waiting characters that arrived together become one paste."""
        keys = [event for event in takewhile(_is_text, self._waiting) if isinstance(event, Key)]
        is_continued = bool(keys) and keys[0].time - self._paste_end < _MAX_PAUSE
        is_paste = (
            len(keys) >= _MIN_PASTED
            and len({key.character for key in keys}) >= _MIN_DIFFERENT
            and all(b.time - a.time < _MAX_GAP for a, b in pairwise(keys))
        )
        if not (is_continued or is_paste):
            return self._waiting.popleft()
        text = "".join(key.character or "" for key in keys).replace("\r", "\n")
        # a script sends a line and Enter at once, which an input takes as typed
        is_line = text.find("\n") in (-1, len(text) - 1) and len(text) <= _MAX_LINE
        is_typed = isinstance(self._app.focused, Input) if is_line else False
        if not is_continued and (is_typed or text.startswith(_FILTER_KEY)):
            return self._waiting.popleft()
        for _ in keys:
            self._waiting.popleft()
        # an input takes only the first line of a paste, even if the paste arrives in parts
        pasted_text = "" if is_continued and self._has_line_end else text
        self._has_line_end = "\n" in text or (is_continued and self._has_line_end)
        self._paste_end = max(keys[-1].time, self._piece_end)
        return Paste(pasted_text)

    def _follow_key(self, node: Any, turn: float) -> None:
        """Post a callback through the queues of all nodes that the key bubbles through."""
        while node is not self._app and node is not None:
            if node.call_later(self._follow_key, node.parent, turn):
                return
            node = node.parent
        self._app.call_later(self._await_mount, turn)

    def _await_mount(self, turn: float) -> None:
        """Wait for a screen that the key opened to be mounted, and for its focus to be set."""
        if not self._app.screen.call_later(self._app.call_later, self._handle_next, turn):
            self._app.call_later(self._handle_next, turn)

    async def _handle_next(self, turn: float) -> None:
        if turn == self._current_turn:
            await self._post_next()


def _is_text(event: Event) -> bool:
    """Whether an event is a key that pasted text can contain."""
    return isinstance(event, Key) and (event.is_printable or event.key in ("enter", "tab", "ctrl+j"))
