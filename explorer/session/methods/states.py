"""Methods of a session about its states: undo, redo, jumping, naming and binding sizes."""

from __future__ import annotations

from collections.abc import Mapping

from explorer.facts import History
from explorer.session.methods.facade import Facade
from explorer.session.parts import history as states
from explorer.session.parts.models import Cancel, OnProgress


def history(session: Facade) -> History:
    """Returns all states of the session, the parent of each, and the current state."""
    return session.parts.models.history


def undo(session: Facade) -> History:
    """Moves one step back. At the original it does nothing."""
    session.parts.models.history = states.step(session.parts.models.history, -1)
    return session.parts.models.history


def redo(session: Facade) -> History:
    """Moves one step forward along the line of the last moves. At its end it does nothing."""
    session.parts.models.history = states.step(session.parts.models.history, 1)
    return session.parts.models.history


def go(session: Facade, index: int) -> History:
    """Makes any state the current one. The other states stay.

    Raises:
        Misuse: The history has no such state.
    """
    session.parts.models.history = states.go(
        session.parts.models.history, session.parts.models.resolve_index(index)
    )
    return session.parts.models.history


def name(session: Facade, index: int, text: str) -> History:
    """Names a state. An empty text removes the name.

    Raises:
        Misuse: The history has no such state.
    """
    state, words = session.parts.models.resolve_index(index), " ".join(text.split())[: states.MAX_NAME_LENGTH]
    session.parts.models.history = states.amend(session.parts.models.history, state, name=words)
    return session.parts.models.history


def restore(session: Facade, history: History) -> History:
    """Restores the history of another session of the same source, whose process ended."""
    session.parts.models.restore(history)
    return history


def bind(
    session: Facade, dims: Mapping[str, int], *, on_progress: OnProgress = None, cancel: Cancel = None
) -> History:
    """Binds sizes to open dimensions. They replace the sizes with which the model was opened.

    Args:
        dims: Sizes by dimension name. Other dimensions stay open.
        on_progress: Callback with the progress of the analysis.
        cancel: Callback. If it returns True, the analysis stops and nothing changes.

    Raises:
        Misuse: The dimension does not exist, the model does not accept the size, or a state was made for
            another size.
    """
    session.parts.models.bind(dims, on_progress, cancel)
    return session.parts.models.history
