"""Opening: a session for what was chosen: a file, a name, one to resume; in a browser below one folder."""

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
    """Whether this program works for somebody at a browser."""
    return bool(os.environ.get(confinement.VARIABLE))


def check_source(source: str) -> None:
    """Refuses at once a path that leads nowhere, and what is not for a browser.

    Raises:
        ExplorerError: It is refused.
    """
    path, _, name = source.rpartition(":")
    there = os.path.exists(source) or (bool(name) and path.endswith(".py") and os.path.exists(path))
    confinement.check_model(source)
    if not there:
        headers.check(source)


def begin_session(choice: ModelChoice, options: dict[str, Any], memory: int | None) -> OpenModel:
    """A session of its own, begun or resumed.

    Args:
        choice: What was chosen.
        options: How it is opened where the choice does not say.
        memory: Most bytes that its engine may take.

    Raises:
        ExplorerError: There is no such model, or the session is gone.
    """
    if choice.kept:
        return _resumed(choice.kept, memory)
    check_source(choice.source)
    if choice.opening is not None:
        options = asdict(choice.opening)
    session = ResumableSession(choice.source, options, memory)
    return OpenModel(choice.source, session.engine, session)


def _resumed(folder: str, memory: int | None) -> OpenModel:
    """A session taken over; what was typed in another folder is named from the root."""
    store, saved = saved_sessions.take_over(folder, os.environ)
    try:
        saved = _from_here(saved)
        check_source(saved.source)
    except BaseException:
        store.release()
        raise
    taken = (store, saved)
    session = ResumableSession(saved.source, asdict(saved.opening), memory or saved.memory, taken)
    return OpenModel(saved.source, session.engine, session, saved.view)


def _from_here(saved: SavedSession) -> SavedSession:
    def whole(path: str | None) -> str | None:
        there = None if path is None else os.path.join(saved.cwd, path)
        return there if there is not None and os.path.exists(there) else path

    if os.path.realpath(saved.cwd) == os.path.realpath(os.getcwd()):
        return saved
    paths = ("weights", "weights_file", "rules")
    opening = replace(saved.opening, **{name: whole(getattr(saved.opening, name)) for name in paths})
    return replace(saved, source=whole(saved.source) or saved.source, opening=opening)
