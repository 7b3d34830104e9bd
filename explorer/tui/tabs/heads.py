"""The one-line parts around the panes, as lines: what each pane shows, what runs, what was done last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from explorer.base import units
from explorer.tui.text.lines import Line, Span, bar, fit, line_width, middle, safe

if TYPE_CHECKING:
    from explorer.facts import Progress
    from explorer.tui.actions.commands import Tab
    from explorer.tui.tree.model import TreeModel

__all__ = ["done_line", "elapsed_text", "job_line", "tab_at", "tab_head", "tree_head"]

_COUNTABLE = 100_000
"""Beyond this a job counts bytes, of which a user wants the share."""


def tree_head(model: TreeModel, query: str, width: int, *, focused: bool, growing: bool = False) -> Line:
    """How many layers (`growing`: so far), which filter chose them, and the column on show."""
    title: list[Span] = [(" Layers", "head" if focused else "dim")]
    if model.matches is not None:
        of = f"{len(model.matches):,} of " if model.found > len(model.matches) else ""
        title.append((f"  {of}{model.found:,}/{model.count:,}{'+' if growing else ''}", "accent"))
    elif model.count:
        title.append((f"  {model.count:,}{'+' if growing else ''}", "dim"))
    column = f"{'▾ ' if model.by_cost else ''}{model.metric.title} "
    room = width - line_width(title) - len(column) - 3
    if query and model.matches is not None and room >= 5:
        title.append((f"  {middle(safe(query), room)}", "dim"))
    gap = max(1, width - line_width(title) - len(column))
    return (*title, (" " * gap, "text"), (column, "accent" if model.by_cost else "dim"))


def _tab_pieces(tabs: Sequence[Tab], on_show: str, width: int) -> list[tuple[Tab, str, str]]:
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


def tab_head(tabs: Sequence[Tab], on_show: str, width: int, *, focused: bool) -> Line:
    """The tabs with their keys, the one on show lit."""
    spans: list[Span] = []
    for tab, mark, word in _tab_pieces(tabs, on_show, width):
        role = ("head" if focused else "strong") if tab.id == on_show else "dim"
        spans += [(mark, "key" if tab.id == on_show else "dim"), (word, role)]
    return tuple(spans)


def tab_at(tabs: Sequence[Tab], on_show: str, x: int, width: int) -> str | None:
    """The tab whose heading lies in column `x`."""
    end = 0
    for tab, mark, word in _tab_pieces(tabs, on_show, width):
        end += len(mark) + len(word)
        if x < end:
            return tab.id
    return None


def elapsed_text(seconds: float) -> str:
    """A running time in whole seconds: a figure that is still growing needs no fraction."""
    whole = int(seconds)
    return f"{whole} s" if whole < 60 else units.seconds_text(whole)


def job_line(title: str, progress: Progress | None, seconds: float, width: int, *, refused: bool) -> Line:
    """What runs, how far it is, and how to stop it; `refused` says that another job was asked for."""
    spans: list[Span] = [(f" {title}", "accent")]
    if progress is not None:
        if progress.phase != title:
            spans.append((f" · {safe(progress.phase)}", "text"))
        if progress.total:
            share = progress.done / progress.total
            said = f"{progress.done:,}/{progress.total:,}" if progress.total <= _COUNTABLE else f"{share:.0%}"
            filled, track = bar(share, 10)
            spans += [("  ", "text"), filled, track, (f" {said}", "number")]
    tail: tuple[Span, ...] = ((elapsed_text(seconds), "dim"), ("  Esc stops ", "dim"))
    if refused:
        tail = (("one job at a time", "warn"), ("  Esc stops ", "dim"))
    gap = width - line_width(spans) - line_width(tail)
    if gap < 1:
        room = max(1, width - line_width(tail) - 1)
        spans, gap = [(fit("".join(piece for piece, _ in spans), room), "text")], 1
    return (*spans, (" " * gap, "text"), *tail)


def done_line(command: str, said: str, width: int) -> Line:
    """The command that would do again what was done last, or else a word about it."""
    if not command:
        return ((fit(f" {safe(said)}", width), "dim"),)
    hint = "  y copies "
    room = width - 4 - len(hint)
    return ((" $ ", "accent"), (fit(middle(safe(command), room), room), "text"), (hint, "dim"))
