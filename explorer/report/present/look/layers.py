"""Text output for a layer: its type, costs, inputs, outputs and stored tensors."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.base.units import bytes_text, printable
from explorer.facts import Layer, OpStat, Totals, sum_activation_bytes
from explorer.facts.external.overlay import Overlay
from explorer.report.blocks import Block, Cell, Column, Field, Fields, Heading, Line, Paragraph, Span, Table
from explorer.report.present.figures import bytes_field, count_field, format_in_unit, share_text, value_text
from explorer.report.present.look.info import build_tensor_blocks


def describe_doubt(row: Layer) -> str:
    """Return the reason that the figures of a row are inexact, or ''."""
    is_bound = row.reason and row.status == "bound" and not row.assumed
    return f"upper bound: {row.reason}" if is_bound else row.reason


def build_overlay_fields(fact: Overlay | None, row: int) -> list[Field]:
    """Return the external figures of a row, labeled with their columns."""
    fields = []
    for column in () if fact is None else fact.columns:
        figures = fact.figures[column.name] if fact is not None else {}
        if row in figures:
            # with negative figures, a share is meaningless
            part, model_figure = figures[row], figures.get(-1, 0)
            share_of_model = (
                share_text(part, model_figure) if column.over == "sum" and 0 < part <= model_figure else ""
            )
            fields.append(Field(printable(column.head), format_in_unit(column.unit, part), share_of_model))
    return fields


def describe_same_names(path: str, other_paths: Sequence[str]) -> str:
    """Return a note that several layers have the same name in the file, or ''."""
    if not other_paths:
        return ""
    paths_text = ", ".join(printable(twin) for twin in other_paths[:_MAX_SAME_NAMES]) + ", …" * (
        len(other_paths) > _MAX_SAME_NAMES
    )
    text = f"'{printable(path)}' is the first of {len(other_paths) + 1:,} layers of that name"
    return f"{text}: {'the other is' if len(other_paths) == 1 else 'the others are'} {paths_text}"


def find_work_sign(row: Layer | OpStat) -> str:
    """Return the sign in front of a row's operations: '<= ' for an upper bound, '~ ' for an assumption."""
    if row.status != "bound":
        return ""
    return "~ " if row.assumed else "<= "


_MAX_SAME_NAMES = 4
"""Maximum number of layers with the same name that are listed."""
_MAX_SHARING = 8
"""Maximum number of layers with the same weights that are listed."""


def layer_blocks(layer: Layer, totals: Totals, outside: Sequence[Field] = ()) -> list[Block]:
    """Return the figures of a layer with shares and formulas, followed by external figures (`outside`)."""
    # the figure of a group with unknown members is the sum of the known ones
    sign = ">= " if layer.group and layer.status == "unknown" else ""
    work_sign = sign or find_work_sign(layer)
    sign = "" if layer.work_bound else work_sign  # then only the operations are bounds, not the bytes

    def share(part: int | None, total: int | None, formula: str = "") -> Cell:
        # work that is not counted in the totals has no share
        has_share = bool(part and total and layer.counted)
        shares = share_text(part, total) if has_share else ""
        return (f"{shares}  ", Span(formula, "formula")) if formula else shares

    def weight_share(part: int, total: int) -> str:
        return share_text(part, total) if part and total else ""

    weights = layer.weight_bytes_read and f"{bytes_text(layer.weight_bytes_read)} of them weights"
    # without MACs, the formula is that of the elementwise operations
    is_elementwise = not layer.macs and bool(layer.elementwise_ops)
    is_free = layer.formula.startswith("0 (") and layer.formula.endswith(")")
    # the figure already shows the 0 of '0 (reason)'
    formula = layer.formula[3:-1] if is_free else layer.formula
    elementwise_formula: Cell = Span(formula, "formula") if is_elementwise else ""
    elementwise = count_field(
        "Elementwise operations", layer.elementwise_ops, work_sign, elementwise_formula, "elementwise"
    )
    rows = [
        count_field(
            *("MACs", layer.macs, work_sign),
            share(layer.macs, totals.macs, "" if is_elementwise else formula),
        ),
        *([elementwise] if layer.elementwise_ops != 0 else []),
        count_field("Parameters", layer.params, "", weight_share(layer.params, totals.params), "params"),
        bytes_field(
            *("Weight bytes", layer.weight_bytes, ""),
            *(weight_share(layer.weight_bytes, totals.weight_bytes), "weights"),
        ),
        bytes_field(
            *("Activations", layer.activation_bytes, sign),
            *(share(layer.activation_bytes, sum_activation_bytes(totals)), "activations"),
        ),
        bytes_field(
            "Bytes read",
            *(layer.bytes_read, sign, share(layer.bytes_read, totals.bytes_read, weights or ""), "reads"),
        ),
        bytes_field(
            "Bytes written",
            *(layer.bytes_written, sign, share(layer.bytes_written, totals.bytes_written), "writes"),
        ),
    ]
    if layer.kv_cache_bytes is not None:
        rows.append(bytes_field("Key-value cache", layer.kv_cache_bytes, short="KV cache"))
    moved = (layer.bytes_read or 0) + (layer.bytes_written or 0)
    if layer.macs and moved and None not in (layer.bytes_read, layer.bytes_written):
        intensity = f"{work_sign}{2 * layer.macs / moved:.2f}" if not sign else "?"
        rows.append(Field("Arithmetic intensity", intensity, "FLOPs a byte", "intensity"))
    rows += outside
    if layer.shared_with:
        # the names are in the remark, because they would widen the column of the figures
        shared_paths = ", ".join(layer.shared_with[:_MAX_SHARING]) + ", …" * (
            len(layer.shared_with) > _MAX_SHARING
        )
        remark = Span(f"{describe_part_read(layer)}{shared_paths}", "formula")
        rows.append(Field("Shared with", f"{len(layer.shared_with):,}", remark))
    return [Fields(rows)]


