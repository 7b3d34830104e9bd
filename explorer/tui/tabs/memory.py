"""The Memory tab: what is live at each step of the execution order, and what is to blame for the peak."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from explorer.base import units
from explorer.facts import is_assumed
from explorer.report.text.costs import live_at
from explorer.tui.tabs.tab import PlotTab
from explorer.tui.text.lines import (
    BLANK,
    Line,
    Span,
    bytes_figure,
    doubt,
    ending,
    fit,
    flow,
    line_text,
    safe,
    told_apart,
    wrap,
)
from explorer.tui.text.plot import area, columns_of, framed

if TYPE_CHECKING:
    from explorer.facts.memory import Lifetime, Memory

__all__ = ["MemoryTab", "memory_page", "step_at", "step_of"]

_MOST = 200


class MemoryTab(PlotTab):
    """Memory over the steps of the model."""

    id = "memory"
    work = "following the tensors"

    def paint(self) -> None:
        """The timeline, with its cursor at the peak at first."""
        memory, exact, view = self.answer, self.store.exact, self.view
        if memory is None:
            self.show_wait()
            return
        fresh = view.count != len(memory.steps)
        view.show_plot(
            lambda at, width, height: memory_page(memory, at, width, height, exact),
            len(memory.steps),
            memory.peak_step if fresh else view.cursor,
            lambda x, y, width, height: step_at(memory, (x, y), width, height, exact),
        )

    def step_of(self, first: int, last: int) -> int | None:
        """The first step that runs one of the layers."""
        return step_of(self.answer, first, last)

    def chosen(self, at: int) -> int | None:
        """The layer that a step runs."""
        layer: int | None = self.answer.steps[at].layer if self.answer is not None else None
        return layer

    def to_peak(self) -> None:
        """Put the cursor at the peak."""
        if self.answer is not None:
            self.view.move_to(self.answer.peak_step)


def step_of(memory: Memory, first: int, last: int) -> int | None:
    """The first step that runs one of the layers `first` to `last`, None if none of them has a step."""
    return next(
        (i for i, s in enumerate(memory.steps) if s.layer is not None and first <= s.layer <= last), None
    )


def memory_page(memory: Memory, at: int, width: int, height: int, exact: bool) -> list[Line]:
    """The figures, the timeline with its cursor at step `at`, and the tensors live there."""
    width -= 1
    lines, rows = _above(memory, width, height, exact)
    if not memory.steps:
        return [*lines, BLANK, ((" Nothing runs in this model", "dim"),)]
    at = max(0, min(at, len(memory.steps) - 1))
    lines += _timeline(memory, at, width, rows)
    return [*lines, *_step(memory, at, width, exact)]


def step_at(memory: Memory, place: tuple[int, int], width: int, height: int, exact: bool) -> int | None:
    """The step whose column of the timeline is at a column and row of the page."""
    above, rows = _above(memory, width - 1, height, exact)
    across = _across(memory, width - 1)
    column, row = place[0] - (width - 2 - across), place[1] - len(above)
    if not memory.steps or not 0 <= column < across or not 0 <= row < rows + 2:
        return None
    return min(len(memory.steps) - 1, (2 * column + 1) * len(memory.steps) // (2 * across))


def _above(memory: Memory, width: int, height: int, exact: bool) -> tuple[list[Line], int]:
    """What stands above the timeline, and the rows that it takes."""
    lines = _figures(memory, width, exact)
    rows = max(3, min(12, (height - len(lines)) // 2 - 2))
    return lines + ([BLANK] if height > 18 else []), rows


def _figures(memory: Memory, width: int, exact: bool) -> list[Line]:
    least = {"unknown": "≥ ", "bound": "≈ " if is_assumed(memory.reason) else "≤ "}.get(memory.status, "")
    role = "warn" if least else "number"
    figures = (
        ("peak", memory.peak_bytes, least),
        ("arena", memory.arena_bytes, least),
        ("buffers", memory.sum_bytes, least),
        ("weights", memory.weight_bytes, ""),
    )
    pieces = []
    for label, value, sign in figures:
        pieces.append(((f"{label} ", "dim"), (sign + bytes_figure(value, exact), role if sign else "number")))
    lines = flow(pieces, width)
    if least:
        lines.extend(wrap(((f" {doubt(memory.status, memory.reason)}", "warn"),), width, 1))
    return lines


def _timeline(memory: Memory, at: int, width: int, rows: int) -> list[Line]:
    peak, steps = memory.peak_step, len(memory.steps)
    top = units.bytes_text(memory.peak_bytes)
    across = _across(memory, width)
    plot = area(
        [step.live_bytes for step in memory.steps],
        across,
        rows,
        lit=((peak, "warn"), (at, "accent")),
    )
    here = columns_of(at, steps, across)
    mark = here[len(here) // 2]
    last = f"{steps - 1:,}"
    # the cursor stands under the plot too, so that it is seen where nothing is live
    below = [(0, "0"), (across - 1, last)]
    below = [(x, word) for x, word in below if not abs(mark - x) < len(word)]
    lines = framed(plot, {0: top, rows - 1: fit("0", len(top), right=True)}, below)
    under = fit(line_text(lines[-1]), len(top) + 2 + across)
    at_mark = len(top) + 2 + mark
    lines[-1] = ((under[:at_mark], "dim"), ("▲", "accent"), (under[at_mark + 1 :], "dim"))
    return lines


def _across(memory: Memory, width: int) -> int:
    """Cells of the timeline beside its scale."""
    return max(4, width - len(units.bytes_text(memory.peak_bytes)) - 3)


def _step(memory: Memory, at: int, width: int, exact: bool) -> list[Line]:
    step, steps = memory.steps[at], len(memory.steps)
    name = safe(step.path) or ("the model's inputs" if not at else "(unnamed)")
    share = units.percent_text(step.live_bytes, memory.peak_bytes)
    live: list[Span] = [
        (bytes_figure(step.live_bytes, exact), "number"),
        (f" live, {share} of the peak", "dim"),
    ]
    if step.live_bytes == memory.peak_bytes:
        said = "this is the peak" if at == memory.peak_step else "as much as at the peak"
        live = [(bytes_figure(step.live_bytes, exact), "number"), (f" live: {said}", "warn")]
    lines = [
        *wrap(
            (
                (f" Step {at:,} of {steps - 1:,} ", "head"),
                (ending(name, max(8, width - 2)), "strong"),
                (f" {safe(step.kind)}" if step.kind else "", "dim"),
            ),
            width,
            1,
        ),
        *wrap(((" ", "text"), *live), width, 1),
    ]
    found = live_at(memory, at)
    if found:
        lines += _tensors(memory, found, width, exact)
    return lines


def _tensors(memory: Memory, found: Sequence[Lifetime], width: int, exact: bool) -> list[Line]:
    """A tensor a line; those that are live at the peak are its culprits, wherever the cursor is."""
    peak = memory.peak_step
    exact = exact and width >= 50
    figure = 15 if exact else 11
    span = max(6, *(len(_steps(x)) for x in found)) + 1
    shape = 18 if width >= 56 else 0
    name = max(8, width - figure - span - shape - 3)
    lines: list[Line] = [
        (
            (fit("   tensor", name + 3), "dim"),
            (fit("shape", shape), "dim"),
            (fit("bytes", figure, right=True), "dim"),
            (fit("steps", span, right=True), "dim"),
        )
    ]
    guilty = False
    shown = found[:_MOST]
    for life, called in zip(shown, told_apart([_name(memory, x) for x in shown], name - 1), strict=True):
        blamed = life.born <= peak <= life.dies
        guilty |= blamed
        lines.append(
            (
                (" ◆ " if blamed else "   ", "warn"),
                (fit(called, name), "text"),
                (fit(units.shape_text(life.tensor.shape), shape), "dim"),
                (fit(bytes_figure(life.bytes, exact), figure, right=True), "number"),
                (fit(_steps(life), span, right=True), "dim"),
            )
        )
    if len(found) > _MOST:
        lines.append(((f" {_MOST:,} of {len(found):,} shown", "dim"),))
    if guilty:
        lines.append(((fit(f" ◆ live at the peak, step {peak:,}", width), "dim"),))
    return lines


def _name(memory: Memory, life: Lifetime) -> str:
    made = memory.steps[life.born].path if life.born < len(memory.steps) else ""
    return safe(life.tensor.name or made) or "(unnamed)"


def _steps(life: Lifetime) -> str:
    return f"{life.born:,}" if life.born == life.dies else f"{life.born:,}–{life.dies:,}"
