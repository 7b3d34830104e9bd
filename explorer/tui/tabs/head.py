"""The heading of the right pane: the key and the title of each tab, in the longest form that fits."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.tui.tabs import TabKey
from explorer.tui.text.lines import Line, Span


def _fit_titles(tabs: Sequence[TabKey], on_show: str, width: int) -> list[tuple[TabKey, str, str]]:
    """Return each tab with its key text and title text, in the longest form that fits in `width`.

    No form omits a title. The forms shorter than `1Layer 2Model 3Ops` cut the titles of hidden tabs.
    """
    keys, titles = [f" {t.key} " for t in tabs], [t.title for t in tabs]
    short = [t.title if len(t.title) <= 5 else t.short for t in tabs]
    tight = [f" {t.key}" for t in tabs]
    forms = (
        (keys, [word + "  " for word in titles]),
        (keys, titles),
        (keys, [t.title if t.id == on_show else word for t, word in zip(tabs, short, strict=True)]),
        (keys, short),
        (tight, short),
        *(
            (
                tight,
                [t.short if t.id == on_show else word[:letters] for t, word in zip(tabs, short, strict=True)],
            )
            for letters in (3, 2, 1)
        ),
    )
    for key_texts, names in forms:
        if sum(map(len, key_texts)) + sum(map(len, names)) <= width:
            break
    return list(zip(tabs, key_texts, names, strict=True))


def tab_head(tabs: Sequence[TabKey], on_show: str, width: int, *, focused: bool) -> Line:
    """Build the heading, with the visible tab highlighted."""
    spans: list[Span] = []
    for tab, key_text, title in _fit_titles(tabs, on_show, width):
        role = ("head" if focused else "strong") if tab.id == on_show else "dim"
        spans += [(key_text, "key" if tab.id == on_show else "dim"), (title, role)]
    return tuple(spans)


def tab_at(tabs: Sequence[TabKey], on_show: str, x: int, width: int) -> str | None:
    """Return the ID of the tab at column `x` of the heading, or None."""
    end = 0
    for tab, key_text, title in _fit_titles(tabs, on_show, width):
        end += len(key_text) + len(title)
        if x < end:
            return tab.id
    return None
