"""Jumps: where the user was before each, to come back and to go forward again, as in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from explorer.facts import Layer

_MOST = 100
"""Places that are kept each way."""


class Jumps:
    """Places by the path of their layer: another state of the model has other ids."""

    def __init__(self) -> None:
        self._back: list[str] = []
        self._forward: list[str] = []

    def leave(self, layer: Layer | None) -> None:
        """The user jumps away from a layer."""
        if layer is not None and self._back[-1:] != [layer.path]:
            self._back = [*self._back[1 - _MOST :], layer.path]
        self._forward.clear()

    def step(self, here: Layer | None, forward: bool) -> str | None:
        """The place to go to, back or forward; None if there is none."""
        source, target = (self._forward, self._back) if forward else (self._back, self._forward)
        while source:
            path = source.pop()
            if here is None or path != here.path:
                if here is not None:
                    target.append(here.path)
                return path
        return None
