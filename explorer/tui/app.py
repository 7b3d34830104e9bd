"""The program around the screens: the engine's process, the theme, the terminal.

The engine's process starts after the first paint: started before, so that its imports overlap Textual's, it
takes a core from the paint on a busy machine (1.9 times a bare Textual app's then, 1.5 times so).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from explorer.worker import Engine

if TYPE_CHECKING:
    from explorer.tui.jobs import Door
    from explorer.tui.program import ExplorerApp

__all__ = ["is_remote", "make_app", "run"]


def is_remote(environment: Mapping[str, str]) -> bool:
    """Whether the terminal is at the other end of an SSH connection."""
    return any(environment.get(name) for name in ("SSH_CONNECTION", "SSH_TTY", "SSH_CLIENT"))


def run(source: str, engine_options: Mapping[str, Any] | None = None, *, remote: bool = False) -> int:
    """Open the screen on a model and stay until the user quits.

    Args:
        source: As for `session.Session`.
        engine_options: Its other arguments.
        remote: Save bytes as over SSH, even if it does not look like it.

    Returns:
        The exit code.
    """
    engine = Engine(source, **dict(engine_options or {}))
    try:
        return make_app(source, engine, remote=remote or is_remote(os.environ)).run() or 0
    finally:
        engine.close()


def make_app(source: str, engine: Door, *, opening: Any = None, remote: bool = False) -> ExplorerApp:
    """The program, not yet running; the tests give it an engine of their own."""
    from explorer.tui.program import ExplorerApp

    return ExplorerApp(source, engine, opening=opening, remote=remote)
