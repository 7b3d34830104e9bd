"""Color themes: 256 colors, or 16 colors on simple terminals.

The colors are entries of the xterm palette, so 256-color and true-color terminals show the same colors.
With 16 colors (Linux console, TERM=screen), rounding would make most colors gray and the cursor invisible.
Those themes use only the first eight colors as backgrounds, because a console has no others. They are not
ANSI themes, which draw black on black with NO_COLOR.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from textual.theme import Theme

from explorer.base.families import FAMILIES

# the 16 colors of rich, in its order
_BLACK, _RED, _GREEN, _BLUE, _MAGENTA, _CYAN, _GRAY = (
    "#000000", "#aa0000", "#00aa00", "#0000aa", "#aa00aa", "#00aaaa", "#aaaaaa",
)  # fmt: skip
_DARK_GRAY, _YELLOW, _SKY, _WHITE = "#555555", "#ffff55", "#5555ff", "#ffffff"

_NAMES = "explorer", "explorer-light", "explorer-16", "explorer-light-16"
PLAIN_CURSOR = frozenset(_NAMES[2:])
"""Themes with one text color in the cursor's row: other colors are hard to read on its background."""
_FAMILIES = "color", "light", "few", "few_light"  # attributes of a family with its color in each theme
# fmt: off
_COLORS: Mapping[str, tuple[str, str, str, str]] = {
    "primary": ("#5fafd7", "#005f87", _CYAN, _BLUE),
    "secondary": ("#87afaf", "#5f8787", _CYAN, _BLUE),
    "accent": ("#5fafd7", "#005f87", _CYAN, _BLUE),
    # the fourth color is brown on a console, but a yellow on most terminals, which is invisible on white
    "warning": ("#d7af5f", "#875f00", _YELLOW, _MAGENTA),
    "error": ("#d75f5f", "#af0000", "#ff5555", _RED),
    "success": ("#87af5f", "#5f8700", "#55ff55", _GREEN),
    "foreground": ("#d0d0d0", "#303030", _WHITE, _BLACK),
    "background": ("#121212", "#ffffff", _BLACK, _WHITE),
    "surface": ("#1c1c1c", "#eeeeee", _BLACK, _WHITE),
    "panel": ("#262626", "#e4e4e4", _BLACK, _WHITE),
    "muted": ("#8a8a8a", "#6c6c6c", _GRAY, _DARK_GRAY),
    "faint": ("#444444", "#bcbcbc", _DARK_GRAY, _GRAY),
    "strong": ("#ffffff", "#000000", _WHITE, _BLACK),
    "meter": ("#5f87af", "#5f87af", _CYAN, _SKY),
    "row": ("#262626", "#eeeeee", _DARK_GRAY, _GRAY),
    "row-focus": ("#303030", "#dadada", _BLUE, _CYAN),
    "example": ("#8a8a8a", "#6c6c6c", _SKY, _DARK_GRAY),
    "rule": ("#303030", "#d0d0d0", _DARK_GRAY, _GRAY),
    "hot": ("#121212", "#ffffff", _BLACK, _WHITE),
}
"""Color of each role in each theme, in the order of `_NAMES`. The first ten roles are Textual's own."""
# fmt: on


def _build_theme(index: int) -> Theme:
    colors: dict[str, Any] = {role: theme_colors[index] for role, theme_colors in _COLORS.items()}
    families = {f"family-{family.name}": getattr(family, _FAMILIES[index]) for family in FAMILIES.values()}
    own_colors = {role: colors.pop(role) for role in list(colors)[10:]}
    return Theme(name=_NAMES[index], dark=index % 2 == 0, variables={**own_colors, **families}, **colors)


ALL_THEMES = tuple(map(_build_theme, range(len(_NAMES))))


def pair(color_system: str | None) -> tuple[Theme, Theme]:
    """Return the dark and the light theme for a color system, as named by rich."""
    dark = 2 if color_system in ("standard", "windows") else 0
    return ALL_THEMES[dark], ALL_THEMES[dark + 1]
