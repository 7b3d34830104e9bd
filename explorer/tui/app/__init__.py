"""Application start: the engine's process, the theme, the terminal, and a line that drops.

The engine's process starts after the first paint: started before, so that its imports overlap Textual's, it
takes a core from the paint on a busy machine.
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
    """Whether the terminal is at the other end of an SSH connection."""
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
    """Open the screen on a model, or on the chooser, and stay until the user quits.

    Args:
        source: As for `session.Session`; empty for the chooser.
        engine_options: Its other arguments; those of the first model that is chosen.
        remote: Save bytes as over SSH, even if it does not look like it.
        memory: Most bytes that an engine may take; None for as much as the machine has.
        resumed: The session to go on with.
        folder: Whose models the chooser lists; empty for the current one.
        overlays: Files of figures from outside.
        beside: Another model, which is set beside it.

    Returns:
        The exit code.

    Raises:
        Exception: What the program failed with; the session waits to be resumed.
    """
    # Textual and all that is painted: what is refused before needs neither
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
        begin=_beginner({} if source else options, memory),
        memory=memory,
        folder=folder,
        overlays=overlays,
        beside=beside,
    )
    code = None
    try:
        with end_on_hangup(app):
            code = app.run()
        if app.failure is not None:
            raise app.failure
    finally:
        for model in app.models.open:
            model.close(properly=code == 0)
    return code if code is not None else app.return_code or 0


def _beginner(options: dict[str, Any], memory: int | None) -> Begin:
    """Begins the sessions of models that are opened on the screen; `options` are for the first alone."""

    def begin(choice: ModelChoice) -> OpenModel:
        from explorer.tui.models.opening import begin_session  # nothing of it before the first paint

        model = begin_session(choice, dict(options), memory)
        options.clear()
        return model

    return begin
