"""The tree of layers with what each costs: `explorer layers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from explorer.base.units import MACS, bytes_text, count_text, shape_text
from explorer.facts import Analysis, Layer, Shape, Totals, is_assumed
from explorer.report.blocks import (
    Alike,
    Block,
    Cell,
    Column,
    Field,
    Fields,
    Heading,
    Line,
    Paragraph,
    Span,
    Table,
)
from explorer.report.present.figures import (
    bar_text,
    bytes_field,
    count,
    count_field,
    quiet_zero,
    share_text,
    size,
    value_text,
)
from explorer.report.present.look.info import answer, tensors_blocks

__all__ = [
    "doubt_text",
    "layer_blocks",
    "layer_parts",
    "layer_share",
    "layer_title",
    "layers",
    "layers_blocks",
]


def layers(fact: Analysis) -> list[Block]:
    """The answer of `explorer layers`."""
    return answer(fact.info, layers_blocks(fact))


def layers_blocks(fact: Analysis) -> list[Block]:
    """The tree, indented, with the cost of every row."""
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
        names.append(Span(name, "strong") if row.group else name)
        looks.append(alike.setdefault(look, look))
    largest = max((look.macs or 0 for look in alike if not look.group), default=0)
    cells = {look: _layer_cells(look, whole, largest) for look in alike}
    names.append(Span("total", "strong"))
    rows = Alike(names, [*[cells[look] for look in looks], _total_cells(totals)])
    columns = (
        Column("layer", shrink=True),
        Column("kind", shrink=True, drop=1),
        Column("shape" if bare else "output", drop=4),
        Column("params", "right"),
        Column("weights", "right", drop=6),
        Column("MACs", "right"),
        Column("share", "right", drop=2),
        Column("", role="bar", drop=5),
        Column("activations", "right", drop=7),
        Column("", shrink=True, drop=3, role="warning"),
    )
    unit = () if bare else (Line(), Paragraph(f"MACs: {MACS}.", "quiet"))
    return [Table(columns, rows, 0), *unit, *_functional_hint(totals)]


def _total_cells(totals: Totals) -> tuple[Cell, ...]:
    """The cells of the last row behind its name."""
    macs, activations = totals.macs, totals.activation_bytes_sum
    return (
        "",
        "",
        Span(count_text(totals.params), "strong"),
        Span(bytes_text(totals.weight_bytes), "strong"),
        Span((totals.sign if macs is not None else "") + count_text(macs), "strong"),
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
    return [Line(), Paragraph(text, "warning")]


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
        Span(row.kind, "quiet"),
        Span(shape, "quiet") if row.group else shape,
        quiet_zero(count(row.params)),
        quiet_zero(size(row.weight_bytes)),
        quiet_zero(count(row.macs)),
        share_text(row.macs, whole) if row.macs != 0 and whole and row.counted else "",
        "" if row.group or not row.counted else bar_text(row.macs, largest),
        quiet_zero(size(row.activation_bytes)),
        row.remark,
    )


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


def layer_blocks(layer: Layer, totals: Totals) -> list[Block]:
    """One layer: each figure with its share of the model and how it comes about."""
    # what lies in a group with an unknown part is a sum of what is known
    sign = ">= " if layer.group and layer.status == "unknown" else ""

    def share(part: int | None, whole: int | None, more: str = "") -> Cell:
        # what does not run beside the rest has no part in the model's work
        known = bool(part and whole and layer.counted)
        shares = share_text(part, whole) if known else ""
        return (f"{shares}  ", Span(more, "formula")) if more else shares

    def stored(part: int, whole: int) -> str:
        return share_text(part, whole) if part and whole else ""

    weights = layer.weight_bytes_read and f"{bytes_text(layer.weight_bytes_read)} of them weights"
    elementwise = count_field("Elementwise operations", layer.elementwise_ops, sign, "", "elementwise")
    rows = [
        count_field("MACs", layer.macs, sign, share(layer.macs, totals.macs, layer.formula)),
        *([elementwise] if layer.elementwise_ops != 0 else []),
        count_field("Parameters", layer.params, "", stored(layer.params, totals.params), "params"),
        bytes_field(
            *("Weight bytes", layer.weight_bytes, ""),
            *(stored(layer.weight_bytes, totals.weight_bytes), "weights"),
        ),
        bytes_field(
            *("Activations", layer.activation_bytes, sign),
            *(share(layer.activation_bytes, totals.activation_bytes_sum), "activations"),
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
        intensity = f"{2 * layer.macs / moved:.2f}"
        rows.append(Field("Arithmetic intensity", intensity, "FLOPs a byte", "intensity"))
    if layer.shared_with:
        shared = Span(", ".join(layer.shared_with[:8]), "formula")
        rows.append(Field("Shared with", shared))
    return [Fields(rows)]


def layer_title(layer: Layer, last: str = "", alike: int = 1) -> list[Block]:
    """What a layer is, and why its figures are not exact; of `alike` ones in a row `last` is the path."""
    calls = f" · called {layer.calls:,} times" if layer.calls != 1 else ""
    kind = layer.kind + " · tiled" * layer.tiled
    blocks: list[Block] = [
        Line(Span(layer.path or "(unnamed)", "strong")),
        Line((Span(kind, "formula"), Span(calls, "quiet"))),
    ]
    if alike > 1:
        blocks.append(Line(Span(f"first of {alike:,} identical blocks, to {last}", "formula")))
    if layer.status != "exact":
        blocks.append(Paragraph(doubt_text(layer) or f"{layer.status}: no reason given", "warning", 0))
    return [*blocks, Line()]


def layer_parts(layer: Layer, *, tensors: bool = True) -> list[Block]:
    """What a layer reads and writes (unless that is shown elsewhere), what it stores, and its attributes."""
    blocks = [
        *(tensors_blocks("Inputs", layer.inputs) if tensors else []),
        *(tensors_blocks("Outputs", layer.outputs) if tensors else []),
        *tensors_blocks("Tensors", layer.weights),
    ]
    if layer.attributes:
        rows = [
            (Span(name, "quiet"), Span(value_text(value, most=_ITEMS)[:_LETTERS], "figure"))
            for name, value in layer.attributes.items()
        ]
        blocks += [Line(), Heading("Attributes"), Table((Column(""), Column("")), rows, 1)]
    return blocks


_ITEMS, _LETTERS = 16, 400
"""Items of a list, and letters, to which an attribute is cut."""


def layer_share(row: Layer, whole: int | None) -> str:
    """A layer's share of the MACs; what does not run beside the rest, an If's cheaper branch, has none."""
    return share_text(row.macs, whole) if whole and row.counted else ""
