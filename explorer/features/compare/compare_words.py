"""Text of `explorer compare` and `explorer diff --tree`: models and layer trees side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from explorer.base.units import bytes_text, count_text, exact_text, shape_text
from explorer.facts.comparison import SAME, Comparison, Difference, RowPair, RowSide, TreeDiff
from explorer.report.blocks import Block, Cell, Column, Line, Paragraph, Role, Rows, Span, Table
from explorer.report.present.compare.compared_figures import figure_tables, table_notes
from explorer.report.present.compare.diff import costs, doubts
from explorer.report.present.figures import count, size
from explorer.report.terms import field_terms
from explorer.session.headers import label


def compare(fact: Comparison) -> list[Block]:
    """The answer of `explorer compare`: the verdict, totals and operators side by side, the differences."""
    verdict = "a difference in parameters or MACs is not explained"
    if fact.agree:
        verdict = "parameters and MACs are the same, or every difference in them is explained"
        if any(not model.totals.nodes and not model.totals.coverage for model in fact.models):
            verdict = "parameters are the same, or every difference in them is explained; MACs are not known"
    formats: tuple[Cell, ...] = (
        "Format",
        *(Span(label(model.model.format), "quiet") for model in fact.models),
    )
    counts = [
        (op, *(exact_text(count) if count else "-" for count in op_counts))
        for op, op_counts in fact.operators
    ]
    return [
        Paragraph(verdict, "passed" if fact.agree else "bad", 0),
        Line(),
        *figure_tables(fact.figures, above=[formats]),
        Line(),
        *table_notes(fact.figures),
        Line(),
        Table((Column("operators"), *(Column("", "right") for _ in fact.models)), counts),
        *_differences(fact),
    ]


def _differences(fact: Comparison) -> list[Block]:
    if not fact.differences:
        return []
    blocks: list[Block] = []
    for at in dict.fromkeys(difference.model for difference in fact.differences):
        source, first = fact.models[at].model.source, fact.models[0].model.source
        blocks += [Line(), Line((Span(source, "strong"), Span("   against   ", "quiet"), first))]
        for difference in fact.differences:
            if difference.model == at:
                blocks += _difference(difference)
    return blocks


def _difference(fact: Difference) -> list[Block]:
    """The figure and its difference on one line, and the reason below."""
    open_ = fact.delta is None or fact.explained != fact.delta
    delta = "?" if fact.delta is None else f"{fact.delta:+,}"
    state = Span("open", "bad") if open_ else Span("explained", "good")
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
"""Mark and role of a row by its state; states that are differences stand last."""

FIGURES = (
    ("MACs", "macs", False),
    ("params", "params", False),
    ("weights", "weight_bytes", True),
    ("activations", "activation_bytes", True),
    ("reads", "bytes_read", True),
    ("writes", "bytes_written", True),
    ("elemwise", "elementwise_ops", False),
)
"""The figures of a row: title, field, and whether it is in bytes."""

_FORMS = {
    "graph": "",
    "exported": "The trees are those of the ONNX form of both: one of the two is a graph.",
    "rows": "Weights are compared by type and shape, not by value: diff without --tree compares values, too.",
}


def tree_diff(fact: TreeDiff, only: bool = False) -> list[Block]:
    """The answer of `explorer diff --tree`, with equal groups and tiled layers folded.

    Args:
        fact: Both trees.
        only: Leave out rows that are the same.
    """
    head = Line((Span(fact.before, "strong"), Span("   ->   ", "quiet"), Span(fact.after, "strong")))
    blocks: list[Block] = [head, Line(), Line(Span(summary(fact), "good" if fact.equal else ""), 2)]
    blocks += graph_notes(fact)
    visible_rows = list(_folded(fact, only))
    if visible_rows:
        columns = (
            *(Column(""), Column("layer", shrink=True), Column("kind", role="kind", drop=4, shrink=True)),
            *(Column(f"Δ {title}", "right", drop=at) for at, (title, *_) in enumerate(FIGURES[:4])),
            Column(""),
        )
        table = Table(columns, Rows(_row, visible_rows), what="rows", more="--json has all")
        blocks += [Line(), table]
    return [*blocks, Line(), costs(fact), *doubts(fact)]


def summary(fact: TreeDiff) -> str:
    """The number of layers in each state, in one line."""
    counts = dict(fact.counts)
    same = sum(counts.get(state, 0) for state in SAME)
    differing = [f"{counts[state]:,} {state}" for state in STATES if state in counts and state not in SAME]
    if not differing:
        text = (
            f"the same in all of its {same:,} layers" if not fact.graph else f"{same:,} layers are the same"
        )
    elif not set(counts) - {"added", "removed"}:
        text = f"nothing in common: {', '.join(differing)}"
    else:
        text = ", ".join(differing) + (f"; {same:,} the same" if same else "; none the same")
    named = counts.get("renamed", 0)
    return f"{text}{f', {named:,} of them under other names' * bool(named)}"


def graph_notes(fact: TreeDiff) -> list[Block]:
    """Differences in inputs and outputs, and a note on the form of the trees."""
    rows = [
        (row.op_before or row.op_after or "", row.before or row.after or "", field_terms(row.what))
        for row in fact.graph
    ]
    lines: list[Block] = [Paragraph(f"{op} {name}: {text}", "warning") for op, name, text in rows]
    return [*lines, *([Paragraph(_FORMS[fact.form], "quiet")] if _FORMS[fact.form] else [])]


def _folded(fact: TreeDiff, only: bool) -> Iterator[tuple[int, RowPair]]:
    at = 0
    while at < len(fact.rows):
        row = fact.rows[at]
        if row.differs or not only:
            yield at, row
        at = row.end if fact.folds(at) else at + 1


def _row(place: tuple[int, RowPair]) -> tuple[Cell, ...]:
    at, row = place
    name = "  " * row.depth + either(row, "name")
    role: Role = "quiet" if row.status in SAME and not row.inside else ""
    deltas = [change(row, field, of_bytes) for _, field, of_bytes in FIGURES[:4]]
    state = "" if row.status == "same" and row.inside else row.status
    inside = row.end - at - 1
    text = field_terms(row.what) or (f"{inside:,} in it" if inside and state else "")
    kind = either(row, "kind")
    return Span(state, STATES[row.status][1]), Span(name, role), kind, *deltas, Span(text, "quiet")


def either(row: RowPair, field: str) -> str:
    """A field of both sides; once if they agree."""
    sides = [getattr(side, field) for side in (row.before, row.after) if side is not None]
    return " -> ".join(dict.fromkeys(sides))


def change(row: RowPair, figure: str, of_bytes: bool) -> Span:
    """The change of a figure of a row; empty where it did not change."""
    delta = row.delta(figure)
    if delta is None:
        return Span("?", "warning")
    if not delta:
        return Span("", "quiet", value=0)
    sign = "+" if delta > 0 else "-"
    text = bytes_text(abs(delta)) if of_bytes else count_text(abs(delta))
    return Span(f"{sign}{text}", "warning" if delta > 0 else "good", f"{delta:+,}", delta)


def pair_blocks(row: RowPair) -> list[Block]:
    """Layer, kind, output and figures of a row on both sides, with the differences."""
    sides = row.before, row.after
    shapes = [shape_text(side.output) if side else "" for side in sides]
    rows: list[tuple[Cell, ...]] = [
        ("layer", *_texts(sides, "path"), ""),
        ("kind", *_texts(sides, "kind"), ""),
        ("output", *shapes, "" if shapes[0] == shapes[1] or not all(sides) else Span("differs", "warning")),
    ]
    for title, field, of_bytes in FIGURES:
        figure_cells: list[Cell] = []
        for side in sides:
            value = None if side is None else getattr(side, field)
            figure_cells.append("" if side is None else size(value) if of_bytes else count(value))
        rows.append((title, *figure_cells, change(row, field, of_bytes)))
    columns = (
        Column("", role="quiet"),
        Column("before", shrink=True),
        Column("after", shrink=True),
        Column("change"),
    )
    inside = f", {exact_text(row.inside)} differ in it" if row.inside else ""
    reason = field_terms(row.what)
    head = Line(
        (
            Span(row.status + inside, STATES[row.status][1] if row.differs else "quiet"),
            f"  {reason}" if reason else "",
        ),
        1,
    )
    return [head, Table(columns, rows, 1)]


def _texts(sides: tuple[RowSide | None, RowSide | None], field: str) -> list[str]:
    return [str(getattr(side, field)) if side else "-" for side in sides]
