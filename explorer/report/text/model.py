"""What a model is, in text: `explorer info`, `layers` and `ops`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from explorer.base.units import (
    MACS,
    bytes_text,
    count_text,
    dims_text,
    exact_text,
    percent_text,
    reached_text,
    shape_text,
)
from explorer.facts import (
    Analysis,
    Info,
    Layer,
    ModelInfo,
    OpStat,
    Range,
    Shape,
    TensorInfo,
    Tiled,
    Totals,
    is_assumed,
)
from explorer.report.layout import BAR, DIM, NOTE, STRONG, Alike, Cell, Column, Line, Prose, Span, Table
from explorer.session.headers import label

__all__ = [
    "CAP",
    "Block",
    "bar_text",
    "bytes_row",
    "capped",
    "count_row",
    "doubt_text",
    "figures_text",
    "info",
    "layers",
    "ops",
    "quiet_zero",
    "range_text",
    "layer_share",
    "share_text",
    "symbolic_hint",
    "title",
    "totals_rows",
    "written",
]

Block = Line | Prose | Table

CAP = 200
"""Rows of a table on a terminal; --csv has them all."""

_BAR_CELLS = 10


def info(fact: Info) -> list[Block]:
    """The answer of `explorer info`: source, inputs and outputs, totals, assumptions, notes."""
    ports: list[Block] = [_ports(fact.model), Line()] if fact.model.inputs or fact.model.outputs else []
    return [
        *title(fact.model),
        Line(),
        *ports,
        Table(
            (
                Column("", style=DIM),
                Column("", "right", style=STRONG),
                Column("", "right"),
                Column("", style=DIM),
            ),
            [*totals_rows(fact.totals), *_coverage_rows(fact.totals), *_tiled_rows(fact.tiled)],
        ),
        *_left(fact.tiled),
        *_assumptions(fact),
        *symbolic_hint(fact),
        *([Line()] if fact.model.notes else []),
        *(Prose(note, NOTE) for note in fact.model.notes),
    ]


def capped(shown: int, of: int, what: str) -> list[Block]:
    """How much of a long table stands below, where it is not all of it."""
    return [Prose(f"{shown:,} of {of:,} {what}; --csv has all", NOTE)] if shown < of else []


def written(output: str) -> list[Block]:
    """The answer of a verb that wrote a file."""
    return [Line((Span("written  ", DIM), Span(output, STRONG)))]


def title(model: ModelInfo) -> list[Block]:
    """The line that says which model this is about."""
    kind = label(model.format)
    parts = [
        f"{kind} opset {model.opset}" if model.opset else kind,
        model.producer,
        bytes_text(model.file_bytes) if model.file_bytes is not None else "",
        f"sha256 {model.sha256[:12]}" if model.sha256 else "",
    ]
    return [Line((Span(model.source, STRONG), Span("   " + " · ".join(p for p in parts if p), DIM)))]


def totals_rows(totals: Totals) -> list[tuple[Cell, ...]]:
    """Label, rounded figure, exact figure and remark of every total, with the sign of what is not exact."""
    peak = "live at once, inputs too, no weights" + (f"; at {totals.peak_at}" if totals.peak_at else "")
    moved = None
    if totals.bytes_read is not None and totals.bytes_written is not None:
        moved = totals.bytes_read + totals.bytes_written
    if totals.trainable_params is None or totals.trainable_params == totals.params:
        trainable = "all trainable" if totals.trainable_params and totals.params else ""
    else:
        trainable = f"{exact_text(totals.trainable_params)} of them trainable"
    sign = totals.sign
    intensity = "?"
    # of two bounds the quotient is nothing
    if totals.flops is not None and moved and not sign:
        intensity = f"{totals.flops / moved:.2f}"
    rows = [
        count_row("Parameters", totals.params, "", trainable),
        bytes_row("Weight bytes", totals.weight_bytes, ""),
        count_row("MACs", totals.macs, sign, MACS),
        count_row("FLOPs", totals.flops, sign, "2 x MACs"),
        count_row("Elementwise operations", totals.elementwise_ops, sign, "not in the FLOPs"),
        bytes_row("Activations, sum", totals.activation_bytes_sum, sign, "outputs of every node, each once"),
        bytes_row("Activations, peak", totals.activation_bytes_peak, sign, peak),
        bytes_row("Bytes read", totals.bytes_read, sign, _split(totals)),
        bytes_row("Bytes written", totals.bytes_written, sign),
        ("Arithmetic intensity", intensity, "", "FLOPs per byte read or written"),
        ("Nodes", exact_text(totals.nodes), "", ""),
    ]
    if totals.kv_cache_bytes is not None:
        rows.insert(2, bytes_row("Key-value cache", totals.kv_cache_bytes, sign, "read by the attention"))
    if totals.activation_bytes_functional is not None:
        at = next(i for i, row in enumerate(rows) if row[0] == "Activations, sum")
        rows[at] = bytes_row(
            "Activations, sum", totals.activation_bytes_sum, sign, "outputs of leaf modules, each once"
        )
        rows.insert(
            at + 1,
            bytes_row(
                "Activations, functional", totals.activation_bytes_functional, sign, "not in the sum above"
            ),
        )
    return rows


def _split(totals: Totals) -> str:
    """What is read, by where it lies."""
    if totals.bytes_read is None or totals.weight_bytes_read is None:
        return ""
    activations = totals.bytes_read - totals.weight_bytes_read
    return f"{exact_text(totals.weight_bytes_read)} of weights, {exact_text(activations)} of activations"


def figures_text(fact: Info) -> list[tuple[str, ...]]:
    """`totals_rows`, the coverage and the share on tiles as plain text."""
    rows = [*totals_rows(fact.totals), *_coverage_rows(fact.totals), *_tiled_rows(fact.tiled)]
    return [tuple(_plain(cell) for cell in row) for row in rows]


def _plain(cell: Cell) -> str:
    if isinstance(cell, tuple) and not isinstance(cell, Span):
        return "".join(map(_plain, cell))
    return cell.text if isinstance(cell, Span) else cell


def count_row(label: str, value: int | None, sign: str, remark: str = "") -> tuple[Cell, ...]:
    """A row of a table of figures: label, count in SI, exact count, remark; `sign` as in `Totals.sign`."""
    return _figure_row(label, count_text(value), value, sign, remark)


def bytes_row(label: str, value: int | None, sign: str, remark: str = "") -> tuple[Cell, ...]:
    """As `count_row`, for a size in IEC."""
    return _figure_row(label, bytes_text(value), value, sign, remark)


def _figure_row(label: str, rounded: str, value: int | None, sign: str, remark: str) -> tuple[Cell, ...]:
    sign = sign if value is not None else ""
    exact = exact_text(value)
    return (label, sign + rounded, "" if value is None else sign + exact, remark)


def _coverage_rows(totals: Totals) -> list[tuple[Cell, ...]]:
    if totals.coverage >= 1:
        return [("Coverage", "100 %", "", _COVERED[totals.status])]
    if not totals.nodes:
        remark = "what it computes is not known"
        return [(Span("Coverage", NOTE), Span("0.0 %", NOTE), "", Span(remark, NOTE))]
    # never round up to 100 %: that would claim what is not so
    share = reached_text(totals.coverage)
    remark = "the other nodes' cost is unknown and in no total; explorer layers marks them ?"
    return [(Span("Coverage", NOTE), Span(share, NOTE), "", Span(remark, NOTE))]


_COVERED = {
    "exact": "the cost of every node is known",
    "bound": "every node is counted, some at an upper bound",
    "assumed": "every node is counted, some under an assumption",
    "unknown": "every node is counted",
}
"""What a coverage of 100 % says, by the status of the totals."""


def _tiled_rows(tiled: Tiled | None) -> list[tuple[Cell, ...]]:
    """Which share of the MACs tile matmuls do."""
    if tiled is None:
        return []
    sizes = f"for {dims_text(tiled.dims)}: " if tiled.dims else ""
    remark = f"{sizes}{exact_text(tiled.products)} tile matmuls; MACs of the padding included"
    return [("MACs on tiles", reached_text(tiled.share), exact_text(tiled.macs), remark)]


def _left(tiled: Tiled | None) -> list[Block]:
    """What multiplies and accumulates beside the tiles, and why."""
    if tiled is None or not tiled.left:
        return []
    rows: list[tuple[Cell, ...]] = [
        (
            exact_text(row.count),
            row.op,
            Span(row.name if row.count == 1 else f"{row.name} and {row.count - 1:,} more", DIM),
            quiet_zero(row.macs, count_text(row.macs)),
            share_text(row.macs, tiled.macs_total) if row.macs else "",
            Span(row.reason, NOTE),
        )
        for row in tiled.left[:CAP]
    ]
    columns = (
        Column("", "right"),
        Column("not on tiles"),
        Column("", shrink=True, drop=1),
        Column("MACs", "right"),
        Column("share", "right"),
        Column(""),
    )
    shown = f"{len(rows):,} of {len(tiled.left):,} kinds; --json has all"
    return [Line(), Table(columns, rows), *([Prose(shown, NOTE)] if len(rows) < len(tiled.left) else [])]


def _ports(model: ModelInfo) -> Table:
    rows = [
        (Span(label if i == 0 else "", DIM), t.name, _dtype(t), shape_text(t.shape), Span(t.conflict, NOTE))
        for label, tensors in (("inputs", model.inputs), ("outputs", model.outputs))
        for i, t in enumerate(tensors)
    ]
    return Table((Column(""), Column("", shrink=True), Column("", style=DIM), Column(""), Column("")), rows)


def _dtype(tensor: TensorInfo) -> str:
    return tensor.dtype or "?"


def _assumptions(fact: Info) -> list[Block]:
    rows: list[tuple[Cell, ...]] = []
    for key, value in fact.assumptions.items():
        if value in (None, "", (), {}, []):
            continue
        rows.append((Span(str(key), DIM), _value_text(value)))
    return [Line(), Line(Span("assumed", DIM), 2), Table((Column(""), Column("")), rows, 4)] if rows else []


def _value_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} = {_value_text(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value_text(v) for v in value) + "]"
    if isinstance(value, int) and not isinstance(value, bool):
        return exact_text(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def symbolic_hint(fact: Info) -> list[Block]:
    """How to bind the dimensions that are open, for who wonders why figures are missing."""
    model, bound = fact.model, fact.assumptions.get("dims") or {}
    free = dict.fromkeys(
        d for t in model.inputs for d in t.shape or () if isinstance(d, str) and d not in bound
    )
    if not free:
        return []
    options = " ".join(f"--dim {name}=1" for name in free)
    return [Line(), Prose(f"Some dimensions are symbolic; bind them to get every figure: {options}", NOTE)]


def layers(fact: Analysis) -> list[Block]:
    """The answer of `explorer layers`: the tree, indented, with the cost of every row."""
    totals = fact.info.totals
    whole = totals.macs
    said = _said_of_shapes(fact)
    # a file of tensors says nothing of work, on every row the same nothing
    bare = not totals.nodes and not totals.coverage
    # of a large model most rows say the same but for their names
    names: list[Cell] = []
    looks: list[_Look] = []
    alike: dict[_Look, _Look] = {}
    for row in fact.layers:
        name = "  " * row.depth + (row.name or row.path or "(model)")
        look = _look(row, _remark(row, said, bare), bare)
        names.append(Span(name, STRONG) if row.group else name)
        looks.append(alike.setdefault(look, look))
    largest = max((look.macs or 0 for look in alike if not look.group), default=0)
    cells = {look: _layer_cells(look, whole, largest) for look in alike}
    names.append(Span("total", STRONG))
    rows = Alike(names, [*[cells[look] for look in looks], _total_cells(totals)])
    columns = (
        Column("layer", shrink=True),
        Column("kind", shrink=True, drop=1),
        Column("shape" if bare else "output", drop=4),
        Column("params", "right"),
        Column("weights", "right", drop=6),
        Column("MACs", "right"),
        Column("share", "right", drop=2),
        Column("", style=BAR, drop=5),
        Column("activations", "right", drop=7),
        Column("", shrink=True, drop=3, style=NOTE),
    )
    return [
        *title(fact.info.model),
        Line(),
        Table(columns, rows, 0),
        *(() if bare else (Line(), Prose(f"MACs: {MACS}.", DIM))),
        *_functional_hint(totals),
        *symbolic_hint(fact.info),
    ]


def _total_cells(totals: Totals) -> tuple[Cell, ...]:
    """The cells of the last row behind its name."""
    macs, activations = totals.macs, totals.activation_bytes_sum
    return (
        "",
        "",
        Span(count_text(totals.params), STRONG),
        Span(bytes_text(totals.weight_bytes), STRONG),
        Span((totals.sign if macs is not None else "") + count_text(macs), STRONG),
        "",
        "",
        (totals.sign if activations is not None else "") + bytes_text(activations),
    )


def _functional_hint(totals: Totals) -> list[Block]:
    """Why the total of an nn.Module's activations may be less than a group's."""
    if not totals.activation_bytes_functional:
        return []
    more = bytes_text(totals.activation_bytes_functional)
    text = f"Groups count outputs of functional operators too, {more} in all; the total counts leaf modules."
    return [Line(), Prose(text, NOTE)]


class _Look(NamedTuple):
    """What stands in a row behind its name, and all that its cells are made of."""

    group: bool
    kind: str
    tensors: int
    shape: Shape | None
    params: int
    weight_bytes: int
    macs: int | None
    activation_bytes: int | None
    counted: bool
    remark: str


def _look(row: Layer, remark: str, bare: bool) -> _Look:
    shown = row.weights if bare and not row.group else row.outputs
    return _Look(
        row.group,
        row.kind_text,
        len(shown),
        shown[0].shape if shown else None,
        row.params,
        row.weight_bytes,
        row.macs,
        row.activation_bytes,
        row.counted,
        remark,
    )


def _layer_cells(row: _Look, whole: int | None, largest: int) -> tuple[Cell, ...]:
    """The cells of a row behind its name."""
    more = f" +{row.tensors - 1}" if row.tensors > 1 else ""
    shape = shape_text(row.shape) + more if row.tensors else ""
    return (
        Span(row.kind, DIM),
        Span(shape, DIM) if row.group else shape,
        quiet_zero(row.params, count_text(row.params)),
        quiet_zero(row.weight_bytes, bytes_text(row.weight_bytes)),
        quiet_zero(row.macs, count_text(row.macs)),
        share_text(row.macs, whole) if row.macs != 0 and whole and row.counted else "",
        "" if row.group or not row.counted else bar_text(row.macs, largest),
        quiet_zero(row.activation_bytes, bytes_text(row.activation_bytes)),
        row.remark,
    )


def quiet_zero(value: int | None, text: str) -> Cell:
    """`text` for a figure: nothing to see is a dimmed dash, what is unknown stands out."""
    if value is None:
        return Span(text, NOTE)
    return text if value else Span("-", DIM)


def _said_of_shapes(fact: Analysis) -> dict[str, str]:
    """What is worth saying of where a shape comes from, by origin."""
    said = {"bound": "size at most"}
    if fact.info.model.opset is not None:
        # an operator's output is inferred, or seen in a run, unless nobody knows the operator; without ONNX's
        # operator sets there is nothing to infer, and the format declares every shape
        said["declared"] = "shape as declared"
    if "observed" in fact.info.assumptions:
        # a module is never without a run, on tensors that hold no data
        said["observed"] = "shape as seen in a run"
    return said


def doubt_text(row: Layer) -> str:
    """Why the figures of a row are not exact; '' if they are."""
    bound = row.reason and row.status == "bound" and not is_assumed(row.reason)
    return f"upper bound: {row.reason}" if bound else row.reason


def _remark(row: Layer, said: Mapping[str, str], bare: bool) -> str:
    remarks = [doubt_text(row)] if row.reason and not bare else []
    if row.shared_with:
        more = f" and {len(row.shared_with) - 1} more" if len(row.shared_with) > 1 else ""
        remarks.append(f"shared with {row.shared_with[0]}{more}")
    if row.repeat > 1:
        remarks.append(f"first of {row.repeat} alike")
    if not row.group:
        origin = row.outputs[0].origin if row.outputs else ""
        if origin in said and not origin == row.status == "bound":
            remarks.append(said[origin])
        remarks += [f"{t.name}: {t.conflict}" for t in row.outputs if t.conflict]
    return "; ".join(remark for remark in remarks if remark)


def layer_share(row: Layer, whole: int | None) -> str:
    """A layer's share of the MACs; what does not run beside the rest, an If's cheaper branch, has none."""
    return share_text(row.macs, whole) if whole and row.counted else ""


def share_text(part: int | None, whole: int | None) -> str:
    """A share in percent; one that would round to nothing says so instead of '0.0 %'."""
    return "<0.1 %" if part and whole and part / whole < 0.0005 else percent_text(part, whole)


def bar_text(value: float | None, largest: float) -> str:
    """A bar of at most ten cells, in halves; a value that is not 0 shows at least half a cell."""
    if not value or not largest:
        return ""
    halves = max(1, round(2 * _BAR_CELLS * value / largest))
    return "█" * (halves // 2) + "▌" * (halves % 2)


def ops(fact: Info, stats: Sequence[OpStat]) -> list[Block]:
    """The answer of `explorer ops`: what each operator type costs, and the values its attributes take."""
    whole = fact.totals.macs
    largest = max((stat.macs or 0 for stat in stats), default=0)
    rows: list[tuple[Cell, ...]] = [
        (
            Span(stat.op, STRONG),
            exact_text(stat.count),
            quiet_zero(stat.macs, count_text(stat.macs)),
            share_text(stat.macs, whole) if stat.macs != 0 and whole else "",
            bar_text(stat.macs, largest),
            quiet_zero(stat.params, count_text(stat.params)),
            quiet_zero(stat.elementwise_ops, count_text(stat.elementwise_ops)),
        )
        for stat in stats
    ]
    columns = (
        Column("operator", shrink=True),
        Column("count", "right"),
        Column("MACs", "right"),
        Column("share", "right", drop=2),
        Column("", style=BAR, drop=3),
        Column("params", "right"),
        Column("elementwise", "right", drop=1),
    )
    blocks: list[Block] = [*title(fact.model), Line(), Table(columns, rows, 0)]
    for stat in stats:
        if stat.attributes:
            found = [(Span(name, DIM), range_text(span)) for name, span in stat.attributes.items()]
            blocks += [
                Line(),
                Line(Span(stat.op, STRONG)),
                Table((Column(""), Column("", shrink=True)), found),
            ]
    return blocks


def range_text(span: Range) -> str:
    """The values of an attribute: one value, or the range and then the values with how often each occurs."""
    if span.distinct == 1:
        return _value_text(span.minimum if not span.values else span.values[0][0])
    listed = ", ".join(_value_text(v) + (f" ×{count:,}" if count > 1 else "") for v, count in span.values)
    more = f" and {span.distinct - len(span.values):,} more" if span.distinct > len(span.values) else ""
    if span.minimum is None or span.maximum is None:
        return listed + more
    return f"{_value_text(span.minimum)} .. {_value_text(span.maximum)}   ({listed}{more})"
