"""Text output of `explorer sweep`, and the model's matrix products as SCALE-Sim files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from explorer.base.units import edges_text, many_text, printable, sizes_text
from explorer.base.verdicts import VERDICTS, VerdictKind
from explorer.facts.comparison import FigureTable
from explorer.facts.sweep import OBJECTIVES, Sweep, SweepLayer, SweepRow
from explorer.report.blocks import Block, Cell, Column, Field, Fields, Line, Paragraph, Span, table_of
from explorer.report.present.compare.compared_figures import build_figure_blocks as build_figure_blocks
from explorer.report.present.compare.verify import TONES
from explorer.report.present.computed_rows import describe_computed_rows
from explorer.report.present.figures import count, plain, seconds, share, size, utilization
from explorer.report.terms import field_terms

FRONT = "◆"
"""Mark of a row on the Pareto front."""
_MAX_LINES = 1_000
"""Maximum number of lines for one product. A larger batch is one line with its count in the name."""


def sweep(fact: Sweep, figures: FigureTable | None = None) -> list[Block]:
    """Build the output of `explorer sweep`: a row for each tiling, with the Pareto front marked.

    Args:
        fact: Tilings of the sweep.
        figures: Table of the compared tilings, or None.
    """
    rows = fact.rows
    models = dict.fromkeys((row.model, row.opening) for row in rows)
    head = [Span(many_text(len(rows), "tiling"), "strong"), Span(f"   of {_format_models(models)}", "quiet")]
    machines = dict.fromkeys(row.hardware for row in rows if row.hardware)
    if len(machines) == 1:
        head.append(Span(f"   on {printable(next(iter(machines)))}", "quiet"))
    table = table_of(rows, select_columns(rows, len(models) > 1, len(machines) > 1))
    blocks: list[Block] = [Line(tuple(head)), Line(), table]
    blocks.append(Line())
    if not all(row.error for row in rows):
        blocks.append(Paragraph(_format_legend(rows), "quiet"))
    blocks += _describe_fitting(rows)
    if not machines:
        blocks.append(Paragraph("Without a machine there are no cycles: --machine npu.toml", "quiet"))
    blocks += [Paragraph(f"{count:,} x {printable(why)}", "warning") for why, count in _count_failures(rows)]
    blocks += [Paragraph(note, "warning") for note in fact.notes]
    comparison = [] if figures is None else [Line(), *build_figure_blocks(figures)]
    return [*blocks, *comparison, Line(), Line(tuple(describe_computed_rows(fact)), 2)]


def _format_models(models: Sequence[tuple[str, str]] | dict[tuple[str, str], None]) -> str:
    names = [" ".join(filter(None, (printable(name), printable(words)))) for name, words in models]
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2:,} more"


def _format_legend(rows: Sequence[SweepRow]) -> str:
    objectives = [name for name in OBJECTIVES if any(getattr(row, name) is not None for row in rows)]
    objectives_text = (
        f"{', '.join(objectives[:-1])} or {objectives[-1]}" if len(objectives) > 1 else "".join(objectives)
    )
    return (
        f"{FRONT} Pareto front: no other tiling has less {objectives_text} without having more of another."
        " Tile utilization is the share of the tiles' arithmetic that the matmuls need; padding the share of"
        " the bytes that fills tiles up."
    )


def _describe_fitting(rows: Sequence[SweepRow]) -> list[Block]:
    """State how many tilings fit the buffer, and which is best. Return nothing if no buffer is given."""
    rows_with_buffer = [row for row in rows if row.fits is not None]
    fitting = [row for row in rows_with_buffer if row.fits]
    if not rows_with_buffer:
        return []
    fitting_text = f"{len(fitting):,} of {len(rows_with_buffer):,} tilings fit the buffer"
    for objective in ("cycles", "traffic"):
        candidates = [row for row in fitting if getattr(row, objective) is not None]
        if candidates and len({(row.model, row.opening, row.hardware) for row in rows}) == 1:
            best = min(candidates, key=lambda row: getattr(row, objective))
            return [
                Paragraph(f"{fitting_text}; of them {tile_text(best)} has the least {objective}.", "quiet")
            ]
    return [Paragraph(f"{fitting_text}.", "quiet")]


def _count_failures(rows: Sequence[SweepRow]) -> list[tuple[str, int]]:
    """Return the five most frequent reasons why rows have no figures or no proof, each with its count."""
    reasons = [row.error or (field_terms(row.verdict) if row.verified is None else "") for row in rows]
    return Counter(filter(None, reasons)).most_common(5)


def tile_text(row: SweepRow) -> str:
    """Format the tile of a row: '64x64x64'."""
    return sizes_text(row.tile)


def _build_proof_cell(row: SweepRow) -> Cell:
    if row.verified is None:
        return Span("not run" if row.verdict else "", "warning")
    kind = row.verdict_kind or _VERDICT_KINDS[row.verified]
    return Span("equal" if kind == "equal" else VERDICTS[kind], TONES[kind])


SweepColumn = tuple[Column, Callable[[SweepRow], Cell]]
"""A column, and the function that builds its cell for a row."""

_TILING: tuple[SweepColumn, ...] = (
    (Column("tile"), lambda row: tile_text(row)),
    (Column("edges", drop=7), lambda row: Span(edges_text(row.edges), "quiet")),
    (Column("tile matmuls", "right", drop=1), lambda row: plain(row.products, row.sign)),
    (Column("utilization", "right", drop=2), lambda row: utilization(row.utilisation)),
    (Column("padding", "right", drop=6), lambda row: share(row.padded_share, 1)),
)
"""Columns that do not depend on the machine."""
_COLUMNS: tuple[SweepColumn, ...] = (
    (Column("model", shrink=True, paths=True), lambda row: printable(row.model)),
    (Column("machine", shrink=True, drop=9), lambda row: Span(printable(row.hardware), "quiet")),
    *_TILING[:2],
    (Column("form", drop=8), lambda row: Span(row.form, "quiet")),
    (Column("groups", drop=8), lambda row: Span(row.grouped, "quiet")),
    *_TILING[2:],
    (Column("traffic", "right"), lambda row: size(row.traffic, row.sign)),
    (
        Column("buffer", "right"),
        lambda row: size(row.buffer)._replace(role="bad" if row.fits is False else ""),
    ),
    (Column("cycles", "right"), lambda row: count(row.cycles, row.sign)),
    (Column("time", "right", drop=4), lambda row: seconds(row.seconds, row.sign)),
    (Column("proof", drop=3), _build_proof_cell),
    (
        Column("worst error", "right", drop=5),
        lambda row: "" if row.worst_error is None else f"{row.worst_error:.2g}",
    ),
    (Column(""), lambda row: Span(FRONT, "good") if row.pareto else ""),
)


def select_columns(
    rows: Sequence[SweepRow], with_model: bool = False, with_machine: bool = False
) -> list[SweepColumn]:
    """Select the columns whose cells differ or are not empty; the last column marks the front.

    Args:
        rows: Tilings of the sweep.
        with_model: Whether to add a column with the model.
        with_machine: Whether to add a column with the machine.
    """
    is_hidden = {
        "model": not with_model,
        "machine": not with_machine,
        "edges": len({row.edges for row in rows}) < 2,
        "form": len({row.form for row in rows}) < 2,
        "groups": len({row.grouped for row in rows}) < 2,
        "padding": all(not row.padded_share for row in rows),
        "cycles": all(row.cycles is None for row in rows),
        "time": all(row.seconds is None for row in rows),
        "proof": all(row.verified is None and not row.verdict for row in rows),
        "worst error": all(row.worst_error is None for row in rows),
    }
    return [(column, cell) for column, cell in _COLUMNS if not is_hidden.get(column.title, False)]


def tiling_blocks(row: SweepRow) -> list[Block]:
    """Build the facts about one tiling, or the reason why it has no figures."""
    if row.error:
        return [Paragraph(row.error, "warning")]
    ratio = row.traffic / row.lower_bound if row.traffic is not None and row.lower_bound else None
    fit_cell = Span("fits", "good") if row.fits else Span("does not fit", "bad")
    figures = [
        *(Field(column.title, cell(row)) for column, cell in _TILING),
        Field("matmuls", "" if row.sites is None else plain(row.sites)),
        Field("x lower bound", "" if ratio is None else f"{ratio:,.2f}"),
        Field("memory-bound", plain(row.memory_bound) if row.memory_bound else ""),
        Field("buffer", "" if row.fits is None else fit_cell),
    ]
    blocks: list[Block] = [Fields([field for field in figures if field.figure])]
    if row.verdict:
        kind = row.verdict_kind or _VERDICT_KINDS[row.verified]
        blocks.append(Paragraph(field_terms(row.verdict), TONES[kind]))
    return blocks


_VERDICT_KINDS: Mapping[bool | None, VerdictKind] = {True: "equal", False: "different", None: "unproven"}


def scalesim(layers: Sequence[SweepLayer]) -> str:
    """Return matrix products as a SCALE-Sim topology (`-i gemm`): a line with M, N and K for each product.

    The format has no counts, so each product of a batch gets a line. A batch of more than a thousand, or of
    unknown size, is one line with the count in its name.
    """
    rows = (f"{name}, {layer.M}, {layer.N}, {layer.K}," for name, layer in _list_lines(layers))
    return "\n".join(["Layer, M, N, K,", *rows, ""])


def scalesim_layout(layers: Sequence[SweepLayer]) -> str:
    """Return the layout file that SCALE-Sim 3 reads with the topology, with a line for each line of it.

    The elements of every operand are in the order of its axes. SCALE-Sim reads the layout only if its
    configuration asks for a custom one. Names must not contain 'DP', which marks a depthwise layer.
    """
    axes = ("Height", "Width", "Channel")
    kernel = ("Num Filter", "Channel", "Filter Height", "Filter Width")
    factors = ("IFMAP Height", "IFMAP Width", "Filter Height", "Filter Width", "Channel", "Num Filter")
    columns = [f"{axis} Intraline Factor" for axis in factors]
    columns += [f"IFMAP {axis} {line} Order" for line in ("Intraline", "Interline") for axis in axes]
    columns += [f"Filter: {axis} {line} Order" for line in ("Intraline", "Interline") for axis in kernel]
    values = [1] * len(factors) + 2 * list(range(len(axes))) + 2 * list(range(len(kernel)))
    text = ", ".join(map(str, values))
    rows = (f"{name.replace('DP', 'D P')}, {text}," for name, _ in _list_lines(layers))
    return "\n".join([", ".join(["Layer", *columns, ""]).rstrip(), *rows, ""])


def _list_lines(layers: Sequence[SweepLayer]) -> Iterator[tuple[str, SweepLayer]]:
    """Yield a name and a product for each line of a topology."""
    has_models = len({layer.model for layer in layers}) > 1
    for layer in layers:
        name = f"{layer.model}: {layer.name}" if has_models else layer.name
        name = " ".join(printable(name).replace(",", ";").split()) or "product"
        runs = layer.batch * (1 if layer.calls is None else layer.calls)
        if layer.calls is None or runs > _MAX_LINES:
            count = "?" if layer.calls is None else f"{runs}"
            yield f"{name} (x {count})", layer
        else:
            yield from ((f"{name} #{index + 1}" if runs > 1 else name, layer) for index in range(runs))
