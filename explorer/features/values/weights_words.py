"""Text output of `explorer weights` and `explorer activations`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from explorer.base.units import exact_text, seconds_text, shape_text
from explorer.facts import Info
from explorer.facts.values import Activations, Histogram, StatisticsRow, TensorStats, Weights
from explorer.report.blocks import (
    Block,
    Cell,
    Column,
    Field,
    Fields,
    Line,
    Paragraph,
    Role,
    Rows,
    Span,
    Table,
    table_of,
)
from explorer.report.present.figures import size
from explorer.report.present.look.info import title
from explorer.settings.statistics import COUNTS

_SPARK_WIDTH = 16  # cells
_LEVELS = " ▁▂▃▄▅▆▇█"


def weights(info: Info, fact: Weights) -> list[Block]:
    """Build the output of `explorer weights`."""
    return [*title(info.model), *weights_blocks(fact)]


def weights_blocks(fact: Weights) -> list[Block]:
    """Build the statistics of every tensor, and lists of tied and duplicate tensors."""
    blocks: list[Block] = [
        *(Paragraph(note, "warning") for note in fact.notes),
        Line(),
        *(statistics(fact.statistics, "tensors") or _build_tensor_table(fact.tensors, "tensors")),
    ]
    for label, groups, remark in (
        ("tied", fact.tied, "one stored tensor under several names"),
        ("duplicates", fact.duplicates, "different stored tensors with equal bytes"),
    ):
        if groups:
            rows = [(", ".join(group),) for group in groups]
            blocks += [
                Line(),
                Line((Span(label, "strong"), Span(f"   {remark}", "quiet"))),
                Table((Column("", shrink=True),), rows),
            ]
    return blocks


def activations(info: Info, fact: Activations) -> list[Block]:
    """Build the output of `explorer activations`: inputs, statistics, layers without values."""
    return [*title(info.model), *activations_blocks(fact)]


def activations_blocks(fact: Activations) -> list[Block]:
    """Build the notes, the inputs, the statistics, and the layers without values."""
    blocks: list[Block] = [
        *(Paragraph(note, "warning") for note in fact.notes),
        Line(),
        *(Paragraph(text, "quiet") for text in fact.inputs),
        Line(),
        *(statistics(fact.statistics, "outputs") or _build_tensor_table(fact.tensors, "outputs")),
    ]
    blocks += build_unseen_table(fact)
    if fact.output:
        blocks += [Line(), Line((Span("values written to  ", "quiet"), Span(fact.output, "strong")))]
    return [*blocks, Line(), Line(Span(seconds_text(fact.seconds), "quiet"), 2)]


def build_unseen_table(fact: Activations) -> list[Block]:
    """Build a table of the layers without values, with the reasons."""
    columns = (Column("not seen", shrink=True), Column(""))
    rows = Rows(lambda skipped: (Span(skipped[0], "warning"), skipped[1]), fact.skipped)
    return [Line(), Table(columns, rows, what="layers not seen")] if fact.skipped else []


def figures(stats: TensorStats, *, brief: bool = False) -> list[Block]:
    """Build the figures of one tensor, with warnings; `brief` leaves out the less important figures."""
    nonfinite_text = _count_nonfinite(stats)
    pairs: list[tuple[str, Cell]] = [
        ("min", _format_number(stats.minimum)),
        ("max", _format_number(stats.maximum)),
        ("mean", _format_number(stats.mean)),
        ("std", _format_number(stats.std)),
    ]
    if stats.zeros or not brief:
        share = 100 * (stats.zeros or 0.0)
        zeros = Span("-") if stats.zeros is None else Span(f"{share:.1f} %", exact=f"{share:.6g} %")
        pairs.append(("zeros", zeros))
    if not brief:
        pairs.append(("count", exact_text(stats.elements)))
        quantile_role: Role = "" if stats.quantiles_exact else "warning"
        for index, (q, value) in enumerate(stats.quantiles):
            label = f"{'' if index else 'quantiles: '}{100 * q:g} %"
            pairs.append((label, Span(f"{'~ ' * bool(quantile_role)}{value:.4g}", quantile_role)))
    return [
        Fields([Field(label, figure) for label, figure in pairs]),
        *([Paragraph(f"{nonfinite_text}: not in the figures", "bad")] if nonfinite_text else []),
        *([Paragraph("frozen: no gradient", "quiet")] if stats.trainable is False and not brief else []),
    ]


def statistics(rows: Sequence[StatisticsRow], noun: str) -> list[Block]:
    """Build the table of the requested statistics; empty if none were requested."""
    if not rows:
        return []

    def column(label: str) -> tuple[Column, Callable[[StatisticsRow], Cell]]:
        return Column(label, "right"), lambda row: _format_statistic(label, row.values[label])

    has_index = any(row.index is not None for row in rows)
    table = table_of(
        rows,
        (
            (Column("tensor", shrink=True), lambda row: _name_with_call(row.tensor, row.call)),
            (Column("layer", shrink=True, drop=4), lambda row: _format_owner(row.layer, row.tensor)),
            (Column("operator", drop=3, role="quiet"), lambda row: row.operator),
            (Column("dtype", drop=2, role="quiet"), lambda row: row.dtype or "?"),
            (Column("shape", drop=1), lambda row: shape_text(row.shape)),
            *([(Column("index", "right"), lambda row: str(row.index))] if has_index else []),
            *map(column, rows[0].values),
        ),
        0,
        noun,
    )
    return [table]


def _name_with_call(name: str, call: int) -> str:
    return f"{name} (call {call + 1})" if call else name


def _format_owner(layer: str, tensor: str) -> Span:
    return Span("" if layer == tensor else layer, "quiet")


def _format_statistic(label: str, value: float | None) -> Cell:
    if value is not None and label in COUNTS:
        return exact_text(int(value))
    if value is not None and label == "zeros":
        return Span(f"{100 * value:.1f} %", exact=f"{100 * value:.6g} %")
    return _format_number(value) if value is None else Span(f"{value:.4g}", exact=f"{value:.9g}")


def tensor_line(stats: TensorStats) -> Line:
    """Describe a tensor by name, dtype and shape, and by the number of the call that computed it."""
    call = f" call {stats.call + 1:,}" if stats.call else ""
    type_text = f" {stats.tensor.dtype or '?'} {shape_text(stats.tensor.shape)}{call}"
    return Line((Span(stats.tensor.name or stats.layer or "(unnamed)", "strong"), Span(type_text, "quiet")))


def list_equal_tensors(fact: Weights) -> list[Block]:
    """List the groups of equal tensors that contain a tensor of `fact`."""
    names = {stats.tensor.name for stats in fact.tensors}
    return [
        Line((Span(f"{remark}: ", "quiet"), Span(", ".join(group[:8]), "formula")))
        for remark, groups in (("tied: one tensor", fact.tied), ("equal bytes", fact.duplicates))
        for group in groups
        if names & set(group)
    ]


def _count_nonfinite(stats: TensorStats) -> str:
    """Count the values that are NaN or Inf: '3 NaN, 1 Inf', or '' for none."""
    return ", ".join(f"{count:,} {word}" for count, word in ((stats.nan, "NaN"), (stats.inf, "Inf")) if count)


def _build_tensor_table(tensors: Sequence[TensorStats], noun: str) -> list[Block]:
    """Build the table of tensors; a single tensor also shows its quantiles and histogram."""
    table = table_of(
        tensors,
        (
            (Column("tensor", shrink=True), lambda stats: _name_with_call(stats.tensor.name, stats.call)),
            (
                Column("layer", shrink=True, drop=7),
                lambda stats: _format_owner(stats.layer, stats.tensor.name),
            ),
            (Column("dtype", drop=6), lambda stats: Span(stats.tensor.dtype or "?", "quiet")),
            (Column("shape", drop=5), lambda stats: shape_text(stats.tensor.shape)),
            (Column("bytes", "right", drop=8), lambda stats: size(stats.bytes)),
            (Column("min", "right"), lambda stats: _format_number(stats.minimum)),
            (Column("max", "right"), lambda stats: _format_number(stats.maximum)),
            (Column("mean", "right"), lambda stats: _format_number(stats.mean)),
            (Column("std", "right"), lambda stats: _format_number(stats.std)),
            (
                Column("zeros", "right", drop=2),
                lambda stats: "" if stats.zeros is None else f"{100 * stats.zeros:.1f} %",
            ),
            (Column("", role="bar", drop=3), lambda stats: spark(stats.histogram, _SPARK_WIDTH)),
            (Column("", role="bad", drop=1), _count_nonfinite),
        ),
        0,
        noun,
    )
    return [table, *_build_details(tensors[0])] if len(tensors) == 1 else [table]


def _format_number(value: float | None) -> Cell:
    return Span("-", "quiet") if value is None else f"{value:.4g}"


def spark(histogram: Histogram | None, cells: int) -> str:
    """Draw a histogram in one line of at most `cells` characters; only empty intervals are blank."""
    if histogram is None or cells < 1 or not any(histogram.counts):
        return ""
    size = max(1, -(-len(histogram.counts) // cells))
    sums = [sum(histogram.counts[start : start + size]) for start in range(0, len(histogram.counts), size)]
    largest = max(sums)
    return "".join(_LEVELS[-(-8 * count // largest)] for count in sums)


def _build_details(stats: TensorStats) -> list[Block]:
    blocks: list[Block] = []
    if stats.quantiles:
        exact = "" if stats.quantiles_exact else "   read off a fine histogram"
        rows = [(f"{100 * q:g} %", f"{value:.6g}") for q, value in stats.quantiles]
        blocks += [
            Line(),
            Line((Span("quantiles", "strong"), Span(exact, "quiet"))),
            Table((Column("", "right", role="quiet"), Column("", "right")), rows),
        ]
    if stats.histogram is not None:
        edges, counts = stats.histogram.edges, stats.histogram.counts
        largest = max(counts, default=0)
        blocks += [
            Line(),
            Line((Span("histogram", "strong"), Span(f"   {exact_text(sum(counts))} finite values", "quiet"))),
            Table(
                (Column("", "right", role="quiet"), Column("", "right"), Column("", role="bar")),
                [
                    (f"{low:.4g}", exact_text(count), "█" * -(-40 * count // largest) if count else "")
                    for low, count in zip(edges, counts, strict=False)
                ],
            ),
        ]
    return blocks
