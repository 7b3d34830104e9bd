"""The Memory tab: what is live at each step of the execution order, and what is to blame for the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.base import units
from explorer.report.present.look.memory_words import figures, live_blocks, step_blocks
from explorer.tui.tabs.tab import PlotTab
from explorer.tui.text.drawing import draw
from explorer.tui.text.lines import BLANK, Line, cut, fit, line_width
from explorer.tui.text.plot import column_values, columns_of, filled, framed, lines_of, part_names

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
            lambda at, width, height: memory_page(memory, at, width, height, exact, self._stacked()),
            len(memory.steps),
            memory.peak_step if fresh else view.cursor,
            lambda x, y, width, height: step_at(memory, (x, y), width, height, exact),
        )

    def _stacked(self) -> bool:
        """Whether the timeline stands on the weights; `+` turns it round."""
        return stacks(self.answer) != self.view.other

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


def memory_page(
    memory: Memory, at: int, width: int, height: int, exact: bool, stacked: bool | None = None
) -> list[Line]:
    """The figures, the timeline with its cursor at step `at`, and the tensors live there.

    `stacked` sets the timeline on the weights; by default where it can still be told.
    """
    width -= 1
    lines, rows = _above(memory, width, height, exact)
    if not memory.steps:
        return [*lines, BLANK, ((" Nothing runs in this model", "dim"),)]
    at = max(0, min(at, len(memory.steps) - 1))
    lines += _timeline(memory, at, width, rows, stacks(memory) if stacked is None else stacked)
    return [*lines, *draw([*step_blocks(memory, at), *live_blocks(memory, at)], width, exact)]


def step_at(memory: Memory, place: tuple[int, int], width: int, height: int, exact: bool) -> int | None:
    """The step whose column of the timeline is at a column and row of the page."""
    above, rows = _above(memory, width - 1, height, exact)
    across = _across(memory, width - 1)
    column, row = place[0] - (width - 2 - across), place[1] - len(above) - 1
    if not memory.steps or not 0 <= column < across or not 0 <= row < rows + 2:
        return None
    return min(len(memory.steps) - 1, (2 * column + 1) * len(memory.steps) // (2 * across))


def _above(memory: Memory, width: int, height: int, exact: bool) -> tuple[list[Line], int]:
    """What stands above the timeline, and the rows that it takes."""
    lines = draw(figures(memory), width, exact, beside=True)
    rows = max(3, min(12, (height - len(lines)) // 2 - 2))
    return lines + ([BLANK] if height > 18 else []), rows


def _timeline(memory: Memory, at: int, width: int, rows: int, stacked: bool) -> list[Line]:
    """What is live at each step, on top of the weights if they are stacked; the peak is named above it."""
    steps, under = len(memory.steps), memory.weight_bytes if stacked else 0
    whole = memory.peak_bytes + under or 1
    across = _across(memory, width)
    scale = width - across - 3
    top = fit(units.bytes_text(whole), scale, right=True)
    heights = column_values(tuple(step.live_bytes for step in memory.steps), across)
    roles = ["warn" if value == memory.peak_bytes else "bar" for value in heights]
    here = columns_of(at, steps, across)
    for x in here:
        roles[x] = "accent"
    picture = filled([value / whole for value in heights], rows, roles, under / whole)
    labels = {0: top, rows - 1: fit("0", scale, right=True)}
    weights = rows - 1 - round(rows * under / whole)
    if stacked and 0 < weights < rows - 1:
        labels[weights] = fit(units.bytes_text(under), scale, right=True)
    names = part_names([step.path for step in memory.steps], across)
    names = names or [(0, "0"), (across - len(f"{steps - 1:,}"), f"{steps - 1:,}")]
    mark = here[len(here) // 2]
    lines = framed(lines_of(picture), labels, names, mark=mark, begin=True)
    return [_peak_line(memory, scale + 2, across, stacked), *lines]


def _peak_line(memory: Memory, margin: int, across: int, stacked: bool) -> Line:
    """The peak above its column, and what is drawn."""
    columns = columns_of(memory.peak_step, len(memory.steps), across)
    more = "+ hides the weights" if stacked else "+ shows them on the weights"
    caption = f"peak {units.bytes_text(memory.peak_bytes)}"
    if stacked:
        caption += f", with the weights {units.bytes_text(memory.peak_bytes + memory.weight_bytes)}"
    x = columns[len(columns) // 2]
    text = f"▼ {caption}" if x + len(caption) + 2 <= across else f"{caption} ▼"
    start = x if text[0] == "▼" else max(0, x + 1 - len(text))
    line: Line = ((" " * (margin + start), "text"), (text, "warn"))
    room = margin + across - line_width(line)
    if memory.weight_bytes and room > len(more) + 2:
        line = (*line, (fit(more, room, right=True), "dim"))
    return cut(line, margin + across)


def _across(memory: Memory, width: int) -> int:
    """Cells of the timeline beside its scale."""
    scale = max(
        len(units.bytes_text(size)) for size in (memory.peak_bytes, memory.peak_bytes + memory.weight_bytes)
    )
    return max(4, width - scale - 3)


def stacks(memory: Memory) -> bool:
    """Whether what is live can still be told on top of the weights."""
    return 0 < memory.weight_bytes <= 4 * memory.peak_bytes
