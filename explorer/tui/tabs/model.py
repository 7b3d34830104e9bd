"""The Model tab: the whole model in figures, and what was assumed to get them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from explorer.base import units
from explorer.tui.pages.header import sizes_of
from explorer.tui.pages.outline import header_page
from explorer.tui.pages.tensors import tensor_lines, value_text
from explorer.tui.pages.training import model_training_lines
from explorer.tui.tabs.tab import Tab
from explorer.tui.text.lines import (
    BLANK,
    Line,
    Span,
    bytes_figure,
    count_figure,
    field,
    fit,
    head,
    safe,
    signed,
    wrap,
)
from explorer.tui.widgets.line_view import LineView

if TYPE_CHECKING:
    from explorer.facts import History, Info, ModelInfo, Tiled, Totals


_MOST_LEFT = 50
"""Kinds of operators left beside the tiles that are listed."""


class ModelTab(Tab[LineView]):
    """The whole model in figures."""

    def paint_outline(self) -> None:
        """What the header says."""
        outlined = self.store.outline
        assert outlined is not None
        self.view.show(lambda width: header_page(outlined.header, width))

    def paint(self) -> None:
        """The totals, and what a training step costs if that was asked for."""
        store = self.store
        assert store.analysis is not None
        info, history, exact, training = (
            store.analysis.info,
            store.history,
            store.exact,
            store.on_demand.training,
        )
        more = None if training is None else partial(model_training_lines, training, exact=exact)
        self.view.show(
            lambda width: model_page(info, history, width, exact, more and (lambda room: more(width=room)))
        )


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
    lines = _about(model, width)
    lines += _counts(info, width, exact)
    lines += _bytes(totals, width, exact)
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
        lines += [BLANK, head(" Live at the peak")]
        lines.extend(field(" at", ((safe(totals.peak_at) or "?", "text"),), width))
        lines.extend(tensor_lines(totals.peak_tensors, width))
    if model.sha256:
        lines += [BLANK, *wrap(((" sha256 ", "dim"), (model.sha256, "dim")), width, 8)]
    if history is not None and len(history.entries) > 1:
        lines += [BLANK, head(" History"), *_states(history, width)]
    return lines


def _about(model: ModelInfo, width: int) -> list[Line]:
    lines = wrap(((" ", "text"), (safe(model.source), "strong")), width, 1)
    about = [model.format] + ([f"opset {model.opset}"] if model.opset else [])
    about += [f"{units.bytes_text(model.file_bytes)} on disk"] if model.file_bytes is not None else []
    about += [safe(model.producer)] if model.producer else []
    return [*lines, *wrap(((" ", "text"), (" · ".join(about), "accent")), width, 1), BLANK]


_STORED = ("params", "trainable", "weights")
"""Figures that are exact whatever is not known of the operators."""


def _counts(info: Info, width: int, exact: bool) -> list[Line]:
    totals = info.totals
    lines: list[Line] = []
    for label, value in (
        ("MACs", totals.macs),
        ("FLOPs", totals.flops),
        ("elementwise", totals.elementwise_ops),
        ("params", totals.params),
        ("trainable", totals.trainable_params),
    ):
        if label != "trainable" or value is not None:
            said = signed("" if label in _STORED else totals.sign, count_figure(value, exact), value)
            lines.extend(_figure(label, said, value, width))
        if label == "MACs" and info.tiled is not None:
            lines.extend(field("", _tiled_share(info.tiled), width))
    return lines


def _bytes(totals: Totals, width: int, exact: bool) -> list[Line]:
    lines: list[Line] = []
    for label, value in (
        ("weights", totals.weight_bytes),
        ("activ. peak", totals.activation_bytes_peak),
        ("activ. sum", totals.activation_bytes_sum),
        ("reads", totals.bytes_read),
        ("writes", totals.bytes_written),
    ):
        said = signed("" if label in _STORED else totals.sign, bytes_figure(value, exact), value)
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
        about = ((said, "number"), (" of functional operators, not in the sum", "dim"))
        lines.extend(field(" functional", about, width))
    return lines


def _states(history: History, width: int) -> list[Line]:
    lines: list[Line] = []
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
    """Which share of the MACs tile matmuls do."""
    role = "good" if tiled.share == 1 else "warn" if tiled.share is None else "number"
    products = f" on tiles, {units.exact_text(tiled.products)} tile matmuls"
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
