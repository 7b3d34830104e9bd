"""The tree of layers with what each costs: `explorer layers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from explorer.base.units import MACS, bytes_text, count_text, shape_text
from explorer.facts import Analysis, Layer, Shape, Totals, is_assumed
from explorer.report.blocks import Alike, Block, Cell, Column, Line, Paragraph, Span, Table
from explorer.report.present.figures import bar_text, count, quiet_zero, share_text, size
from explorer.report.present.look.info import answer

__all__ = ["doubt_text", "layer_share", "layers", "layers_blocks"]


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


def layer_share(row: Layer, whole: int | None) -> str:
    """A layer's share of the MACs; what does not run beside the rest, an If's cheaper branch, has none."""
    return share_text(row.macs, whole) if whole and row.counted else ""
