"""The Model tab and the header: the whole model in figures, and what was assumed to get them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from explorer.base import units
from explorer.tui.tabs.layer import tensor_lines, value_text
from explorer.tui.text.lines import (
    BLANK,
    Line,
    Span,
    bytes_figure,
    count_figure,
    field,
    fit,
    head,
    line_width,
    safe,
    signed,
    wrap,
)
from explorer.tui.text.lines import middle as cut_middle

if TYPE_CHECKING:
    from explorer.facts import History, Info, Tiled, Totals

__all__ = ["header_lines", "model_page", "short_name", "sizes_of"]


_MOST_LEFT = 50
"""Kinds of operators left beside the tiles that are listed."""


def short_name(source: str) -> str:
    """What a model is called in the header: the file's name without its folder."""
    return safe(source.rstrip("/").rsplit("/", 1)[-1]) or safe(source)


def header_lines(name: str, info: Info | None, note: str, exact: bool, width: int) -> tuple[Line, Line]:
    """Two lines: what is open, and its totals."""
    title: list[Span] = [(" ", "text")]
    if info is None:
        return ((*title, (cut_middle(name, width - 16), "strong"), ("  " + note, "dim")), BLANK)
    about = [info.model.format] + ([f"opset {info.model.opset}"] if info.model.opset else [])
    about += [f"{name}={'?' if size is None else size}" for name, size in sizes_of(info).items()]
    right = note
    room = width - len(right) - 4
    title.append((cut_middle(name, max(12, room - 12)), "strong"))
    title.append((fit("  " + safe(" · ".join(about)), max(0, room - line_width(title))), "dim"))
    gap = max(1, width - line_width(title) - len(right) - 1)
    title += [(" " * gap, "text"), (right, "accent")]
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
        ("known", units.reached_text(covered), "number" if covered >= 1 else "warn"),
    ]
    if covered < 1:  # what qualifies the figures must not be what a narrow terminal cuts off
        items.insert(1, items.pop())
    spans: list[Span] = [(" ", "text")]
    gap = "   " if sum(len(a) + len(b) + 1 for a, b, _ in items) + 13 < width else "  "
    for i, (label, value, role) in enumerate(items):
        item = ((label + " ", "dim"), (value, role))
        if i and line_width((*spans, *item)) + len(gap) > width:
            break
        spans += [(gap if i else "", "text"), *item]
    return tuple(spans)


