"""States of a session: undo, redo, going to any of them, naming them, sizes that all take, edits by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from explorer.facts import History
from explorer.session.methods.facade import Facade
from explorer.session.parts import history as states
from explorer.session.parts.models import Cancel, OnProgress

if TYPE_CHECKING:
    pass


def history(session: Facade) -> History:
    """All states of the session, what each was made of, and which is current."""
    return session.parts.models.history


def undo(session: Facade) -> History:
    """One step back; at the original it stays there."""
    session.parts.models.history = states.step(session.parts.models.history, -1)
    return session.parts.models.history


def redo(session: Facade) -> History:
    """One step forward again, along the line that was walked last; at its end it stays there."""
    session.parts.models.history = states.step(session.parts.models.history, 1)
    return session.parts.models.history


def go(session: Facade, index: int) -> History:
    """To any state: it becomes the current one, and the others stay where they are.

    Raises:
        Misuse: The history has no such entry.
    """
    session.parts.models.history = states.go(session.parts.models.history, session.parts.models.at(index))
    return session.parts.models.history


def name(session: Facade, index: int, text: str) -> History:
    """Gives a state a name of the user's own; an empty one takes it away.

    Raises:
        Misuse: The history has no such entry.
    """
    at, words = session.parts.models.at(index), " ".join(text.split())[: states.LONGEST_NAME]
    session.parts.models.history = states.amend(session.parts.models.history, at, name=words)
    return session.parts.models.history


def restore(session: Facade, history: History) -> History:
    """Takes up the history of another session of the same source, whose process ended."""
    session.parts.models.restore(history)
    return history


def bind(
    session: Facade, dims: Mapping[str, int], *, on_progress: OnProgress = None, cancel: Cancel = None
) -> History:
    """Takes sizes for dimensions that the model leaves open, in place of those that it was opened with.

    Args:
        dims: Sizes by name; what is left out stays open.
        on_progress: Told where the analysis stands.
        cancel: Asked meanwhile; True stops, and all is as before.

    Raises:
        Misuse: There is no such dimension, the model cannot be of that size, or a state is of another.
    """
    session.parts.models.bind(dims, on_progress, cancel)
    return session.parts.models.history
