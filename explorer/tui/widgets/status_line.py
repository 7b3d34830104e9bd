"""The status line: the running job, or the last command."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.cells import cell_len

from explorer.base import units
from explorer.tui.text.lines import (
    Line,
    Span,
    cut_line,
    cut_message,
    cut_middle,
    draw_bar,
    escape_name,
    fit,
    line_width,
)
from explorer.tui.widgets.strips import Status

if TYPE_CHECKING:
    from textual.timer import Timer

    from explorer.facts import Progress
    from explorer.tui.state.jobs import Jobs
    from explorer.tui.state.store import ScreenStore

_COUNTABLE = 100_000
"""Total above which a percentage replaces the count, because jobs with large totals count bytes."""
_REFUSALS = (
    "still runs, so the key did nothing: wait until it ends, or press Esc to stop it",
    "still runs: wait until it ends, or press Esc to stop it",
    "still runs: wait, or Esc stops it",
    "runs; Esc stops it",
)
"""Reasons that a key did nothing, the longest first."""
_RESTING = ((" · timing, the screen rests meanwhile", "text"), ("  Esc stops ", "dim"))
_TICK, _TICK_REMOTE = 0.5, 2.0  # seconds between redraws of a running job, at a local terminal and over SSH
_BELOW_DIALOG = 0.25
"""Seconds after which a change is drawn below a dialog."""


class JobLine(Status):
    """A line about the running job, redrawn periodically while a job is running.

    Args:
        jobs: Jobs of the screen.
        line: Function that draws the line in a width.
    """

    def __init__(self, jobs: Jobs, line: Callable[[int], Line]) -> None:
        super().__init__()
        self._jobs, self._line = jobs, line
        self._timer: Timer | None = None

    @property
    def is_ticking(self) -> bool:
        """Whether the line is redrawn periodically."""
        return self._timer is not None

    def draw_status(self) -> None:
        """Draw the line, and start or stop the timer."""
        running = self._jobs.current
        self.set_class(running is not None, "busy")
        self.show(lambda width: (self._line(width),))
        is_resting = running is None or running.is_resting
        if not is_resting and self._timer is None:
            tick = _TICK_REMOTE if self.app.has_class("remote") else _TICK  # each redraw sends bytes
            self._timer = self.set_interval(tick, self.draw_status)
        elif is_resting and self._timer is not None:
            self._timer.stop()
            self._timer = None


class StatusLine(JobLine):
    """Shows the running job, or the last command if no job is running.

    Args:
        store: State of the screen.
    """

    def __init__(self, store: ScreenStore) -> None:
        super().__init__(store.jobs, self._status)
        self._store = store
        self._late_draw: Timer | None = None

    def on_mount(self) -> None:
        """Subscribe to jobs and messages."""
        self._store.watch(self._draw_soon, "jobs", "message")
        self.draw_status()

    def _draw_soon(self) -> None:
        """Draw the line: at once, or a moment later where a dialog is above.

        Each change below a dialog draws the whole dimmed screen again. Many jobs of a dialog end before that.
        """
        if self.screen.is_current:
            self.draw_status()
        elif self._late_draw is None:
            self._late_draw = self.set_timer(_BELOW_DIALOG, self.draw_status)

    def draw_status(self) -> None:
        """Draw the line."""
        if self._late_draw is not None:
            self._late_draw.stop()
            self._late_draw = None
        super().draw_status()

    def _status(self, width: int) -> Line:
        store, running = self._store, self._store.jobs.current
        if running is None:
            return done_line(store.last_command, store.message, width)
        if running.is_resting and not running.refused:
            return cut_line(((f" {running.title}", "accent"), *_RESTING), width)
        return job_line(running.title, running.job.progress, running.elapsed, width, refused=running.refused)


def elapsed_text(seconds: float) -> str:
    """Format a growing duration in whole seconds."""
    whole_seconds = int(seconds)
    return f"{whole_seconds} s" if whole_seconds < 60 else units.seconds_text(whole_seconds)


def job_line(
    title: str,
    progress: Progress | None,
    seconds: float,
    width: int,
    *,
    refused: bool,
    hint: str = "  Esc stops ",
) -> Line:
    """Draw the running job, its progress, its elapsed `seconds`, and how to stop it.

    With `refused`, the line tells instead why a key did nothing, and what the user can do. `hint` names the
    key that stops the job; ' ' if another line names it.
    """
    spans: list[Span] = [(f" {title}", "accent")]
    if refused:
        room = width - line_width(spans) - 2
        reason = next((text for text in _REFUSALS if len(text) <= room), _REFUSALS[-1])
        return cut_line((*spans, ("  ", "text"), (fit(reason, max(1, room)), "warn")), width)
    if progress is not None:
        if progress.phase != title:
            spans.append((f" · {escape_name(progress.phase)}", "text"))
        if progress.total:
            share = progress.done / progress.total
            count_text = (
                f"{progress.done:,}/{progress.total:,}" if progress.total <= _COUNTABLE else f"{share:.0%}"
            )
            filled, track = draw_bar(share, 10)
            spans += [("  ", "text"), filled, track, (f" {count_text}", "number")]
    tail: tuple[Span, ...] = ((f"{elapsed_text(seconds)}{hint}", "dim"),)
    gap = width - line_width(spans) - line_width(tail)
    if gap < 1:
        room = max(1, width - line_width(tail) - 1)
        spans, gap = [(fit("".join(content for content, _ in spans), room), "text")], 1
    return (*spans, (" " * gap, "text"), *tail)


def done_line(command: str, text: str, width: int) -> Line:
    """Draw the command that repeats the last action, or the message `text` if there is no command."""
    if not command:
        return ((fit(cut_message(f" {escape_name(text)}", width), width), "dim"),)
    hint = "  y copies "
    room = width - 4 - len(hint)
    return ((" $ ", "accent"), (fit(_cut_command(escape_name(command), room), room), "text"), (hint, "dim"))


def _cut_command(command: str, width: int) -> str:
    """Cut a command between words: ' … ' replaces words in the middle, after at most half of the width."""
    if cell_len(command) <= width:
        return command
    words = command.split(" ")
    for head_count in range(len(words) - 1, 0, -1):
        head = " ".join(words[:head_count])
        if cell_len(head) <= width // 2 and not words[head_count - 1].startswith("-"):
            starts = [at for at in range(head_count + 1, len(words)) if words[at].startswith("-")]
            tails = (" ".join(words[start:]) for start in starts)
            tail = next((text for text in tails if cell_len(head) + cell_len(text) + 3 <= width), "")
            if tail:
                return f"{head} … {tail}"
    return cut_middle(command, width)
