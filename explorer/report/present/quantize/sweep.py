"""Number formats beside each other, in text: `explorer sweep --quantize`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from explorer.base.units import printable
from explorer.facts.quantize import FormatRow, FormatSweep
from explorer.report.blocks import Block, Cell, Column, Line, Paragraph, Span, Table
from explorer.report.present.figures import count, plain, share, size
from explorer.report.present.quantize.quantize import decibels
from explorer.report.present.tiling.sweep import FRONT, told

_SCOPES = {"all": "all", "only": "only {}", "without": "all but {}", "mixed": "mixed, then {}"}


def format_sweep(fact: FormatSweep, written: str | None = None) -> list[Block]:
    """The answer of `explorer sweep --quantize`: a row a choice, the Pareto front marked, how one is taken.

    Args:
        fact: The choices.
        written: The file that the formats of a row were written to.
    """
    rows = fact.rows
    models = dict.fromkeys(row.model for row in rows)
    head = f"{len(rows):,} choices of number formats"
    blocks: list[Block] = [
        Line((Span(head, "strong"), Span(f"   of {', '.join(map(printable, models))}", "quiet"))),
        Line(),
        _table(rows, len(models) > 1),
        Line(),
    ]
    for one in fact.mixed:
        of = f"{printable(one.model)}: " if len(models) > 1 else ""
        number = next((f" (row {at})" for at, row in enumerate(rows, 1) if row.key == one.row), "")
        blocks.append(Paragraph(f"{of}{one.told}{number}", "good" if one.met else "warning"))
    blocks.append(Paragraph(_legend(fact), "quiet"))
    failed = Counter(row.error for row in rows if row.error).most_common(5)
    blocks += [Paragraph(f"{many:,} x {printable(why)}", "warning") for why, many in failed]
    blocks += [Paragraph(note, "warning") for note in fact.notes]
    blocks += [Line(), *_commands(fact, written)]
    return [*blocks, Line(), Line(tuple(told(fact)), 2)]


def _legend(fact: FormatSweep) -> str:
    seen = dict.fromkeys(row.calibration for row in fact.rows if row.calibration)
    ran = f" From {', '.join(map(printable, seen))}." if seen else ""
    return (
        f"{FRONT} Pareto front: no other choice has fewer weight bytes, fewer BitOPs or more SNR without"
        " being worse in another of them. SNR is that of the output that lost most, against the original's."
        f"{ran}"
    )


def _commands(fact: FormatSweep, written: str | None) -> Iterator[Block]:
    """What takes a row: that of the limits, or else one of the front."""
    keys = [one.row for one in fact.mixed if one.row]
    row = next((row for row in fact.rows if row.key in keys), None)
    row = row or next((row for row in fact.rows if row.pareto), None)
    number = next((at for at, other in enumerate(fact.rows, 1) if other is row), 0)
    if written is not None:
        yield Line((Span("formats written to ", "quiet"), Span(printable(written), "strong")), 2)
        taken = f"explorer quantize MODEL -o FILE --config {printable(written)}"
        yield Line((Span("they are taken by  ", "quiet"), Span(taken, "strong")), 2)
    elif row is not None and row.command:
        first = f"--take {number}:formats.toml writes its file, then  " if "--config" in row.command else ""
        yield Line((Span(f"row {number} is taken by  {first}", "quiet"), Span(row.command, "strong")), 2)


FormatColumn = tuple[Column, Callable[[int, FormatRow], Cell]]

_COLUMNS: tuple[FormatColumn, ...] = (
    (Column("row", "right", drop=7), lambda at, row: Span(str(at), "quiet")),
    (Column("model", shrink=True), lambda at, row: printable(row.model)),
    (Column("layers", shrink=True), lambda at, row: printable(_SCOPES[row.scope].format(row.layer))),
    (Column("format", shrink=True), lambda at, row: Span(printable(row.format), "strong")),
    (Column("changed", "right", drop=6), lambda at, row: plain(row.changed)),
    (
        Column("bits", "right", drop=4),
        lambda at, row: "" if row.weight_bits is None else f"{row.weight_bits:.2f}",
    ),
    (Column("weights", "right"), lambda at, row: size(row.weight_bytes)),
    (Column("BitOPs", "right", drop=2), lambda at, row: count(row.bitops)),
    (Column("SNR dB", "right"), lambda at, row: decibels(row.snr_db)),
    (
        Column("cosine", "right", drop=5),
        lambda at, row: "" if row.cosine is None else f"{row.cosine:.6f}",
    ),
    (Column("top-1", "right", drop=3), lambda at, row: share(row.top1, 1)),
    (Column(""), lambda at, row: Span(FRONT, "good") if row.pareto else ""),
)


def _table(rows: Sequence[FormatRow], several: bool) -> Table:
    needless = {"model": not several, "top-1": all(row.top1 is None for row in rows)}
    shown = [(column, cell) for column, cell in _COLUMNS if not needless.get(column.title, False)]
    lines = [[cell(at, row) for _, cell in shown] for at, row in enumerate(rows, 1)]
    return Table([column for column, _ in shown], lines)
