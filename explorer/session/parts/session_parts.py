"""Parts of a session, objects that answer what it is asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from explorer.session.parts.models import Models

_Part = TypeVar("_Part")


class SessionParts:
    """The models of a session, and what answers questions about them.

    Args:
        models: What was opened, and what was made of it.
    """

    def __init__(self, models: Models) -> None:
        self.models = models
        self._parts: dict[Any, Any] = {}
        self._opened_beside: tuple[Hashable, Models] | None = None

    def of(self, make: Callable[[Models], _Part]) -> _Part:
        """The one that `make`, a class, makes of the models: the same for as long as the session lasts."""
        if make not in self._parts:
            self._parts[make] = make(self.models)
        part: _Part = self._parts[make]
        return part

    def beside(self, after: int | None, source: str | None) -> tuple[Models, int]:
        """The second of two models: a state, or another model, which is opened as this one was."""
        models = self.models
        if source is None:
            return models, models.at(after)
        try:
            written = os.stat(source).st_mtime_ns
        except OSError:
            written = 0  # a name; or nothing, which its opening says
        key = source, written, tuple(models.options["dims"].items())
        if self._opened_beside is None or self._opened_beside[0] != key:
            self.forget_beside()
            self._opened_beside = key, models.beside(source)
        return self._opened_beside[1], 0

    def forget_beside(self) -> None:
        """Closes the other model."""
        if self._opened_beside is not None:
            self._opened_beside[1].close()
            self._opened_beside = None