def model_page(
    info: Info,
    history: History | None,
    width: int,
    exact: bool,
    more: Callable[[int], list[Line]] | None = None,
) -> list[Line]:
    """Totals, inputs and outputs, assumptions, the peak's tensors, and the session's history.

    `more` is a part that was computed on demand; it stands behind the totals.
    """
    width = width - 1
    model, totals = info.model, info.totals
    lines: list[Line] = []
    lines.extend(wrap(((" ", "text"), (safe(model.source), "strong")), width, 1))
    about = [model.format] + ([f"opset {model.opset}"] if model.opset else [])
    about += [f"{units.bytes_text(model.file_bytes)} on disk"] if model.file_bytes is not None else []
    about += [safe(model.producer)] if model.producer else []
    lines.extend(wrap(((" ", "text"), (" · ".join(about), "accent")), width, 1))
    lines.append(BLANK)
    counts = (
        ("MACs", totals.macs),
        ("FLOPs", totals.flops),
        ("elementwise", totals.elementwise_ops),
        ("params", totals.params),
        ("trainable", totals.trainable_params),
    )
    sizes = (
        ("weights", totals.weight_bytes),
        ("activ. peak", totals.activation_bytes_peak),
        ("activ. sum", totals.activation_bytes_sum),
        ("reads", totals.bytes_read),
        ("writes", totals.bytes_written),
    )
    whole = ("params", "trainable", "weights")
    for label, value in counts:
        if label != "trainable" or value is not None:
            said = signed("" if label in whole else totals.sign, count_figure(value, exact), value)
            lines.extend(_figure(label, said, value, width))
        if label == "MACs" and info.tiled is not None:
            lines.extend(field("", _tiled_share(info.tiled), width))
    for label, value in sizes:
        said = signed("" if label in whole else totals.sign, bytes_figure(value, exact), value)
        lines.extend(_figure(label, said, value, width))
        if label == "reads" and totals.weight_bytes_read is not None and value is not None:
            weights = bytes_figure(totals.weight_bytes_read, exact)
            others = bytes_figure(value - totals.weight_bytes_read, exact)
            lines.extend(field("", ((f"{weights} weights, {others} activations", "dim"),), width))
    if totals.kv_cache_bytes is not None:
        said = bytes_figure(totals.kv_cache_bytes, exact)
        lines.extend(_figure("KV cache", said, totals.kv_cache_bytes, width))
    if totals.activation_bytes_functional:
        said = bytes_figure(totals.activation_bytes_functional, exact)
        lines.extend(
            field(
                " functional", ((said, "number"), (" of functional operators, not in the sum", "dim")), width
            )
        )
    lines.extend(field(" operators", ((f"{totals.nodes:,}", "number"),), width))
    known: Span = (units.reached_text(totals.coverage), "number" if totals.coverage >= 1 else "warn")
    lines.extend(field(" coverage", (known, (_COVERED[totals.status], "dim")), width))
    if info.tiled is not None and info.tiled.left:
        lines += [BLANK, *_beside_tiles(info.tiled, width)]
    if more is not None:
        lines += [BLANK, *more(width)]
    for title, tensors in (("Inputs", model.inputs), ("Outputs", model.outputs)):
        if tensors:
            lines += [BLANK, head(f" {title}"), *tensor_lines(tensors, width)]
    if open_ := [safe(name) for name, size in sizes_of(info).items() if size is None]:
        said = "not bound; press D, or start with " + " ".join(f"--dim {name}=1" for name in open_)
        lines += [BLANK, *wrap(((f" {', '.join(open_)} ", "text"), (said, "warn")), width, 1)]
    if info.assumptions or model.notes:
        lines += [BLANK, head(" Assumptions"), *_assumptions(info, width)]
    if totals.peak_tensors:
        lines += [BLANK, head(" Alive at the peak")]
        lines.extend(field(" at", ((safe(totals.peak_at) or "?", "text"),), width))
        lines.extend(tensor_lines(totals.peak_tensors, width))
    if model.sha256:
        lines += [BLANK, *wrap(((" sha256 ", "dim"), (model.sha256, "dim")), width, 8)]
    if history is not None and len(history.entries) > 1:
        lines += [BLANK, head(" History")]
        for i, entry in enumerate(history.entries):
            mark = "●" if i == history.current else "○"
            saved = f"  saved as {safe(entry.saved)}" if entry.saved else ""
            role = "text" if i <= history.current else "dim"
            lines.extend(wrap(((f" {mark} ", "accent"), (safe(entry.label), role), (saved, "dim")), width, 3))
    return lines


_COVERED = {
    "exact": " of them have a known cost",
    "bound": " of them are counted, some at an upper bound",
    "assumed": " of them are counted, some under an assumption",
    "unknown": " of them have a known cost",
}
"""What the coverage says, by the status of the totals."""


def _tiled_share(tiled: Tiled) -> tuple[Span, ...]:
    """Which share of the MACs tile products do."""
    role = "good" if tiled.share == 1 else "warn" if tiled.share is None else "number"
    products = f" on tiles, {units.exact_text(tiled.products)} products"
    sizes = f" for {units.dims_text(tiled.dims)}" if tiled.dims else ""
    return (units.reached_text(tiled.share), role), (products, "dim"), (sizes, "warn")


def _beside_tiles(tiled: Tiled, width: int) -> list[Line]:
    """What multiplies and accumulates beside the tiles, and why."""
    lines = [head(" Not on tiles")]
    for row in tiled.left[:_MOST_LEFT]:
        part = units.percent_text(row.macs, tiled.macs_total)
        what = f"{row.count:,} × {safe(row.op)}" if row.count > 1 else f"{safe(row.op)} {safe(row.name)}"
        spans = ((f" {fit(part, 8, right=True)} ", "warn"), (what, "text"), (f"  {safe(row.reason)}", "dim"))
        lines += wrap(spans, width, 10)
    if len(tiled.left) > _MOST_LEFT:
        lines.append(((f" {_MOST_LEFT} of {len(tiled.left):,} kinds shown", "dim"),))
    return lines


def _figure(label: str, said: str, value: int | None, width: int) -> list[Line]:
    doubted = value is None or said.startswith(("≥", "≤", "≈"))
    return field(" " + label, ((said, "warn" if doubted else "number"),), width)


def _assumptions(info: Info, width: int) -> list[Line]:
    lines: list[Line] = []
    for key, value in info.assumptions.items():
        if isinstance(value, Mapping):
            said = ", ".join(f"{safe(str(k))}={value_text(v)}" for k, v in value.items()) or "none"
        else:
            said = value_text(value)
        lines.extend(field(" " + safe(str(key)), ((said, "text"),), width, label_width=max(13, len(key) + 3)))
    for note in info.model.notes:
        lines.extend(wrap(((" ", "text"), (safe(note), "dim")), width, 1))
    return lines
