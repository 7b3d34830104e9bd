"""Two layer trees side by side, in text: `explorer diff --tree`, and what the screen says of a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from explorer.base.units import bytes_text, count_text, exact_text, shape_text
from explorer.facts.comparison import SAME, RowPair, RowSide, TreeDiff
from explorer.report.blocks import Block, Cell, Column, Line, Paragraph, Role, Rows, Span, Table
from explorer.report.present.compare.diff import costs, doubts
from explorer.report.present.figures import count, size
from explorer.report.terms import field_terms

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
"""The mark of a row by its state, and its role; those that are differences last."""

FIGURES = (
    ("MACs", "macs", False),
    ("params", "params", False),
    ("weights", "weight_bytes", True),
    ("activations", "activation_bytes", True),
    ("reads", "bytes_read", True),
    ("writes", "bytes_written", True),
    ("elemwise", "elementwise_ops", False),
)
"""What is compared of a row: as it is called, its field, whether it is bytes."""

_FORMS = {
    "graph": "",
    "exported": "The trees are those of the ONNX form of both: one of the two is a graph.",
    "rows": "Weights are compared by type and shape, not by value: diff without --tree compares values, too.",
}


def tree_diff(fact: TreeDiff, only: bool = False) -> list[Block]:
    """The answer of `explorer diff --tree`; `only` what differs. Equal groups and tiled layers are folded."""
    head = Line((Span(fact.before, "strong"), Span("   ->   ", "quiet"), Span(fact.after, "strong")))
    blocks: list[Block] = [head, Line(), Line(Span(summary(fact), "good" if fact.equal else ""), 2)]
    blocks += said_of_all(fact)
    shown = list(_folded(fact, only))
    if shown:
        columns = (
            *(Column(""), Column("layer", shrink=True), Column("kind", role="kind", drop=4, shrink=True)),
            *(Column(f"Δ {title}", "right", drop=at) for at, (title, *_) in enumerate(FIGURES[:4])),
            Column(""),
        )
        table = Table(columns, Rows(_row, shown), what="rows", more="--json has all")
        blocks += [Line(), table]
    return [*blocks, Line(), costs(fact), *doubts(fact)]


def summary(fact: TreeDiff) -> str:
    """What became of how many layers, in a line."""
    counts = dict(fact.counts)
    same = sum(counts.get(state, 0) for state in SAME)
    differing = [f"{counts[state]:,} {state}" for state in STATES if state in counts and state not in SAME]
    if not differing:
        said = (
            f"the same in all of its {same:,} layers" if not fact.graph else f"{same:,} layers are the same"
        )
    elif not set(counts) - {"added", "removed"}:
        said = f"nothing in common: {', '.join(differing)}"
    else:
        said = ", ".join(differing) + (f"; {same:,} the same" if same else "; none the same")
    named = counts.get("renamed", 0)
    return f"{said}{f', {named:,} of them under other names' * bool(named)}"


def said_of_all(fact: TreeDiff) -> list[Block]:
    """What is to be said of both models as wholes: inputs, outputs, what the trees are of."""
    rows = [
        (row.op_before or row.op_after or "", row.before or row.after or "", field_terms(row.what))
        for row in fact.graph
    ]
    said: list[Block] = [Paragraph(f"{op} {name}: {what}", "warning") for op, name, what in rows]
    return [*said, *([Paragraph(_FORMS[fact.form], "quiet")] if _FORMS[fact.form] else [])]


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
    what = field_terms(row.what) or (f"{inside:,} in it" if inside and state else "")
    kind = either(row, "kind")
    return Span(state, STATES[row.status][1]), Span(name, role), kind, *deltas, Span(what, "quiet")


def either(row: RowPair, field: str) -> str:
    """A field of both sides: once if they agree."""
    sides = [getattr(side, field) for side in (row.before, row.after) if side is not None]
    return " -> ".join(dict.fromkeys(sides))


def change(row: RowPair, figure: str, of_bytes: bool) -> Span:
    """By how much a figure of a row grew or shrank; nothing where it did not."""
    delta = row.delta(figure)
    if delta is None:
        return Span("?", "warning")
    if not delta:
        return Span("", "quiet", value=0)
    sign = "+" if delta > 0 else "-"
    text = bytes_text(abs(delta)) if of_bytes else count_text(abs(delta))
    return Span(f"{sign}{text}", "warning" if delta > 0 else "good", f"{delta:+,}", delta)


def pair_blocks(row: RowPair) -> list[Block]:
    """Everything that is known of a row on both sides, and by how much its figures differ."""
    sides = row.before, row.after
    shapes = [shape_text(side.output) if side else "" for side in sides]
    rows: list[tuple[Cell, ...]] = [
        ("layer", *_texts(sides, "path"), ""),
        ("kind", *_texts(sides, "kind"), ""),
        ("output", *shapes, "" if shapes[0] == shapes[1] or not all(sides) else Span("differs", "warning")),
    ]
    for label, field, of_bytes in FIGURES:
        shown: list[Cell] = []
        for side in sides:
            value = None if side is None else getattr(side, field)
            shown.append("" if side is None else size(value) if of_bytes else count(value))
        rows.append((label, *shown, change(row, field, of_bytes)))
    columns = (
        Column("", role="quiet"),
        Column("before", shrink=True),
        Column("after", shrink=True),
        Column("change"),
    )
    inside = f", {exact_text(row.inside)} differ in it" if row.inside else ""
    said = field_terms(row.what)
    head = Line(
        (
            Span(row.status + inside, STATES[row.status][1] if row.differs else "quiet"),
            f"  {said}" if said else "",
        ),
        1,
    )
    return [head, Table(columns, rows, 1)]


def _texts(sides: tuple[RowSide | None, RowSide | None], field: str) -> list[str]:
    return [str(getattr(side, field)) if side else "-" for side in sides]
