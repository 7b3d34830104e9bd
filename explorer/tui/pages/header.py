"""The header of the screen: the open model and its totals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explorer.tui.text.drawing import draw_side_by_side
from explorer.tui.text.lines import BLANK, Line, Span, cut_middle, escape_name, fit, line_width

if TYPE_CHECKING:
    from explorer.facts import Info
    from explorer.report.blocks import Fields

_MACS = ("MAC: multiply-accumulate, 2 FLOPs", "MAC: multiply-accumulate", "1 MAC = 2 FLOPs")
"""Explanations of MACs, the longest first. The longest that fits is shown."""
_MIN_NAME_CELLS = 12
"""Minimum cells of the model's name."""


def shorten_source(source: str) -> str:
    """Return the file name of a model without its folder."""
    return escape_name(source.rstrip("/").rsplit("/", 1)[-1]) or escape_name(source)


def header_lines(name: str, info: Info | None, note: str, exact: bool, width: int) -> tuple[Line, Line]:
    """Draw two lines: the open model, and its totals."""
    title: list[Span] = [(" ", "text")]
    if info is None:
        return ((*title, (cut_middle(name, width - 16), "strong"), ("  " + note, "dim")), BLANK)
    presented = _import_presenter()
    descriptions = [info.model.format] + ([f"opset {info.model.opset}"] if info.model.opset else [])
    sizes = presented.list_dimension_sizes(info)
    descriptions += [f"{name}={'?' if size is None else size}" for name, size in sizes.items()]
    words = escape_name(" · ".join(descriptions))
    right, role = cut_middle(note, width - _MIN_NAME_CELLS - 4), "accent"
    if not note:
        used_cells = len(name) + len(words) + 6
        right, role = (
            next((candidate for candidate in _MACS if used_cells + len(candidate) <= width), ""),
            "dim",
        )
    room = width - len(right) - 4
    title.append((cut_middle(name, max(_MIN_NAME_CELLS, room - 12)), "strong"))
    title.append((fit("  " + words, max(0, room - line_width(title))), "dim"))
    gap = max(1, width - line_width(title) - len(right) - 1)
    title += [(" " * gap, "text"), (right, role)]
    return tuple(title), _draw_totals(presented.headline(info), exact, width)


def has_open_sizes(info: Info) -> bool:
    """Whether figures are missing because dimensions are not bound."""
    return None in _import_presenter().list_dimension_sizes(info).values()


def _import_presenter() -> Any:
    from explorer.report.present.look import info  # imported after the first paint

    return info


def _draw_totals(figures: Fields, exact: bool, width: int) -> Line:
    """Draw the totals side by side, with the largest gap that fits on one line."""
    lines = [draw_side_by_side(figures, width, exact, gap) for gap in (3, 2, 1)]
    return next((candidate for candidate in lines if len(candidate) == 1), lines[-1])[0]
