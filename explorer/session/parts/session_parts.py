"""Parts of a session: the objects behind its methods."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from explorer.session.parts.models import Models

_Part = TypeVar("_Part")


class SessionParts:
    """The models of a session, and one object of each class that works on them.

    Args:
        models: Models of the session.
    """

    def __init__(self, models: Models) -> None:
        self.models = models
        self._parts: dict[Any, Any] = {}
        self._second_model: tuple[Hashable, Models] | None = None

    def get_part(self, make: Callable[[Models], _Part]) -> _Part:
        """Returns the session's only object of the class `make`. The first call creates it."""
        if make not in self._parts:
            self._parts[make] = make(self.models)
        part: _Part = self._parts[make]
        return part

    def find_second_model(self, after: int | None, source: str | None) -> tuple[Models, int]:
        """Finds the second model of a comparison: a state of this session, or the model `source`.

        The other model is opened with the options of this session, and stays open for the next comparison.

        Returns:
            The models that hold it, and its index in their history.
        """
        models = self.models
        if source is None:
            return models, models.resolve_index(after)
        try:
            modified_ns = os.stat(source).st_mtime_ns
        except OSError:
            modified_ns = 0  # a name, or a missing file, which opening it reports
        key = source, modified_ns, tuple(models.options["dims"].items())
        if self._second_model is None or self._second_model[0] != key:
            self.close_second_model()
            self._second_model = key, models.open_other(source)
        return self._second_model[1], 0

    def close_second_model(self) -> None:
        """Closes the model that `find_second_model` opened, if there is one."""
        if self._second_model is not None:
            self._second_model[1].close()
            self._second_model = None
