"""Opens a session for a chosen model: a file, a name, or a saved session.

A program that runs in a browser opens only files below one folder.
"""

from __future__ import annotations

import os
from typing import Any

from msgspec.structs import asdict, replace

from explorer.host import confinement
from explorer.process import saved_sessions
from explorer.process.saved_sessions import SavedSession
from explorer.session import headers
from explorer.tui.models.open_models import ModelChoice, OpenModel
from explorer.tui.models.resumable_session import ResumableSession


def is_served() -> bool:
    """Whether a browser uses this program."""
    return bool(os.environ.get(confinement.VARIABLE))


def check_source(source: str) -> None:
    """Reject a source that does not exist, or that a browser must not open.

    Raises:
        ExplorerError: The source is rejected.
    """
    path, _, name = source.rpartition(":")
    exists = os.path.exists(source) or (bool(name) and path.endswith(".py") and os.path.exists(path))
    confinement.check_model(source)
    if not exists:
        headers.check_source(source)


def begin_session(choice: ModelChoice, options: dict[str, Any], memory: int | None) -> OpenModel:
    """Begin a new session, or resume a saved one.

    Args:
        choice: Model or saved session.
        options: Options for opening the model if the choice has none.
        memory: Maximum bytes of the engine process, or None for the limit of the saved session or of the
            machine.

    Raises:
        ExplorerError: The model or the saved session does not exist.
    """
    if choice.kept:
        return _resume_session(choice.kept, memory)
    check_source(choice.source)
    if choice.opening is not None:
        options = asdict(choice.opening)
    session = ResumableSession(choice.source, options, memory)
    return OpenModel(choice.source, session.engine, session)


def _resume_session(folder: str, memory: int | None) -> OpenModel:
    """Resume a saved session. Relative paths from another folder are made absolute."""
    store, saved = saved_sessions.take_over(folder, os.environ)
    try:
        saved = _expand_paths(saved)
        check_source(saved.source)
    except BaseException:
        store.release()
        raise
    resumed = (store, saved)
    session = ResumableSession(saved.source, asdict(saved.opening), memory or saved.memory, resumed)
    return OpenModel(saved.source, session.engine, session, saved.view)


def _expand_paths(saved: SavedSession) -> SavedSession:
    def expand_path(path: str | None) -> str | None:
        full_path = None if path is None else os.path.join(saved.cwd, path)
        return full_path if full_path is not None and os.path.exists(full_path) else path

    if os.path.realpath(saved.cwd) == os.path.realpath(os.getcwd()):
        return saved
    paths = ("weights", "weights_file", "rules")
    opening = replace(saved.opening, **{name: expand_path(getattr(saved.opening, name)) for name in paths})
    return replace(saved, source=expand_path(saved.source) or saved.source, opening=opening)
