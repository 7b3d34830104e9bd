"""Start of the screen application, and its end after a disconnect.

The engine process starts after the first paint. Started earlier, its imports would compete with the paint for
a core on a busy machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from explorer.tui.app.hangup import end_on_hangup

if TYPE_CHECKING:
    from explorer.process.saved_sessions import SavedSession, SessionStore
    from explorer.tui.models.open_models import Begin, ModelChoice, OpenModel


def is_remote(environment: Mapping[str, str]) -> bool:
    """Whether the terminal is connected over SSH."""
    return any(environment.get(name) for name in ("SSH_CONNECTION", "SSH_TTY", "SSH_CLIENT"))


def run(
    source: str,
    engine_options: Mapping[str, Any] | None = None,
    *,
    remote: bool = False,
    memory: int | None = None,
    resumed: tuple[SessionStore, SavedSession] | None = None,
    folder: str = "",
    overlays: tuple[str, ...] = (),
    beside: str | None = None,
) -> int:
    """Open a model or the chooser on the screen, and return when the user quits.

    Args:
        source: Source of the model, as for `session.Session`; '' for the chooser.
        engine_options: Other arguments of `session.Session`. With the chooser, they apply to the first
            choice.
        remote: Whether to save bytes even if no SSH connection is detected.
        memory: Maximum bytes of an engine process, or None for the machine's memory.
        resumed: Saved session to continue, with its store, or None.
        folder: Folder that the chooser lists; '' for the current one.
        overlays: Paths of files with external figures.
        beside: Source of another model to compare with, or None.

    Returns:
        The exit code.

    Raises:
        Exception: The program failed. The session can be resumed.
    """
    # imported late: errors in the arguments are reported without loading Textual
    from explorer.tui.models.resumable_session import ResumableSession
    from explorer.tui.program import ExplorerApp

    options = dict(engine_options or {})
    first = ResumableSession(source, options, memory, resumed) if source else None
    app = ExplorerApp(
        source,
        first.engine if first is not None else None,
        remote=remote or is_remote(os.environ),
        keeper=first,
        view=resumed[1].view if resumed else None,
        begin=_session_factory({} if source else options, memory),
        memory=memory,
        folder=folder,
        overlays=overlays,
        beside=beside,
    )
    exit_code = None
    try:
        with end_on_hangup(app):
            exit_code = app.run()
        if app.failure is not None:
            raise app.failure
    finally:
        for model in app.models.open:
            model.close(properly=exit_code == 0)
    return exit_code if exit_code is not None else app.return_code or 0


def _session_factory(options: dict[str, Any], memory: int | None) -> Begin:
    """Return a function that begins sessions. `options` apply only to the first one."""

    def begin(choice: ModelChoice) -> OpenModel:
        from explorer.tui.models.opening import begin_session  # imported after the first paint

        model = begin_session(choice, dict(options), memory)
        options.clear()
        return model

    return begin
