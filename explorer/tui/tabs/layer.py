"""The Layer tab: everything known of the layer under the cursor, each figure with its formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from explorer.base import units
from explorer.tui.text.lines import (
    BLANK,
    Line,
    Span,
    bytes_figure,
    count_figure,
    doubt,
    field,
    fit,
    head,
    middle,
    safe,
    wrap,
)

if TYPE_CHECKING:
    from explorer.facts import Layer, TensorInfo, Totals

__all__ = ["attribute_lines", "layer_page", "tensor_lines", "value_text"]

_MAX_TENSORS = 200


def layer_page(
    layers: Sequence[Layer],
    totals: Totals,
    width: int,
    exact: bool,
    more: Sequence[Callable[[int], list[Line]]] = (),
) -> list[Line]:
    """The page of one layer, or of a run of identical blocks (the first stands for all).

    `more` are parts that were computed on demand; they stand before what the layer is made of.
    """
    layer = layers[0]
    width = width - 1
    lines: list[Line] = []
    for path in wrap(((" ", "text"), (safe(layer.path) or "(unnamed)", "strong")), width, 1):
        lines.append(path)
    about: list[Span] = [(" ", "text"), (safe(layer.kind), "accent")]
    if layer.tiled:
        about.append((" · tiled", "accent"))
    if layer.calls != 1:
        about.append((f" · called {layer.calls:,} times", "dim"))
    lines.extend(wrap(about, width, 1))
    if len(layers) > 1:
        said = f"first of {len(layers)} identical blocks, to {safe(layers[-1].path)}"
        lines.extend(wrap(((" ", "text"), (said, "accent")), width, 1))
    if layer.status != "exact":
        said = doubt(layer.status, layer.reason)
        lines.extend(wrap(((" ", "text"), (said, "warn")), width, 1))
    lines.append(BLANK)
    lines.extend(_figures(layer, totals, width, exact))
    if layer.shared_with:
        shared = ", ".join(safe(path) for path in layer.shared_with[:8])
        lines.extend(field(" shared with", ((shared, "accent"),), width))
    for part in more:
        if made := part(width):
            lines += [BLANK, *made]
    for title, tensors in (("Inputs", layer.inputs), ("Outputs", layer.outputs), ("Tensors", layer.weights)):
        if tensors:
            lines += [BLANK, head(f" {title}"), *tensor_lines(tensors, width)]
    if layer.attributes:
        lines += [BLANK, head(" Attributes"), *attribute_lines(layer.attributes, width)]
    return lines


def _figures(layer: Layer, totals: Totals, width: int, exact: bool) -> list[Line]:
    # what lies in a group with an unknown part is a sum of what is known
    part = layer.group and layer.status == "unknown"

    def share(part: int | None, whole: int | None, *, stored: bool = False) -> Span:
        # what does not run beside the rest has no part in the model's work, only in what it stores
        said = units.percent_text(part, whole) if stored or layer.counted else "-"
        return ("" if said in ("-", "?") else f"  {said}", "dim")

    lines = field(
        " MACs",
        (_figure(count_figure(layer.macs, exact), layer.macs, part), share(layer.macs, totals.macs)),
        width,
    )
    if layer.formula:
        lines.extend(field("", ((safe(layer.formula), "dim"),), width))
    if layer.elementwise_ops:
        lines.extend(
            field(" elementwise", (_figure(count_figure(layer.elementwise_ops, exact), 1, part),), width)
        )
    lines.extend(
        field(
            " params",
            (
                _figure(count_figure(layer.params, exact), layer.params),
                share(layer.params, totals.params, stored=True),
            ),
            width,
        )
    )
    rows = (
        (" weights", layer.weight_bytes, totals.weight_bytes),
        (" activations", layer.activation_bytes, totals.activation_bytes_sum),
        (" reads", layer.bytes_read, totals.bytes_read),
        (" writes", layer.bytes_written, totals.bytes_written),
    )
    for label, value, whole in rows:
        least = part and label != " weights"
        figure = _figure(bytes_figure(value, exact), value, least)
        lines.extend(field(label, (figure, share(value, whole, stored=label == " weights")), width))
        if label == " reads" and layer.weight_bytes_read and value is not None:
            said = f"{bytes_figure(layer.weight_bytes_read, exact)} of them weights"
            lines.extend(field("", ((said, "dim"),), width))
    if layer.kv_cache_bytes is not None:
        figure = _figure(bytes_figure(layer.kv_cache_bytes, exact), layer.kv_cache_bytes)
        lines.extend(field(" KV cache", (figure,), width))
    if layer.macs and layer.bytes_read is not None and layer.bytes_written is not None:
        moved = layer.bytes_read + layer.bytes_written
        if moved:
            intensity = f"{2 * layer.macs / moved:.2f} FLOPs a byte"
            lines.extend(field(" intensity", ((intensity, "number"),), width))
    return lines


def _figure(said: str, value: int | None, least: bool = False) -> Span:
    if least and value is not None:
        return (f"≥ {said}", "warn")
    return (said, "warn" if value is None else "number" if value else "dim")


def tensor_lines(tensors: Sequence[TensorInfo], width: int) -> list[Line]:
    """A tensor a line: name, dtype, shape; two lines where they do not fit beside each other."""
    lines: list[Line] = []
    shown = tensors[:_MAX_TENSORS]
    longest = max((len(safe(t.name)) for t in shown), default=0)
    name_width = min(longest, max(8, width - 2 - 32))
    for tensor in shown:
        name, shape = safe(tensor.name) or "(unnamed)", units.shape_text(tensor.shape)
        kind = tensor.dtype or "?"
        shape += " at most" if tensor.origin == "bound" else ""
        if len(name) <= name_width and 2 + name_width + 2 + len(kind) + 1 + len(shape) <= width:
            spans = ((f" {fit(name, name_width)}  ", "text"), (kind + " ", "dim"), (shape, "number"))
            lines.append(spans)
        else:
            lines.append(((f" {middle(name, width - 1)}", "text"),))
            lines.extend(wrap((("   ", "text"), (kind + " ", "dim"), (shape, "number")), width, 3))
        if tensor.conflict:
            lines.extend(wrap((("   ", "text"), (f"conflict: {safe(tensor.conflict)}", "warn")), width, 3))
    if len(tensors) > len(shown):
        lines.append(((f" {len(shown):,} of {len(tensors):,} shown", "dim"),))
    return lines


def attribute_lines(attributes: Mapping[str, Any], width: int) -> list[Line]:
    """An attribute a line."""
    label_width = min(max((len(safe(name)) for name in attributes), default=0) + 3, 20)
    lines: list[Line] = []
    for name, value in attributes.items():
        label = fit(" " + safe(name), label_width - 1) + " "
        lines.extend(field(label, ((value_text(value), "number"),), width, label_width=label_width))
    return lines


def value_text(value: Any) -> str:
    """An attribute's value in words, long ones cut."""
    if isinstance(value, float):
        said = f"{value:g}"
    elif isinstance(value, (list, tuple)):
        said = "[" + ", ".join(value_text(v) for v in value[:16]) + (", …]" if len(value) > 16 else "]")
    elif isinstance(value, bytes):
        said = value[:200].decode("utf-8", "backslashreplace")
    else:
        said = str(value)
    return safe(said[:400] + ("…" if len(said) > 400 else ""))
