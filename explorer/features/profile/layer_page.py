"""Measured time on the page of a layer in the main screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.features.profile.profile_words import build_time_blocks
from explorer.tui.text.drawing import draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from explorer.tui.tabs.layer import LayerParts
    from explorer.tui.text.lines import Line


def layer_lines(page: LayerParts) -> list[Callable[[int], list[Line]]]:
    """Return the lines with the measured time of a layer; empty if the model was not profiled."""
    profile = page.store.profile
    if profile is None:
        return []
    return [lambda width: draw(build_time_blocks(profile, page.layer), width, page.store.exact)]
