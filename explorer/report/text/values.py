"""The numbers inside tensors, in text: `explorer weights` and `activations`."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.base.units import bytes_text, exact_text, seconds_text, shape_text
from explorer.facts import Info
from explorer.facts.values import Activations, Histogram, TensorStats, Weights
from explorer.report.layout import BAD, BAR, DIM, NOTE, STRONG, Cell, Column, Line, Prose, Span, Table
from explorer.report.text.model import CAP, Block, capped, title

__all__ = ["activations", "spark", "weights"]

_CELLS = 16
_LEVELS = " ▁▂▃▄▅▆▇█"


def weights(about: Info, fact: Weights) -> list[Block]:
    """The answer of `explorer weights`: every tensor's values, and what is stored twice."""
    blocks = [
        *title(about.model),
        *(Prose(note, NOTE) for note in fact.notes),
        Line(),
        *_tensors(fact.tensors, "tensors"),
    ]
    for label, groups, remark in (
        ("tied", fact.tied, "one stored tensor under several names"),
        ("duplicates", fact.duplicates, "different stored tensors with equal bytes"),
    ):
        if groups:
            rows = [(", ".join(group),) for group in groups]
            blocks += [
                Line(),
                Line((Span(label, STRONG), Span(f"   {remark}", DIM))),
                Table((Column("", shrink=True),), rows),
            ]
    return blocks


def activations(about: Info, fact: Activations) -> list[Block]:
    """The answer of `explorer activations`: inputs, every output's values, what could not be seen."""
    blocks = [
        *title(about.model),
        *(Prose(note, NOTE) for note in fact.notes),
        Line(),
        *(Prose(text, DIM) for text in fact.inputs),
        Line(),
        *_tensors(fact.tensors, "outputs"),
    ]
    if fact.skipped:
        rows = [(Span(layer, NOTE), reason) for layer, reason in fact.skipped[:CAP]]
        columns = (Column("not seen", shrink=True), Column(""))
        blocks += [Line(), *capped(len(rows), len(fact.skipped), "layers not seen"), Table(columns, rows)]
    if fact.output:
        blocks += [Line(), Line((Span("values written to  ", DIM), Span(fact.output, STRONG)))]
    return [*blocks, Line(), Line(Span(seconds_text(fact.seconds), DIM), 2)]


def _tensors(tensors: Sequence[TensorStats], what: str) -> list[Block]:
    """The table of tensors; a single one gets its quantiles and histogram in full."""
    rows = [_row(stats) for stats in tensors[:CAP]]
    columns = (
        Column("tensor", shrink=True),
        Column("layer", shrink=True, drop=7),
        Column("dtype", drop=6),
        Column("shape", drop=5),
        Column("bytes", "right", drop=8),
        Column("min", "right"),
        Column("max", "right"),
        Column("mean", "right"),
        Column("std", "right"),
        Column("zeros", "right", drop=2),
        Column("", style=BAR, drop=3),
        Column("", style=BAD, drop=1),
    )
    blocks = [*capped(len(rows), len(tensors), what), Table(columns, rows, 0)]
    return [*blocks, *_detail(tensors[0])] if len(tensors) == 1 else blocks


def _row(stats: TensorStats) -> tuple[Cell, ...]:
    name = stats.tensor.name + (f" (call {stats.call + 1})" if stats.call else "")
    wrong = [f"{count:,} {word}" for count, word in ((stats.nan, "NaN"), (stats.inf, "Inf")) if count]
    return (
        name,
        Span("" if stats.layer == stats.tensor.name else stats.layer, DIM),
        Span(stats.tensor.dtype or "?", DIM),
        shape_text(stats.tensor.shape),
        bytes_text(stats.bytes),
        *(_number(value) for value in (stats.minimum, stats.maximum, stats.mean, stats.std)),
        "" if stats.zeros is None else f"{100 * stats.zeros:.1f} %",
        spark(stats.histogram, _CELLS),
        ", ".join(wrong),
    )


def _number(value: float | None) -> Cell:
    return Span("-", DIM) if value is None else f"{value:.4g}"


def spark(histogram: Histogram | None, cells: int) -> str:
    """A histogram in one line of at most `cells` blocks; an interval with any value shows at least a step."""
    if histogram is None or not any(histogram.counts):
        return ""
    size = max(1, -(-len(histogram.counts) // cells))
    sums = [sum(histogram.counts[at : at + size]) for at in range(0, len(histogram.counts), size)]
    largest = max(sums)
    return "".join(_LEVELS[-(-8 * count // largest)] for count in sums)


def _detail(stats: TensorStats) -> list[Block]:
    blocks: list[Block] = []
    if stats.quantiles:
        exact = "" if stats.quantiles_exact else "   read off a fine histogram"
        rows = [(f"{100 * q:g} %", f"{value:.6g}") for q, value in stats.quantiles]
        blocks += [
            Line(),
            Line((Span("quantiles", STRONG), Span(exact, DIM))),
            Table((Column("", "right", style=DIM), Column("", "right")), rows),
        ]
    if stats.histogram is not None:
        edges, counts = stats.histogram.edges, stats.histogram.counts
        largest = max(counts, default=0)
        blocks += [
            Line(),
            Line((Span("histogram", STRONG), Span(f"   {exact_text(sum(counts))} finite values", DIM))),
            Table(
                (Column("", "right", style=DIM), Column("", "right"), Column("", style=BAR)),
                [
                    (f"{low:.4g}", exact_text(count), "█" * -(-40 * count // largest) if count else "")
                    for low, count in zip(edges, counts, strict=False)
                ],
            ),
        ]
    return blocks
