"""Colour theme, chosen from the 256 that every terminal over SSH can show; 16 where there are no more.

Each is an exact entry of the xterm palette, so a 256-colour terminal draws the same picture as a
true-colour one instead of a rounding of it. With 16 colours (the Linux console, TERM=screen) rounding would
leave a grey screen, and a cursor that cannot be seen: backgrounds there are of the first eight, because a
console has no others. Not an ansi theme: with NO_COLOR one draws black on black.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from textual.theme import Theme

from explorer.base.families import FAMILIES

# rich's table of the 16 colours, entry by entry
_BLACK, _RED, _GREEN, _BROWN, _BLUE, _CYAN, _GREY = (
    "#000000", "#aa0000", "#00aa00", "#aa5500", "#0000aa", "#00aaaa", "#aaaaaa",
)  # fmt: skip
_DARK_GREY, _YELLOW, _SKY, _WHITE = "#555555", "#ffff55", "#5555ff", "#ffffff"

_NAMES = "explorer", "explorer-light", "explorer-16", "explorer-light-16"
_FAMILIES = "color", "light", "few", "few_light"
# fmt: off
_COLOURS: Mapping[str, tuple[str, str, str, str]] = {
    "primary": ("#5fafd7", "#005f87", _CYAN, _BLUE),
    "secondary": ("#87afaf", "#5f8787", _CYAN, _BLUE),
    "accent": ("#5fafd7", "#005f87", _CYAN, _BLUE),
    "warning": ("#d7af5f", "#875f00", _YELLOW, _BROWN),
    "error": ("#d75f5f", "#af0000", "#ff5555", _RED),
    "success": ("#87af5f", "#5f8700", "#55ff55", _GREEN),
    "foreground": ("#d0d0d0", "#303030", _WHITE, _BLACK),
    "background": ("#121212", "#ffffff", _BLACK, _WHITE),
    "surface": ("#1c1c1c", "#eeeeee", _BLACK, _WHITE),
    "panel": ("#262626", "#e4e4e4", _BLACK, _WHITE),
    "muted": ("#8a8a8a", "#6c6c6c", _GREY, _DARK_GREY),
    "faint": ("#444444", "#bcbcbc", _DARK_GREY, _GREY),
    "strong": ("#ffffff", "#000000", _WHITE, _BLACK),
    "meter": ("#5f87af", "#5f87af", _CYAN, _SKY),
    "row": ("#262626", "#eeeeee", _DARK_GREY, _GREY),
    "row-focus": ("#303030", "#dadada", _BLUE, _CYAN),
    "rule": ("#303030", "#d0d0d0", _DARK_GREY, _GREY),
    "heat1": ("#00005f", "#d7d7ff", _BLACK, _GREY),
    "heat2": ("#005f87", "#87afd7", _BLUE, _CYAN),
    "heat3": ("#5fafd7", "#005f87", _CYAN, _BLUE),
    "hot": ("#121212", "#ffffff", _BLACK, _WHITE),
}
"""By role that of each theme, in the order of `_NAMES`; the first ten are Textual's own."""
# fmt: on


def _theme(at: int) -> Theme:
    colours: dict[str, Any] = {role: several[at] for role, several in _COLOURS.items()}
    families = {f"family-{one.name}": getattr(one, _FAMILIES[at]) for one in FAMILIES.values()}
    own = {role: colours.pop(role) for role in list(colours)[10:]}
    return Theme(name=_NAMES[at], dark=at % 2 == 0, variables={**own, **families}, **colours)


ALL_THEMES = tuple(map(_theme, range(len(_NAMES))))


def pair(color_system: str | None) -> tuple[Theme, Theme]:
    """The dark theme and the light one for what a terminal can show, as rich calls it."""
    dark = 2 if color_system in ("standard", "windows") else 0
    return ALL_THEMES[dark], ALL_THEMES[dark + 1]
