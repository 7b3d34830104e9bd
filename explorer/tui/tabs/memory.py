"""The Memory tab: what is live at each step of the execution order, and what is to blame for the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.base import units
from explorer.report.present.look.memory import figures, live_blocks, step_blocks
from explorer.tui.tabs.tab import PlotTab
from explorer.tui.text.drawing import draw
from explorer.tui.text.lines import BLANK, Line, fit, line_text
from explorer.tui.text.plot import area, columns_of, framed

if TYPE_CHECKING:
    from explorer.facts.memory import Memory


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

    def layer_at(self, at: int) -> int | None:
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
    return [*lines, *draw([*step_blocks(memory, at), *live_blocks(memory, at)], width, exact)]


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
    lines = draw(figures(memory), width, exact, beside=True)
    rows = max(3, min(12, (height - len(lines)) // 2 - 2))
    return lines + ([BLANK] if height > 18 else []), rows


def _timeline(memory: Memory, at: int, width: int, rows: int) -> list[Line]:
    peak, steps = memory.peak_step, len(memory.steps)
    top = units.bytes_text(memory.peak_bytes)
    across = _across(memory, width)
    plot = area(
        [step.live_bytes for step in memory.steps], across, rows, lit=((peak, "warn"), (at, "accent"))
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
