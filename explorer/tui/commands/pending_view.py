"""Pending view: a screen that a key opens as soon as the engine has computed its contents.

Keys that are typed meanwhile are kept for this screen. Otherwise they would run commands of the main screen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from explorer.tui.widgets.status_line import job_line

if TYPE_CHECKING:
    from textual.screen import Screen
    from textual.worker import Worker

    from explorer.tui.dialogs.waiting import WaitingDialog
    from explorer.tui.models.open_models import ModelHost
    from explorer.tui.state.store import ScreenStore
    from explorer.tui.text.lines import Line

_SHOWN_AFTER = 0.04
"""Seconds after which a waiting dialog is shown. If the screen opens earlier, no dialog is shown."""


class PendingView:
    """Holds keys back, then shows a waiting dialog that keeps them for the screen.

    Args:
        screen: The main screen.
        host: The program, which queues the keys.
        store: State of the main screen.
        takes_keys: Whether the screen gets the keys that were typed before it opened. A question about a
            change gets none, so that nobody confirms what was not visible.

    Attributes:
        title: Title of the waiting dialog.
        workers: Background tasks that prepare the screen.
        running_count: Number of tasks that have not ended.
    """

    def __init__(
        self, screen: Screen[None], host: ModelHost, store: ScreenStore, *, takes_keys: bool
    ) -> None:
        self._host, self._store, self._takes_keys = host, store, takes_keys
        self.title = ""
        self.workers: list[Worker[None]] = []
        self.running_count = 0
        self.has_ended = False
        self._dialog: WaitingDialog | None = None
        self._release_keys: Callable[[], None] | None = host.hold_keys()
        self._app = screen.app
        self._timer = screen.set_timer(_SHOWN_AFTER, self._show)

    def end(self, *, opens: bool = False) -> None:
        """Close the waiting dialog. With `opens`, the screen opens now and gets the typed keys."""
        if self.has_ended:
            return
        self.has_ended = True
        self._timer.stop()
        if self._dialog is not None:
            keys = self._dialog.finish(self._host.put_keys_first if opens and self._takes_keys else None)
            if opens and self._takes_keys:
                self._host.put_keys_first(keys)
        self._release()

    def draw(self) -> None:
        """Draw the progress of the job again."""
        if self._dialog is not None:
            self._dialog.draw_progress()

    def _show(self) -> None:
        if not self.has_ended:
            from explorer.tui.dialogs.waiting import WaitingDialog  # imported when a dialog opens

            self._dialog = WaitingDialog(self.title, self._store.jobs, self._draw_line)
            self._app.push_screen(self._dialog, self._stop)
        self._release()

    def _release(self) -> None:
        if self._release_keys is not None:
            self._release_keys()
            self._release_keys = None

    def _stop(self, _: object) -> None:
        """Stop the work when the user closes the waiting dialog."""
        if not self.has_ended and not self._store.jobs.stop():
            for worker in self.workers:
                worker.cancel()
            self._store.say(f"{self.title}: stopped, no change was made")

    def _draw_line(self, width: int) -> Line:
        running = self._store.jobs.current
        if running is None:
            return ((f" {self.title}…", "dim"),)
        progress, seconds = running.job.progress, running.elapsed
        # the edge of the dialog names the key
        return job_line(f"{running.title}…", progress, seconds, width, refused=False, hint=" ")
