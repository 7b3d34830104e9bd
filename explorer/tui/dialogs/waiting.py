"""Waiting dialog: shows that a screen is being prepared, and keeps the keys that are typed for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType

from explorer.tui.dialogs.dialogs import Dialog
from explorer.tui.widgets.status_line import JobLine

if TYPE_CHECKING:
    from explorer.tui.state.jobs import Jobs
    from explorer.tui.text.lines import Line

TakeKeys = Callable[[Sequence[events.Key | events.Paste]], None]
"""Function that hands typed keys and pasted texts to the topmost screen."""


class WaitingDialog(Dialog[None]):
    """Shows the progress of the job that prepares a screen.

    Args:
        title: Title of the screen that is being prepared.
        jobs: Jobs of the main screen.
        line: Function that draws the progress in a width.
    """

    BINDINGS: ClassVar[list[BindingType]] = []
    HINT = "Esc stop"
    keeps_keys = True
    """Whether keys and pasted texts are kept for another screen."""

    def __init__(self, title: str, jobs: Jobs, line: Callable[[int], Line]) -> None:
        super().__init__()
        self.TITLE_TEXT = title
        self._jobs, self._line = jobs, line
        self._kept_events: list[events.Key | events.Paste] = []
        self._has_finished = False
        self._take_late: TakeKeys | None = None

    def compose_body(self) -> ComposeResult:
        """Yield the progress."""
        yield JobLine(self._jobs, self._line)

    def on_mount(self) -> None:
        """Draw the progress."""
        self.draw_progress()

    def draw_progress(self) -> None:
        """Draw the progress again."""
        for line in self.query(JobLine):
            line.draw_status()

    def on_key(self, event: events.Key) -> None:
        """Keep a key for the screen; Esc stops the work."""
        if event.key != "escape":
            event.stop()
            copy = events.Key(event.key, event.character)
            copy.time = event.time
            self._keep(copy)

    def on_paste(self, event: events.Paste) -> None:
        """Keep a pasted text for the screen."""
        event.stop()
        self._keep(events.Paste(event.text))

    def _keep(self, event: events.Key | events.Paste) -> None:
        if not self._has_finished:
            self._kept_events.append(event)
        elif self._take_late is not None:
            self._take_late([event])

    def finish(self, take_late: TakeKeys | None) -> list[events.Key | events.Paste]:
        """Close, and return the kept keys. Keys that arrive while the dialog closes go to `take_late`."""
        self._has_finished, self._take_late = True, take_late
        self.dismiss(None)
        return self._kept_events

    def on_screen_resume(self) -> None:
        """Close if the work ended while another screen was above this one."""
        if self._has_finished:
            self.dismiss(None)
