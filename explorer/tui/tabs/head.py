"""The heading of the right pane: a tab a word, as roomy as the pane allows."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.tui.tabs import TabKey
from explorer.tui.text.lines import Line, Span


def _tab_pieces(tabs: Sequence[TabKey], on_show: str, width: int) -> list[tuple[TabKey, str, str]]:
    """Every tab with its key and its word: the roomiest form that fits.

    The last resort names only the tab on show; the others are their keys.
    """
    keys, words = [f" {t.key} " for t in tabs], [t.title for t in tabs]
    short = [t.title if len(t.title) <= 5 else t.short for t in tabs]
    tight = [f" {t.key}" for t in tabs]
    forms = (
        (keys, [word + "  " for word in words]),
        (keys, words),
        (keys, [t.title if t.id == on_show else word for t, word in zip(tabs, short, strict=True)]),
        (keys, short),
        (tight, short),
        (keys, [t.title if t.id == on_show else "" for t in tabs]),
    )
    for marks, names in forms:
        if sum(map(len, marks)) + sum(map(len, names)) <= width:
            break
    return list(zip(tabs, marks, names, strict=True))


def tab_head(tabs: Sequence[TabKey], on_show: str, width: int, *, focused: bool) -> Line:
    """The tabs with their keys, the one on show lit."""
    spans: list[Span] = []
    for tab, mark, word in _tab_pieces(tabs, on_show, width):
        role = ("head" if focused else "strong") if tab.id == on_show else "dim"
        spans += [(mark, "key" if tab.id == on_show else "dim"), (word, role)]
    return tuple(spans)


def tab_at(tabs: Sequence[TabKey], on_show: str, x: int, width: int) -> str | None:
    """The tab whose heading lies in column `x`."""
    end = 0
    for tab, mark, word in _tab_pieces(tabs, on_show, width):
        end += len(mark) + len(word)
        if x < end:
            return tab.id
    return None
