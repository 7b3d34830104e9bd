"""The header of the screen: what is open, and its totals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from explorer.base import units
from explorer.tui.text.lines import (
    BLANK,
    Line,
    Span,
    bytes_figure,
    count_figure,
    fit,
    line_width,
    middle,
    safe,
    signed,
)

if TYPE_CHECKING:
    from explorer.facts import Info, Totals

__all__ = ["header_lines", "short_name", "sizes_of"]

_MACS = "MAC: multiply-accumulate, 2 FLOPs"


def short_name(source: str) -> str:
    """What a model is called in the header: the file's name without its folder."""
    return safe(source.rstrip("/").rsplit("/", 1)[-1]) or safe(source)


def header_lines(name: str, info: Info | None, note: str, exact: bool, width: int) -> tuple[Line, Line]:
    """Two lines: what is open, and its totals."""
    title: list[Span] = [(" ", "text")]
    if info is None:
        return ((*title, (middle(name, width - 16), "strong"), ("  " + note, "dim")), BLANK)
    about = [info.model.format] + ([f"opset {info.model.opset}"] if info.model.opset else [])
    about += [f"{name}={'?' if size is None else size}" for name, size in sizes_of(info).items()]
    words = safe(" · ".join(about))
    right, role = note, "accent"
    if not note and len(name) + len(words) + len(_MACS) + 6 <= width:
        right, role = _MACS, "dim"
    room = width - len(right) - 4
    title.append((middle(name, max(12, room - 12)), "strong"))
    title.append((fit("  " + words, max(0, room - line_width(title))), "dim"))
    gap = max(1, width - line_width(title) - len(right) - 1)
    title += [(" " * gap, "text"), (right, role)]
    return tuple(title), _totals(info.totals, exact, width)


def _dims(info: Info) -> Mapping[str, object]:
    dims = info.assumptions.get("dims", {})
    return dims if isinstance(dims, Mapping) else {}


def sizes_of(info: Info) -> dict[str, int | None]:
    """Dimensions that have a name, and their sizes; None for what nobody bound: what needs it is unknown."""
    named = dict.fromkeys(d for t in info.model.inputs for d in t.shape or () if isinstance(d, str))
    bound = {str(name): size for name, size in _dims(info).items() if isinstance(size, int)}
    return {**named, **bound}


def _totals(totals: Totals, exact: bool, width: int) -> Line:
    covered = totals.coverage
    role = "warn" if totals.sign else "number"
    items = [
        ("MACs", signed(totals.sign, count_figure(totals.macs, exact), totals.macs), role),
        ("params", count_figure(totals.params, exact), "number"),
        ("weights", bytes_figure(totals.weight_bytes, exact), "number"),
        (
            "peak",
            signed(
                totals.sign, bytes_figure(totals.activation_bytes_peak, exact), totals.activation_bytes_peak
            ),
            role,
        ),
        ("coverage", units.reached_text(covered), "number" if covered >= 1 else "warn"),
    ]
    if covered < 1:  # what qualifies the figures must not be what a narrow terminal cuts off
        items.insert(1, items.pop())
    spans: list[Span] = [(" ", "text")]
    bare = sum(len(a) + len(b) + 1 for a, b, _ in items) + 1
    gap = next((" " * cells for cells in (3, 2, 1) if bare + cells * (len(items) - 1) <= width), "  ")
    for i, (label, value, role) in enumerate(items):
        item = ((label + " ", "dim"), (value, role))
        if i and line_width((*spans, *item)) + len(gap) > width:
            break
        spans += [(gap if i else "", "text"), *item]
    return tuple(spans)
