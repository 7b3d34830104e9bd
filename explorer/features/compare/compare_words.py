"""Text of `explorer compare` and `explorer diff --tree`: figures of models, and aligned layer trees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from explorer.base.units import bytes_text, count_text, exact_text, many_do_text, many_text, shape_text
from explorer.facts.comparison import SAME, Comparison, Difference, RowPair, RowSide, TreeDiff
from explorer.report.blocks import Block, Cell, Column, Line, Paragraph, Role, Rows, Span, Table
from explorer.report.present.compare.compared_figures import build_figure_tables, list_table_notes
from explorer.report.present.compare.diff import build_cost_table, list_cost_notes
from explorer.report.present.figures import count, size
from explorer.report.terms import field_terms
from explorer.session.headers import get_format_label


def compare(fact: Comparison) -> list[Block]:
    """Build the output of `explorer compare`: the verdict, totals, operators and differences."""
    verdict = "parameters or MACs differ by more than the explained differences"
    if fact.agree:
        verdict = "parameters and MACs are the same, or each difference is explained"
        if any(not model.totals.nodes and not model.totals.coverage for model in fact.models):
            verdict = "parameters are the same, or each difference is explained; MACs are unknown"
    formats: tuple[Cell, ...] = (
        "Format",
        *(Span(get_format_label(model.model.format), "quiet") for model in fact.models),
    )
    counts = [
        (op, *(exact_text(count) if count else "-" for count in op_counts))
        for op, op_counts in fact.operators
    ]
    return [
        Paragraph(verdict, "passed" if fact.agree else "bad", 0),
        Line(),
        *build_figure_tables(fact.figures, above=[formats]),
        Line(),
        *list_table_notes(fact.figures),
        Line(),
        Table((Column("operators"), *(Column("", "right") for _ in fact.models)), counts),
        *_build_differences(fact),
    ]


def _build_differences(fact: Comparison) -> list[Block]:
    if not fact.differences:
        return []
    blocks: list[Block] = []
    for model_index in dict.fromkeys(difference.model for difference in fact.differences):
        source, first = fact.models[model_index].model.source, fact.models[0].model.source
        blocks += [Line(), Line((Span(source, "strong"), Span("   against   ", "quiet"), first))]
        for difference in fact.differences:
            if difference.model == model_index:
                blocks += _build_difference(difference)
    return blocks


def _build_difference(fact: Difference) -> list[Block]:
    """Build a line with the figure and its difference, and a line with the reason."""
    is_explained = fact.delta is not None and fact.explained == fact.delta
    delta = "?" if fact.delta is None else f"{fact.delta:+,}"
    state = Span("explained", "good") if is_explained else Span("unexplained", "bad")
    return [Line((f"{fact.figure}  ", Span(delta, "strong"), "  ", state), 2), Paragraph(fact.why, indent=4)]


STATES: Mapping[str, tuple[str, Role]] = {
    "same": (" ", "quiet"),
    "renamed": ("=", "quiet"),
    "part": (" ", "quiet"),
    "resized": ("≠", "warning"),
    "changed": ("~", "warning"),
    "folded": ("⊂", "good"),
    "tiled": ("▦", "good"),
    "merged": ("▣", "good"),
    "quantized": ("≈", "good"),
    "added": ("+", "good"),
    "removed": ("-", "bad"),
}
"""Mark and role of a row of the layer tree, by its state. States that count as differences come last."""

FIGURES = (
    ("MACs", "macs", False),
    ("params", "params", False),
    ("weights", "weight_bytes", True),
    ("activations", "activation_bytes", True),
    ("reads", "bytes_read", True),
    ("writes", "bytes_written", True),
    ("elementwise", "elementwise_ops", False),
)
"""Figures of a row of the layer tree: title, field name, and whether the unit is bytes."""

_FORMS = {
    "graph": "",
    "exported": "One of the two models is a graph, so both trees show the ONNX form.",
    "rows": "Weights are compared by type and shape, not by value: diff without --tree compares values, too.",
}


def tree_diff(fact: TreeDiff, only: bool = False) -> list[Block]:
    """Build the output of `explorer diff --tree`. Equal groups and tiled layers take one row.

    Args:
        fact: The two aligned layer trees.
        only: Whether to list only rows that differ.
    """
    head = Line((Span(fact.before, "strong"), Span("   ->   ", "quiet"), Span(fact.after, "strong")))
    blocks: list[Block] = [head, Line(), Line(Span(summarize_states(fact), "good" if fact.equal else ""), 2)]
    blocks += graph_notes(fact)
    visible_rows = list(_fold_rows(fact, only))
    if visible_rows:
        columns = (
            *(Column(""), Column("layer", shrink=True), Column("kind", role="kind", drop=4, shrink=True)),
            *(Column(f"Δ {title}", "right", drop=index) for index, (title, *_) in enumerate(FIGURES[:4])),
            Column(""),
        )
        table = Table(columns, Rows(_build_row, visible_rows), what="rows", more="--json has all")
        blocks += [Line(), table]
    return [*blocks, Line(), build_cost_table(fact), *list_cost_notes(fact)]


def summarize_states(fact: TreeDiff) -> str:
    """Count the layers in each state, in one line."""
    counts = dict(fact.counts)
    same_count = sum(counts.get(state, 0) for state in SAME)
    differing = [f"{counts[state]:,} {state}" for state in STATES if state in counts and state not in SAME]
    if not differing:
        text = (
            f"the same in all of its {many_text(same_count, 'layer')}"
            if not fact.graph
            else f"{many_do_text(same_count, 'layer', 'is', 'are')} the same"
        )
    elif not set(counts) - {"added", "removed"}:
        text = f"nothing in common: {', '.join(differing)}"
    else:
        text = ", ".join(differing) + (f"; {same_count:,} the same" if same_count else "; none the same")
    renamed_count = counts.get("renamed", 0)
    return f"{text}{f', {renamed_count:,} of them under other names' * bool(renamed_count)}"


def graph_notes(fact: TreeDiff) -> list[Block]:
    """List differences in model inputs and outputs, and note the form in which the trees were compared."""
    rows = [
        (row.op_before or row.op_after or "", row.before or row.after or "", field_terms(row.what))
        for row in fact.graph
    ]
    lines: list[Block] = [Paragraph(f"{op} {name}: {text}", "warning") for op, name, text in rows]
    return [*lines, *([Paragraph(_FORMS[fact.form], "quiet")] if _FORMS[fact.form] else [])]


def _fold_rows(fact: TreeDiff, only: bool) -> Iterator[tuple[int, RowPair]]:
    """Yield the visible rows with their indices. With `only`, equal rows are not visible."""
    index = 0
    while index < len(fact.rows):
        row = fact.rows[index]
        if row.differs or not only:
            yield index, row
        index = row.end if fact.folds(index) else index + 1


def _build_row(indexed_row: tuple[int, RowPair]) -> tuple[Cell, ...]:
    index, row = indexed_row
    name = "  " * row.depth + format_both_sides(row, "name")
    role: Role = "quiet" if row.status in SAME and not row.inside else ""
    deltas = [format_change(row, field, is_bytes) for _, field, is_bytes in FIGURES[:4]]
    state = "" if row.status == "same" and row.inside else row.status
    inner_count = row.end - index - 1
    text = field_terms(row.what) or (f"{inner_count:,} in it" if inner_count and state else "")
    kind = format_both_sides(row, "kind")
    return Span(state, STATES[row.status][1]), Span(name, role), kind, *deltas, Span(text, "quiet")


def format_both_sides(row: RowPair, field: str) -> str:
    """Format a field of both sides as 'before -> after', or as one value if both sides agree."""
    sides = [getattr(side, field) for side in (row.before, row.after) if side is not None]
    return " -> ".join(dict.fromkeys(sides))


def format_change(row: RowPair, figure: str, is_bytes: bool) -> Span:
    """Format the change of a figure between both sides of a row: '?' if unknown, empty without a change."""
    delta = row.delta(figure)
    if delta is None:
        return Span("?", "warning")
    if not delta:
        return Span("", "quiet", value=0)
    sign = "+" if delta > 0 else "-"
    text = bytes_text(abs(delta)) if is_bytes else count_text(abs(delta))
    return Span(f"{sign}{text}", "warning" if delta > 0 else "good", f"{delta:+,}", delta)


def build_pair_blocks(row: RowPair) -> list[Block]:
    """Build the details of a row: layer, kind, output shape and figures of both sides, with differences."""
    sides = row.before, row.after
    shapes = [shape_text(side.output) if side else "" for side in sides]
    rows: list[tuple[Cell, ...]] = [
        ("layer", *_format_field(sides, "path"), ""),
        ("kind", *_format_field(sides, "kind"), ""),
        ("output", *shapes, "" if shapes[0] == shapes[1] or not all(sides) else Span("differs", "warning")),
    ]
    for title, field, is_bytes in FIGURES:
        figure_cells: list[Cell] = []
        for side in sides:
            value = None if side is None else getattr(side, field)
            figure_cells.append("" if side is None else size(value) if is_bytes else count(value))
        rows.append((title, *figure_cells, format_change(row, field, is_bytes)))
    columns = (
        Column("", role="quiet"),
        Column("before", shrink=True),
        Column("after", shrink=True),
        Column("change"),
    )
    inner_text = f", {exact_text(row.inside)} differ in it" if row.inside else ""
    reason = field_terms(row.what)
    head = Line(
        (
            Span(row.status + inner_text, STATES[row.status][1] if row.differs else "quiet"),
            f"  {reason}" if reason else "",
        ),
        1,
    )
    return [head, Table(columns, rows, 1)]


def _format_field(sides: tuple[RowSide | None, RowSide | None], field: str) -> list[str]:
    return [str(getattr(side, field)) if side else "-" for side in sides]
