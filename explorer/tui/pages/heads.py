"""The one-line parts around the panes, as lines: what each pane shows, what runs, what was done last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from explorer import units
from explorer.tui.lines import Line, Span, bar, fit, line_width, middle, safe

if TYPE_CHECKING:
    from explorer.facts import Progress
    from explorer.tui.treemodel import TreeModel

__all__ = ["done_line", "elapsed_text", "job_line", "tab_at", "tab_head", "tree_head"]

_COUNTABLE = 100_000
"""Beyond this a job counts bytes, of which a user wants the share."""


def tree_head(model: TreeModel, query: str, width: int, *, focused: bool) -> Line:
    """How many layers, which filter chose them, and the column on show."""
    title: list[Span] = [(" Layers", "head" if focused else "dim")]
    if model.matches is not None:
        title.append((f"  {len(model.matches):,}/{len(model.layers):,}", "accent"))
    elif model.layers:
        title.append((f"  {len(model.layers):,}", "dim"))
    column = f"{'▾ ' if model.by_cost else ''}{model.metric.title} "
    room = width - line_width(title) - len(column) - 3
    if query and model.matches is not None and room >= 5:
        title.append((f"  {middle(safe(query), room)}", "dim"))
    gap = max(1, width - line_width(title) - len(column))
    return (*title, (" " * gap, "text"), (column, "accent" if model.by_cost else "dim"))


def _tab_title(tab: str, width: int) -> str:
    """The word of a tab: short where four do not fit, with air where they do."""
    word = "Ops" if tab == "operators" and width < 39 else tab.capitalize()
    return word + "  " if width >= 48 else word


def tab_head(tabs: Sequence[str], on_show: str, width: int, *, focused: bool) -> Line:
    """The tabs with their keys, the one on show lit."""
    spans: list[Span] = []
    for i, tab in enumerate(tabs):
        role = ("head" if focused else "strong") if tab == on_show else "dim"
        spans += [(f" {i + 1} ", "key" if tab == on_show else "dim"), (_tab_title(tab, width), role)]
    return tuple(spans)


def tab_at(tabs: Sequence[str], x: int, width: int) -> str | None:
    """The tab whose heading lies in column `x`."""
    end = 0
    for tab in tabs:
        end += len(_tab_title(tab, width)) + 3
        if x < end:
            return tab
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
