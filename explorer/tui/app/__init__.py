"""Start of the screen application, and its end after a disconnect.

The engine process starts after the first paint. Started earlier, its imports would compete with the paint for
a core on a busy machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from explorer.tui.app.hangup import end_on_hangup
from explorer.tui.terminal.background import LateAnswer, ask_background
from explorer.tui.terminal.console import is_console

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
        remote: Whether to send fewer bytes to the terminal, as over SSH, even if no SSH is detected.
        memory: Maximum bytes of each engine process, and of all together; None for the machine's memory, and
            half of it.
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
    from explorer.process.screen_choices import keep_theme
    from explorer.tui.models.resumable_session import ResumableSession

    remote = remote or is_remote(os.environ)
    light, late_answer = _choose_theme(remote=remote)
    from explorer.tui.program import ExplorerApp

    options = dict(engine_options or {})
    first = ResumableSession(source, options, memory, resumed) if source else None
    app = ExplorerApp(
        source,
        first.engine if first is not None else None,
        remote=remote,
        keeper=first,
        view=resumed[1].view if resumed else None,
        begin=_session_factory({} if source else options, memory),
        memory=memory,
        folder=folder,
        overlays=overlays,
        beside=beside,
        light=bool(light),
        late_answer=late_answer,
        keep_theme=lambda light: keep_theme(light, os.environ),
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


def _choose_theme(*, remote: bool) -> tuple[bool | None, LateAnswer | None]:
    """Return whether the light theme is shown, and a filter for a late answer of the terminal, or None.

    The user's choice overrides the background color of the terminal. If neither is known, the first value is
    None.
    """
    from explorer.process.screen_choices import load_choices  # imported late, as in `run`

    light = load_choices(os.environ).light
    if light is not None or is_console(os.environ.get("TERM", "")):
        return light, None
    with ask_background(remote=remote) as question:
        if question is None:
            return None, None
        import_module("explorer.tui.program")  # takes longer than most terminals need to answer
        light = question.read()
        return light, None if question.is_answered else LateAnswer()


def _session_factory(options: dict[str, Any], memory: int | None) -> Begin:
    """Return a function that begins sessions. `options` apply only to the first session."""

    def begin(choice: ModelChoice) -> OpenModel:
        from explorer.tui.models.opening import begin_session  # imported after the first paint

        model = begin_session(choice, dict(options), memory)
        options.clear()
        return model

    return begin
