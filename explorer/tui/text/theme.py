"""Colour theme, chosen from the 256 that every terminal over SSH can show; 16 where there are no more.

Each is an exact entry of the xterm palette, so a 256-colour terminal draws the same picture as a
true-colour one instead of a rounding of it. With 16 colours (the Linux console, TERM=screen) rounding would
leave a grey screen, and a cursor that cannot be seen: backgrounds there are of the first eight, because a
console has no others. Not an ansi theme: with NO_COLOR one draws black on black.
"""

from __future__ import annotations

from textual.theme import Theme

from explorer.base.families import FAMILIES


def _families(field: str) -> dict[str, str]:
    return {f"family-{one.name}": getattr(one, field) for one in FAMILIES.values()}


_DARK = Theme(
    name="explorer",
    primary="#5fafd7",
    secondary="#87afaf",
    accent="#5fafd7",
    warning="#d7af5f",
    error="#d75f5f",
    success="#87af5f",
    foreground="#d0d0d0",
    background="#121212",
    surface="#1c1c1c",
    panel="#262626",
    dark=True,
    variables={
        "muted": "#8a8a8a",
        "faint": "#444444",
        "strong": "#ffffff",
        "meter": "#5f87af",
        "row": "#262626",
        "row-focus": "#303030",
        "rule": "#303030",
        "heat1": "#00005f",
        "heat2": "#005f87",
        "heat3": "#5fafd7",
        "hot": "#121212",
        **_families("color"),
    },
)

_LIGHT = Theme(
    name="explorer-light",
    primary="#005f87",
    secondary="#5f8787",
    accent="#005f87",
    warning="#875f00",
    error="#af0000",
    success="#5f8700",
    foreground="#303030",
    background="#ffffff",
    surface="#eeeeee",
    panel="#e4e4e4",
    dark=False,
    variables={
        "muted": "#6c6c6c",
        "faint": "#bcbcbc",
        "strong": "#000000",
        "meter": "#5f87af",
        "row": "#eeeeee",
        "row-focus": "#dadada",
        "rule": "#d0d0d0",
        "heat1": "#d7d7ff",
        "heat2": "#87afd7",
        "heat3": "#005f87",
        "hot": "#ffffff",
        **_families("light"),
    },
)

# rich's table of the 16 colours, entry by entry
_BLACK, _RED, _GREEN, _BROWN, _BLUE, _CYAN, _GREY = (
    "#000000", "#aa0000", "#00aa00", "#aa5500", "#0000aa", "#00aaaa", "#aaaaaa",
)  # fmt: skip
_DARK_GREY, _YELLOW, _SKY, _WHITE = "#555555", "#ffff55", "#5555ff", "#ffffff"

_DARK_16 = Theme(
    name="explorer-16",
    primary=_CYAN,
    secondary=_CYAN,
    accent=_CYAN,
    warning=_YELLOW,
    error="#ff5555",
    success="#55ff55",
    foreground=_WHITE,
    background=_BLACK,
    surface=_BLACK,
    panel=_BLACK,
    dark=True,
    variables={
        "muted": _GREY,
        "faint": _DARK_GREY,
        "strong": _WHITE,
        "meter": _CYAN,
        "row": _DARK_GREY,
        "row-focus": _BLUE,
        "rule": _DARK_GREY,
        "heat1": _BLACK,
        "heat2": _BLUE,
        "heat3": _CYAN,
        "hot": _BLACK,
        **_families("few"),
    },
)

_LIGHT_16 = Theme(
    name="explorer-light-16",
    primary=_BLUE,
    secondary=_BLUE,
    accent=_BLUE,
    warning=_BROWN,
    error=_RED,
    success=_GREEN,
    foreground=_BLACK,
    background=_WHITE,
    surface=_WHITE,
    panel=_WHITE,
    dark=False,
    variables={
        "muted": _DARK_GREY,
        "faint": _GREY,
        "strong": _BLACK,
        "meter": _SKY,
        "row": _GREY,
        "row-focus": _CYAN,
        "rule": _GREY,
        "heat1": _GREY,
        "heat2": _CYAN,
        "heat3": _BLUE,
        "hot": _WHITE,
        **_families("few_light"),
    },
)

_PAIRS = {256: (_DARK, _LIGHT), 16: (_DARK_16, _LIGHT_16)}
ALL_THEMES = (_DARK, _LIGHT, _DARK_16, _LIGHT_16)


def pair(color_system: str | None) -> tuple[Theme, Theme]:
    """The dark theme and the light one for what a terminal can show, as rich calls it."""
    return _PAIRS[16 if color_system in ("standard", "windows") else 256]
