"""Application start: the engine's process, the theme, the terminal, and a line that drops.

The engine's process starts after the first paint: started before, so that its imports overlap Textual's, it
takes a core from the paint on a busy machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from explorer.process.saved_sessions import SavedSession, SessionStore


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
) -> int:
    """Open the screen on a model and stay until the user quits.

    Args:
        source: As for `session.Session`.
        engine_options: Its other arguments.
        remote: Save bytes as over SSH, even if it does not look like it.
        memory: Most bytes that the engine may take; None for as much as the machine has.
        resumed: The session to go on with.

    Returns:
        The exit code.
    """
    from explorer.tui.hangup import ResumableSession
    from explorer.tui.program import ExplorerApp

    resumable = ResumableSession(source, dict(engine_options or {}), memory, resumed)
    app = ExplorerApp(
        source,
        resumable.engine,
        remote=remote or is_remote(os.environ),
        keeper=resumable,
        view=resumed[1].view if resumed else None,
    )
    code = None
    try:
        with resumable.end_on_hangup(app):
            code = app.run()
    finally:
        resumable.close(properly=code == 0)
    return code if code is not None else app.return_code or 0