def describe_part_read(row: Layer) -> str:
    """Describe how much a layer reads of weights that it shares, such as a single tile of it.

    The row has the parameters of the whole weight. The text is empty if the layer reads all of it.
    """
    read, weight_bytes = row.weight_bytes_read, row.weight_bytes
    if row.group or read is None or weight_bytes is None or not 0 < read < weight_bytes:
        return ""
    return f"reads {bytes_text(read)} of the weight, "


def layer_title(layer: Layer, last: str = "", alike: int = 1) -> list[Block]:
    """Return the type of a layer, and why its figures are inexact.

    Args:
        layer: The layer, or the first of a run of identical blocks.
        last: Path of the last block of the run.
        alike: Number of blocks in the run.
    """
    calls = f" · called {layer.calls:,} times" if layer.calls != 1 else ""
    kind = layer.kind + " · tiled" * layer.tiled
    # the path of an unnamed node is the name of its output, which lacks the name in the tree
    calls = f" · {layer.name} in the tree{calls}" if layer.name not in layer.path else calls
    blocks: list[Block] = [
        Line(Span(layer.path or "(unnamed)", "strong")),
        Line((Span(kind, "formula"), Span(calls, "quiet"))),
    ]
    if alike > 1:
        blocks.append(Line(Span(f"first of {alike:,} identical blocks, to {last}", "formula")))
    if layer.status != "exact":
        blocks.append(Paragraph(describe_doubt(layer) or f"{layer.status}: no reason given", "warning", 0))
    return [*blocks, Line()]


def layer_parts(layer: Layer, *, tensors: bool = True) -> list[Block]:
    """Return the inputs and outputs of a layer (if `tensors`), its stored tensors, and its attributes."""
    blocks = [
        *(build_tensor_blocks("Inputs", layer.inputs) if tensors else []),
        *(build_tensor_blocks("Outputs", layer.outputs) if tensors else []),
        *build_tensor_blocks("Tensors", layer.weights),
    ]
    if layer.attributes:
        rows = [
            (Span(name, "quiet"), Span(value_text(value, max_items=_MAX_ITEMS)[:_MAX_CHARACTERS], "figure"))
            for name, value in layer.attributes.items()
        ]
        blocks += [Line(), Heading("Attributes"), Table((Column(""), Column("")), rows, 1)]
    return blocks


_MAX_ITEMS, _MAX_CHARACTERS = 16, 400
"""Maximum items of a list, and maximum characters of an attribute's value."""
