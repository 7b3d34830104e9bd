"""Jump history: the layers that the user visited, for going back and forward as in a browser."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from explorer.facts import Layer

_MAX_JUMPS = 100
"""Maximum number of layers in each direction."""


class Jumps:
    """Visited layers by path, because layer IDs differ between states of the model.

    Attributes:
        stepping: Lock of a step back or forward that waits for the engine, so that the next step starts from
            the layer to which it leads.
    """

    def __init__(self) -> None:
        self.stepping = asyncio.Lock()
        self._back: list[str] = []
        self._forward: list[str] = []

    def leave(self, layer: Layer | None) -> None:
        """Record the layer that the user jumps away from."""
        if layer is not None and self._back[-1:] != [layer.path]:
            self._back = [*self._back[1 - _MAX_JUMPS :], layer.path]
        self._forward.clear()

    def step(self, current_layer: Layer | None, forward: bool) -> str | None:
        """Return the path of the layer to go to, back or forward, or None."""
        source, target = (self._forward, self._back) if forward else (self._back, self._forward)
        while source:
            path = source.pop()
            if current_layer is None or path != current_layer.path:
                if current_layer is not None:
                    target.append(current_layer.path)
                return path
        return None
