"""Text output of `explorer info`: source, inputs, outputs and totals of a model."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.base.units import MACS, bytes_text, dims_text, exact_text, format_coverage, shape_text
from explorer.facts import Info, ModelInfo, TensorInfo, TiledMacs, Totals, list_dimension_sizes
from explorer.facts.tiling import LeftOver
from explorer.report.blocks import (
    Block,
    Cell,
    Column,
    Field,
    Fields,
    Heading,
    Line,
    Paragraph,
    Rows,
    Span,
    Table,
)
from explorer.report.present.figures import (
    build_port_table,
    bytes_field,
    count,
    count_field,
    dash_zero,
    plain,
    share_text,
    size,
    value_text,
)
from explorer.session.headers import get_format_label


def answer(info: Info, blocks: Sequence[Block]) -> list[Block]:
    """Return an answer about one model: its title, `blocks`, and a hint if dimensions are unbound."""
    return [*title(info.model), Line(), *blocks, *build_dimension_hint(info)]


def info(fact: Info) -> list[Block]:
    """Return the answer of `explorer info`, which ends with all notes."""
    return [_build_title_line(fact.model), Line(), *_build_all_blocks(fact, figures(fact, moves_once=True))]


def build_totals_blocks(fact: Info) -> list[Block]:
    """Return the inputs and outputs, totals, work outside the tiles, assumptions and notes."""
    return _build_all_blocks(fact, figures(fact))


def _build_all_blocks(fact: Info, fields: Fields) -> list[Block]:
    ports: list[Block] = (
        [build_port_table(fact.model.inputs, fact.model.outputs), Line()]
        if fact.model.inputs or fact.model.outputs
        else []
    )
    return [*ports, fields, *_build_untiled_blocks(fact.tiled), *build_conditions(fact)]


def _build_traffic_field(totals: Totals) -> Field:
    """Return the bytes that move if each layer reads and writes every byte of its tensors once."""
    moved = None
    if totals.bytes_read is not None and totals.bytes_written is not None:
        moved = totals.bytes_read + totals.bytes_written
    remark = "bytes read + written: each layer moves each of its tensors once"
    return bytes_field("Every byte once", moved, totals.moved_sign, remark, "once")


def figures(fact: Info, *, moves_once: bool = False) -> Fields:
    """Return the totals, their coverage of the model, and the share of the work on tiles.

    Args:
        fact: Facts of the model.
        moves_once: Whether to add the bytes that move if each layer moves every byte of its tensors once.
    """
    totals = _build_total_fields(fact.totals, moves_once=moves_once)
    return Fields([*totals, _build_coverage_field(fact.totals), *_build_tiled_fields(fact.tiled)])


def headline(fact: Info) -> Fields:
    """Return the most important totals. An incomplete coverage comes second, so that it is always visible."""
    totals, sign = fact.totals, fact.totals.sign
    covered = Span(format_coverage(totals.coverage), "figure" if totals.coverage >= 1 else "warning")
    rows = [
        count_field("MACs", totals.macs, sign),
        count_field("params", totals.params, totals.stored_sign),
        bytes_field("weights", totals.weight_bytes, totals.stored_sign),
        bytes_field("peak", totals.activation_bytes_peak, totals.moved_sign),
    ]
    rows.insert(4 if totals.coverage >= 1 else 1, Field("coverage", covered))
    return Fields(rows)


def build_conditions(fact: Info, *, with_hint: bool = True) -> list[Block]:
    """Return the conditions of the figures: assumptions, unbound dimensions and notes.

    `with_hint` includes the options that bind dimensions.
    """
    return [
        *_build_assumptions(fact),
        *(build_dimension_hint(fact) if with_hint else []),
        *([Line()] if fact.model.notes else []),
        *(Paragraph(note, "warning") for note in fact.model.notes),
    ]


def overview(fact: Info) -> list[Block]:
    """Return the title of the model, its totals, and the work outside the tiles."""
    model = fact.model
    about = describe_model(model, model.format)
    return [
        Line(Span(model.source, "strong")),
        Line(Span(about, "formula")),
        Line(),
        figures(fact),
        *_build_untiled_blocks(fact.tiled),
    ]


def details(fact: Info) -> list[Block]:
    """Return the inputs and outputs, assumptions, live tensors at the peak, and the hash of the file.

    The screen shows them. It names a key for open sizes instead of an option.
    """
    model, totals = fact.model, fact.totals
    peak_note = f"at {totals.peak_at}" if totals.peak_at else ""
    sha = [Line(), Line(Span(f"sha256 {model.sha256}", "quiet"))] if model.sha256 else []
    return [
        *build_tensor_blocks("Inputs", model.inputs),
        *build_tensor_blocks("Outputs", model.outputs),
        *build_conditions(fact, with_hint=False),
        *build_tensor_blocks("Live at the peak", totals.peak_tensors, peak_note),
        *sha,
    ]


def build_tensor_blocks(title: str, tensors: Sequence[TensorInfo], note: str = "") -> list[Block]:
    """Return a table of tensors with a heading, and contradictory declarations; [] without tensors."""
    if not tensors:
        return []

    def row(tensor: TensorInfo) -> tuple[Cell, ...]:
        shape = shape_text(tensor.shape) + (" at most" if tensor.origin == "bound" else "")
        return tensor.name or "(unnamed)", tensor.dtype or "?", Span(shape, "figure")

    columns = (Column(""), Column("", role="quiet"), Column(""))
    conflicts = [t for t in tensors if t.conflict]
    return [
        Line(),
        Heading(title, note),
        Table(columns, Rows(row, tensors), 1, "tensors"),
        *(Paragraph(f"{t.name}: {t.conflict}", "warning") for t in conflicts),
    ]


def title(model: ModelInfo) -> list[Block]:
    """Return the line that identifies the model, and its notes if the shape of an input is guessed."""
    is_guessed = any(tensor.origin == "inferred" for tensor in model.inputs)
    notes = model.notes if is_guessed else ()
    return [_build_title_line(model), *(Paragraph(note, "warning") for note in notes)]


def _build_title_line(model: ModelInfo) -> Line:
    sha = f" · sha256 {model.sha256[:12]}" if model.sha256 else ""
    about = describe_model(model, get_format_label(model.format))
    return Line((Span(model.source, "strong"), Span(f"   {about}{sha}", "quiet")))


def describe_model(model: ModelInfo, kind: str) -> str:
    """Describe the format, the producer and the size: 'ONNX opset 17 · pytorch 2.1 · 12.00 KiB'."""
    parts = [
        f"{kind} opset {model.opset}" if model.opset else kind,
        model.producer,
        bytes_text(model.file_bytes) if model.file_bytes else "",  # a configuration has no file of weights
    ]
    return " · ".join(filter(None, parts))


def _build_total_fields(totals: Totals, *, moves_once: bool = False) -> list[Field]:
    """Return all totals, with the signs of inexact totals."""
    peak = "live at once, inputs too, no weights" + (f"; at {totals.peak_at}" if totals.peak_at else "")
    moved = None
    if totals.bytes_read is not None and totals.bytes_written is not None:
        moved = totals.bytes_read + totals.bytes_written
    if totals.trainable_params is None or totals.trainable_params == totals.params:
        trainable = "all trainable" if totals.trainable_params and totals.params else ""
    else:
        trainable = f"{exact_text(totals.trainable_params)} of them trainable"
    sign, moved_sign = totals.sign, totals.moved_sign
    intensity = "?"
    # the quotient of two bounds is unknown
    if totals.flops is not None and moved and not moved_sign:
        intensity = f"{sign}{totals.flops / moved:.2f}"
    summed = "modules without submodules" if totals.activation_bytes_functional is not None else "every node"
    at_peak, in_sum = totals.activation_bytes_peak, totals.activation_bytes_sum
    is_above = at_peak is not None and in_sum is not None and at_peak > in_sum
    # a sum over nodes is below the peak only because of the inputs, which the remark of the peak names
    is_partial = is_above and totals.activation_bytes_functional is not None
    inside = "; not the tensors inside a module" if is_partial else ""
    summed_field = bytes_field(
        *("Activations, sum", totals.activation_bytes_sum, moved_sign),
        *(f"outputs of {summed}, each once{inside}", "activ. sum"),
    )
    rows = [
        count_field("Parameters", totals.params, totals.stored_sign, trainable, "params"),
        bytes_field("Weight bytes", totals.weight_bytes, totals.stored_sign, "", "weights"),
        count_field("MACs", totals.macs, sign, MACS),
        count_field("FLOPs", totals.flops, sign, "2 x MACs"),
        count_field(
            *("Elementwise operations", totals.elementwise_ops, totals.sign_of("elementwise_ops")),
            *("not in the FLOPs", "elementwise"),
        ),
        summed_field,
        bytes_field("Activations, peak", totals.activation_bytes_peak, moved_sign, peak, "activ. peak"),
        bytes_field("Bytes read", totals.bytes_read, moved_sign, _format_read_split(totals), "reads"),
        bytes_field("Bytes written", totals.bytes_written, moved_sign, "", "writes"),
        *([_build_traffic_field(totals)] if moves_once else []),
        Field("Arithmetic intensity", intensity, "FLOPs per byte read or written", "intensity"),
        Field("Nodes", plain(totals.nodes)),
    ]
    if totals.kv_cache_bytes is not None:
        cache = totals.kv_cache_bytes
        rows.insert(2, bytes_field("Key-value cache", cache, sign, "read by the attention", "KV cache"))
    if totals.activation_bytes_functional is not None:
        functional_bytes = totals.activation_bytes_functional
        index = rows.index(summed_field) + 1
        rows.insert(
            index,
            bytes_field("Activations, functions", functional_bytes, moved_sign, _FUNCTIONS, "functions"),
        )
    return rows


def _format_read_split(totals: Totals) -> Cell:
    """Format the bytes read, split into what the model stores and activations."""
    if totals.bytes_read is None or totals.weight_bytes_read is None:
        return ""
    activations = totals.bytes_read - totals.weight_bytes_read
    is_module = totals.activation_bytes_functional is not None
    stored = "weights and buffers" if is_module else "weights"
    return size(totals.weight_bytes_read), f" of {stored}, ", size(activations), " of activations"


def _build_coverage_field(totals: Totals) -> Field:
    if totals.coverage >= 1:
        return Field("Coverage", "100 %", _COVERED[totals.status])
    remark = "the totals leave out the other nodes, whose cost is unknown: ? marks them among the layers"
    if not totals.nodes:
        remark = "unknown operator"
    # never round up to 100 %, because the coverage is incomplete
    share = format_coverage(totals.coverage) if totals.nodes else "0.0 %"
    return Field(Span("Coverage", "warning"), Span(share, "warning"), Span(remark, "warning"))


_FUNCTIONS = "outputs of functions such as torch.relu and +, not in the line above"

_COVERED = {
    "exact": "the cost of each node is known",
    "bound": "every node is counted, some at an upper bound",
    "assumed": "every node is counted, some under an assumption",
    "unknown": "every node is counted",
}
"""Remark for a coverage of 100 %, by the status of the totals."""


def _build_tiled_fields(tiled: TiledMacs | None) -> list[Field]:
    """Return the share of the MACs that tile matmuls compute."""
    if tiled is None:
        return []
    sizes = f"for {dims_text(tiled.dims)}: " if tiled.dims else ""
    remark = f"{sizes}{tiled.sign}{exact_text(tiled.products)} tile matmuls"
    remark += "; MACs of the padding included" if tiled.padded else ""
    share = Span(
        format_coverage(tiled.share), exact=f"{tiled.sign}{exact_text(tiled.macs)}", value=tiled.share
    )
    return [Field("MACs on tiles", share, remark)]


def _build_untiled_blocks(tiled: TiledMacs | None) -> list[Block]:
    """Return a table of the operators with MACs outside the tiles, and the reasons."""
    if tiled is None or not tiled.left:
        return []

    def row(left_over: LeftOver) -> tuple[Cell, ...]:
        return (
            plain(left_over.count),
            left_over.op,
            Span(
                left_over.name
                if left_over.count == 1
                else f"{left_over.name} and {left_over.count - 1:,} more",
                "quiet",
            ),
            dash_zero(count(left_over.macs)),
            share_text(left_over.macs, tiled.macs_total) if left_over.macs else "",
            Span(left_over.reason, "warning"),
        )

    columns = (
        Column("", "right"),
        Column("not on tiles"),
        Column("", shrink=True, drop=1),
        Column("MACs", "right"),
        Column("share", "right"),
        Column(""),
    )
    return [Line(), Table(columns, Rows(row, tiled.left), what="kinds", more="--json has all")]


def _build_assumptions(fact: Info) -> list[Block]:
    rows: list[tuple[Cell, ...]] = []
    for key, value in fact.assumptions.items():
        if value in (None, "", (), {}, []):
            continue
        rows.append((Span(str(key), "quiet"), value_text(value)))
    return (
        [Line(), Line(Span("assumed", "quiet"), 2), Table((Column(""), Column("")), rows, 4)] if rows else []
    )


def build_dimension_hint(fact: Info) -> list[Block]:
    """Return a hint how to bind symbolic dimensions, or [] if all are bound."""
    unbound = [name for name, size in list_dimension_sizes(fact).items() if size is None]
    if not unbound:
        return []
    options = " ".join(f"--dim {name}=1" for name in unbound)
    return [
        Line(),
        Paragraph(f"Some dimensions are symbolic; bind them to get every figure: {options}", "warning"),
    ]
