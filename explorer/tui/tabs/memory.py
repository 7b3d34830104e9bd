"""The Memory tab: live memory at each step of the execution order, and the tensors that cause the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.base import units
from explorer.report.present.look.memory_words import (
    NO_TIMELINE,
    build_live_blocks,
    figures,
    find_sign,
    is_unknown,
    step_blocks,
)
from explorer.tui.tabs.tab import PlotTab
from explorer.tui.text.drawing import SIGNS, draw
from explorer.tui.text.lines import BLANK, Line, cut_line, fit, line_width
from explorer.tui.text.plot import (
    build_lines,
    column_values,
    draw_axes,
    draw_columns,
    find_columns,
    part_names,
)

if TYPE_CHECKING:
    from explorer.facts.memory import Memory


class MemoryTab(PlotTab):
    """Plots live memory over the steps of the model."""

    id = "memory"
    work = "following the tensors"

    def paint(self) -> None:
        """Show the timeline. The cursor starts at the peak."""
        memory, exact, view = self.answer, self.store.exact, self.view
        if memory is None:
            self.show_wait()
            return
        is_new = view.count != len(memory.steps)
        view.show_plot(
            lambda step, width, height: draw_memory_page(
                memory, step, width, height, exact, self._is_stacked()
            ),
            len(memory.steps),
            memory.peak_step if is_new else view.cursor,
            lambda x, y, width, height: find_step_at(memory, (x, y), width, height, exact),
        )

    def _is_stacked(self) -> bool:
        """Whether the timeline is stacked on the weights. The `+` key inverts the default."""
        return is_stacked_by_default(self.answer) != self.view.other

    def step_of(self, first: int, last: int) -> int | None:
        """Return the first step that runs one of the layers, or None."""
        return find_step(self.answer, first, last)

    def layer_at(self, step: int) -> int | None:
        """Return the layer that a step runs, or None."""
        layer: int | None = self.answer.steps[step].layer if self.answer is not None else None
        return layer

    def move_to_peak(self) -> None:
        """Move the cursor to the peak."""
        if self.answer is not None:
            self.view.move_to(self.answer.peak_step)


def find_step(memory: Memory, first: int, last: int) -> int | None:
    """Return the first step that runs one of the layers `first` to `last`, or None."""
    layers = [step.layer for step in memory.steps]
    return next(
        (index for index, layer in enumerate(layers) if layer is not None and first <= layer <= last), None
    )


def draw_memory_page(
    memory: Memory, step_index: int, width: int, height: int, exact: bool, stacked: bool | None = None
) -> list[Line]:
    """Draw the figures, the timeline with its cursor at a step, and the tensors that are live there.

    `stacked` draws the timeline on top of the weights. None lets `is_stacked_by_default` decide.
    """
    width -= 1
    lines, rows = _draw_figures(memory, width, height, exact)
    if not memory.steps:
        return [*lines, BLANK, ((" Nothing runs in this model", "dim"),)]
    if is_unknown(memory):
        return [*lines, BLANK, ((f" {NO_TIMELINE}", "dim"),)]
    step_index = max(0, min(step_index, len(memory.steps) - 1))
    lines += _draw_timeline(
        memory, step_index, width, rows, is_stacked_by_default(memory) if stacked is None else stacked
    )
    return [
        *lines,
        *draw(
            [*step_blocks(memory, step_index, width - 1), *build_live_blocks(memory, step_index)],
            width,
            exact,
        ),
    ]


def find_step_at(memory: Memory, place: tuple[int, int], width: int, height: int, exact: bool) -> int | None:
    """Return the step at a `place` (column, row) of the page, or None outside the timeline."""
    lines, rows = _draw_figures(memory, width - 1, height, exact)
    plot_width = _compute_plot_width(memory, width - 1)
    column, row = place[0] - (width - 2 - plot_width), place[1] - len(lines) - 1
    if not memory.steps or is_unknown(memory) or not 0 <= column < plot_width or not 0 <= row < rows + 2:
        return None
    return min(len(memory.steps) - 1, (2 * column + 1) * len(memory.steps) // (2 * plot_width))


def _draw_figures(memory: Memory, width: int, height: int, exact: bool) -> tuple[list[Line], int]:
    """Return the lines above the timeline, and the height of the timeline in rows."""
    lines = draw(figures(memory), width, exact, beside=True)
    rows = max(3, min(12, (height - len(lines)) // 2 - 2))
    return lines + ([BLANK] if height > 18 else []), rows  # a low pane has no row to spare


def _draw_timeline(memory: Memory, step_index: int, width: int, rows: int, stacked: bool) -> list[Line]:
    """Draw the live memory of each step, on top of the weights if `stacked`. The peak is labeled."""
    steps, base = len(memory.steps), memory.weight_bytes if stacked else 0
    top_bytes = memory.peak_bytes + base or 1
    plot_width = _compute_plot_width(memory, width)
    scale = width - plot_width - 3
    top = fit(units.bytes_text(top_bytes), scale, right=True)
    heights = column_values(tuple(step.live_bytes for step in memory.steps), plot_width)
    roles = ["warn" if value == memory.peak_bytes else "bar" for value in heights]
    cursor_columns = find_columns(step_index, steps, plot_width)
    for x in cursor_columns:
        roles[x] = "accent"
    picture = draw_columns([value / top_bytes for value in heights], rows, roles, base / top_bytes)
    labels = {0: top, rows - 1: fit("0", scale, right=True)}
    weights_row = rows - 1 - round(rows * base / top_bytes)
    if stacked and 0 < weights_row < rows - 1:
        labels[weights_row] = fit(units.bytes_text(base), scale, right=True)
    axis_labels = part_names([step.path for step in memory.steps], plot_width)
    if not axis_labels:
        last_step = f"{steps - 1:,}"
        axis_labels = [(0, "0"), (plot_width - len(last_step), last_step)]
    mark = cursor_columns[len(cursor_columns) // 2]
    lines = draw_axes(build_lines(picture), labels, axis_labels, mark=mark, begin=True)
    return [_draw_peak_label(memory, scale + 2, plot_width, stacked), *lines]


def _draw_peak_label(memory: Memory, margin: int, plot_width: int, stacked: bool) -> Line:
    """Draw the label of the peak above its column, and the hint for the `+` key."""
    columns = find_columns(memory.peak_step, len(memory.steps), plot_width)
    hint = "+ hides the weights" if stacked else "+ adds them to the weights"
    sign = SIGNS.get(find_sign(memory), "")
    caption = f"peak {sign}{units.bytes_text(memory.peak_bytes)}"
    if stacked:
        with_weights = units.bytes_text(memory.peak_bytes + memory.weight_bytes)
        captions = (f"{caption}, with the weights {sign}{with_weights}", f"{caption} + weights", caption)
        caption = next((text for text in captions if len(text) + 2 <= plot_width), caption)
    x = columns[len(columns) // 2]
    text = f"▼ {caption}" if x + len(caption) + 2 <= plot_width else f"{caption} ▼"
    start = x if text[0] == "▼" else max(0, x + 1 - len(text))
    line: Line = ((" " * (margin + start), "text"), (text, "warn"))
    room = margin + plot_width - line_width(line)
    if memory.weight_bytes and room > len(hint) + 2:
        line = (*line, (fit(hint, room, right=True), "dim"))
    return cut_line(line, margin + plot_width)


def _compute_plot_width(memory: Memory, width: int) -> int:
    """Return the width of the timeline in cells, without its scale."""
    scale = max(
        len(units.bytes_text(size))
        for size in (memory.peak_bytes, memory.weight_bytes, memory.peak_bytes + memory.weight_bytes)
    )
    return max(4, width - scale - 3)


def is_stacked_by_default(memory: Memory) -> bool:
    """Whether the timeline is drawn on top of the weights: if they exist, and are not much larger."""
    return 0 < memory.weight_bytes <= 4 * memory.peak_bytes
