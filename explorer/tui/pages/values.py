"""The numbers inside tensors, on the Layer tab: weights as stored, activations as a run made them.

One or two tensors are told in full with a histogram; of more each has two lines, so that the children of
a group can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from explorer.base import units
from explorer.tui.text.lines import BLANK, Line, Span, fit, flow, head, middle, safe, wrap
from explorer.tui.text.plot import area, framed, spark

if TYPE_CHECKING:
    from explorer.facts.values import Activations, Histogram, TensorStats, Weights

__all__ = ["activation_lines", "number", "weight_lines"]

_FULL = 2
"""Tensors that are told in full."""
_ROWS = 4
"""Rows of a histogram."""


def number(value: float | None) -> str:
    """A value out of a tensor in four digits."""
    return "?" if value is None else f"{value:.4g}"


def weight_lines(weights: Weights, of: int, width: int, exact: bool, *, brief: bool = False) -> list[Line]:
    """Statistics of a layer's weights; `of` is how many tensors it has in all, `brief` two lines for each."""
    lines = _heading("Values of the weights", len(weights.tensors), of, "tensors")
    lines += _notes(weights.notes, width, "warn")
    lines += _stats(weights.tensors, width, exact, brief)
    shown = {stats.tensor.name for stats in weights.tensors}
    for said, groups in (("tied: one tensor", weights.tied), ("equal bytes", weights.duplicates)):
        for group in groups:
            if shown & set(group):
                names = ", ".join(safe(name) for name in group[:8])
                lines.extend(wrap(((f" {said}: ", "dim"), (names, "accent")), width, 3))
    return lines


def activation_lines(
    activations: Activations, of: int, width: int, exact: bool, *, brief: bool = False
) -> list[Line]:
    """What a layer put out in a run; `of` is how many layers lie in it, `brief` two lines for each tensor."""
    ran = len({stats.layer for stats in activations.tensors})
    lines = _heading("Values of the activations", ran, of, "layers")
    lines += _notes(activations.notes, width, "warn")
    lines += _stats(activations.tensors, width, exact, brief)
    lines += _notes(activations.inputs, width)
    for path, why in activations.skipped:
        lines.extend(wrap(((f" {safe(path)}: ", "text"), (safe(why), "warn")), width, 3))
    return lines


def _heading(title: str, shown: int, of: int, noun: str) -> list[Line]:
    lines: list[Line] = [head(f" {title}")]
    if 0 < shown < of:
        lines.append(((f" {shown:,} of {of:,} {noun}", "dim"),))
    return lines


def _notes(notes: Sequence[str], width: int, role: str = "dim") -> list[Line]:
    return [line for note in notes for line in wrap(((" ", "text"), (safe(note), role)), width, 1)]


def _stats(tensors: Sequence[TensorStats], width: int, exact: bool, brief: bool) -> list[Line]:
    if not tensors:
        return [((" no values", "dim"),)]
    one = _brief if brief or len(tensors) > _FULL else _full
    lines: list[Line] = []
    for i, stats in enumerate(tensors):
        lines += [BLANK] if i and one is _full else []
        lines += one(stats, width, exact)
    return lines


def _name(stats: TensorStats, width: int) -> Line:
    kind = f" {units.shape_text(stats.tensor.shape)}"
    if width >= 50:
        kind = f" {stats.tensor.dtype or '?'}{kind}"
    kind += f" call {stats.call + 1:,}" if stats.call else ""
    name = safe(stats.tensor.name or stats.layer) or "(unnamed)"
    return (
        (" " + middle(name, max(8, width - 2 - len(kind))), "strong"),
        (fit(kind, max(0, width - 9)).rstrip(), "dim"),
    )


def _full(stats: TensorStats, width: int, exact: bool) -> list[Line]:
    lines = [_name(stats, width)]
    lines += _pairs(
        (
            (("min", number(stats.minimum)), ("max", number(stats.maximum))),
            (("mean", number(stats.mean)), ("std", number(stats.std))),
            (("zeros", _share(stats.zeros, exact)), ("count", f"{stats.elements:,}")),
        ),
        width,
    )
    lines += _odd(stats, width)
    if stats.trainable is False:
        lines.append(((" frozen: no gradient", "dim"),))
    if stats.quantiles:
        pieces = [((f"{100 * q:g} % ", "dim"), (number(value), "number")) for q, value in stats.quantiles]
        about = "quantiles" if stats.quantiles_exact else "about"
        lines += flow([((about, "dim"),), *pieces], width)
    if stats.histogram is not None and any(stats.histogram.counts):
        lines += _histogram(stats.histogram, width)
    return lines


def _pairs(pairs: Sequence[Sequence[tuple[str, str]]], width: int) -> list[Line]:
    """Two figures a line, or one where a figure would be cut."""
    half = max(12, min(30, (width - 1) // 2))
    name = 10 if half > 18 else 7
    rows = list(pairs)
    if any(len(value) >= half - name for pair in pairs for _, value in pair):
        rows = [(figure,) for pair in pairs for figure in pair]
    lines: list[Line] = []
    for row in rows:
        spans: list[Span] = []
        for label, value in row:
            spans += [(fit(f" {label}", name), "dim"), (value.ljust(half - name), "number")]
        lines.append(tuple(spans))
    return lines


def _share(share: float | None, exact: bool) -> str:
    if share is None:
        return "?"
    return f"{100 * share:.6g} %" if exact else f"{100 * share:.1f} %"


def _odd(stats: TensorStats, width: int) -> list[Line]:
    odd = [f"{count:,} {name}" for name, count in (("NaN", stats.nan), ("Inf", stats.inf)) if count]
    return wrap(((f" {', '.join(odd)}: not in the figures", "bad"),), width, 1) if odd else []


def _histogram(histogram: Histogram, width: int) -> list[Line]:
    """Bars over the range of the values; the tallest is labelled with its count."""
    counts = histogram.counts
    top = units.count_text(max(counts))
    across = max(8, min(width - len(top) - 3, len(counts)))
    low, high = number(histogram.edges[0]), number(histogram.edges[-1])
    rows = area(counts, across, _ROWS)
    return framed(rows, {0: " " + top}, [(0, low), (across - 1, high)])


def _brief(stats: TensorStats, width: int, exact: bool) -> list[Line]:
    counts = stats.histogram.counts if stats.histogram is not None else ()
    pieces: list[Line] = []
    if drawn := spark(counts, max(0, min(32, width // 3))):
        pieces.append(((drawn, "bar"),))
    pieces.append(((f"{number(stats.mean)} ± {number(stats.std)}", "number"),))
    pieces.append(((f"{number(stats.minimum)} … {number(stats.maximum)}", "number"),))
    if stats.zeros:
        pieces.append(((f"{_share(stats.zeros, exact)} 0", "dim"),))
    return [_name(stats, width), *flow(pieces, width, 3), *_odd(stats, width)]
