"""The status line: what runs, or what was done last."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from explorer.base import units
from explorer.tui.text.lines import Line, Span, bar, cut, fit, line_width, middle, safe
from explorer.tui.widgets.strips import Status

if TYPE_CHECKING:
    from textual.timer import Timer

    from explorer.facts import Progress
    from explorer.tui.state.jobs import Jobs
    from explorer.tui.state.store import ScreenStore

_COUNTABLE = 100_000
"""Beyond this a job counts bytes, of which a user wants the share."""
_RESTING = ((" · timing, the screen rests meanwhile", "text"), ("  Esc stops ", "dim"))
_TICK, _TICK_REMOTE = 0.5, 2.0


class JobLine(Status):
    """A line about the job that runs; it ticks while one does.

    Args:
        jobs: It is one of these.
        line: The line in so many cells.
    """

    def __init__(self, jobs: Jobs, line: Callable[[int], Line]) -> None:
        super().__init__()
        self._jobs, self._line = jobs, line
        self._timer: Timer | None = None

    @property
    def ticking(self) -> bool:
        """Whether it looks at a job now and then."""
        return self._timer is not None

    def draw_status(self) -> None:
        """Draw what has changed."""
        running = self._jobs.current
        self.set_class(running is not None, "busy")
        self.show(lambda width: (self._line(width),))
        rests = running is None or running.resting
        if not rests and self._timer is None:
            tick = _TICK_REMOTE if self.app.has_class("remote") else _TICK  # each is bytes
            self._timer = self.set_interval(tick, self.draw_status)
        elif rests and self._timer is not None:
            self._timer.stop()
            self._timer = None


class StatusLine(JobLine):
    """The job that runs, or else what was done last.

    Args:
        store: Whose jobs.
    """

    def __init__(self, store: ScreenStore) -> None:
        super().__init__(store.jobs, self._status)
        self._store = store

    def on_mount(self) -> None:
        """Watch the jobs, and what is said."""
        self._store.watch(self.draw_status, "jobs", "said")
        self.draw_status()

    def _status(self, width: int) -> Line:
        store, running = self._store, self._store.jobs.current
        if running is None:
            return done_line(store.last_command, store.message, width)
        refused = store.refused_job is running
        if running.resting and not refused:
            return cut(((f" {running.title}", "accent"), *_RESTING), width)
        return job_line(running.title, running.job.progress, running.elapsed, width, refused=refused)


def elapsed_text(seconds: float) -> str:
    """A running time in whole seconds: a figure that is still growing needs no fraction."""
    whole = int(seconds)
    return f"{whole} s" if whole < 60 else units.seconds_text(whole)


def job_line(title: str, progress: Progress | None, seconds: float, width: int, *, refused: bool) -> Line:
    """What runs, how far it is, and how to stop it; `refused` says that another job was asked for."""
    spans: list[Span] = [(f" {title}", "accent")]
    if progress is not None:
        if progress.phase != title:
            spans.append((f" · {safe(progress.phase)}", "text"))
        if progress.total:
            share = progress.done / progress.total
            count_text = (
                f"{progress.done:,}/{progress.total:,}" if progress.total <= _COUNTABLE else f"{share:.0%}"
            )
            filled, track = bar(share, 10)
            spans += [("  ", "text"), filled, track, (f" {count_text}", "number")]
    tail: tuple[Span, ...] = ((elapsed_text(seconds), "dim"), ("  Esc stops ", "dim"))
    if refused:
        tail = (("one job at a time", "warn"), ("  Esc stops ", "dim"))
    gap = width - line_width(spans) - line_width(tail)
    if gap < 1:
        room = max(1, width - line_width(tail) - 1)
        spans, gap = [(fit("".join(piece for piece, _ in spans), room), "text")], 1
    return (*spans, (" " * gap, "text"), *tail)


def done_line(command: str, text: str, width: int) -> Line:
    """The command that would do again what was done last, or else a word about it."""
    if not command:
        return ((fit(f" {safe(text)}", width), "dim"),)
    hint = "  y copies "
    room = width - 4 - len(hint)
    return ((" $ ", "accent"), (fit(middle(safe(command), room), room), "text"), (hint, "dim"))
