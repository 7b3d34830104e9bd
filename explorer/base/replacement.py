"""Replaces attributes of classes and modules while any thread needs the replacement."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class Replacement:
    """Attributes that are replaced in all threads while at least one of several blocks runs."""

    def __init__(self, list_attributes: Callable[[], Iterable[tuple[Any, str, Any]]]) -> None:
        """Takes a function that returns each owner, the name of its attribute and the new attribute.

        The function is called each time that the first of the blocks begins.
        """
        self._list_attributes = list_attributes
        self._lock = threading.Lock()
        self._blocks = 0
        self._originals: dict[tuple[Any, str], Any] = {}

    @contextmanager
    def replaced(self) -> Iterator[Mapping[tuple[Any, str], Any]]:
        """Replaces the attributes, and yields the originals by owner and name; None for inherited ones."""
        with self._lock:
            if not self._blocks:
                self._replace()
            self._blocks += 1
        try:
            yield self._originals
        finally:
            with self._lock:
                self._blocks -= 1
                if not self._blocks:
                    self._restore()

    def _replace(self) -> None:
        try:
            for owner, name, attribute in list(self._list_attributes()):
                original = vars(owner).get(name)
                setattr(owner, name, attribute)
                self._originals[owner, name] = original
        except BaseException:
            self._restore()
            raise

    def _restore(self) -> None:
        for (owner, name), original in self._originals.items():
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        self._originals.clear()
