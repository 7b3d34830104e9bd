"""The colours, chosen from the 256 that every terminal over SSH can show.

Each is an exact entry of the xterm palette, so a 256-colour terminal draws the same picture as a
true-colour one instead of a rounding of it. Not an ansi theme: with NO_COLOR one draws black on black.
"""

from __future__ import annotations

from textual.theme import Theme

__all__ = ["THEMES"]

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
    },
)

THEMES = (_DARK, _LIGHT)
