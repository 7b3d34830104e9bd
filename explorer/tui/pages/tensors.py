"""Tensors and attributes, as lines of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from explorer.base import units
from explorer.tui.text.lines import Line, field, fit, middle, safe, wrap

if TYPE_CHECKING:
    from explorer.facts import TensorInfo

__all__ = ["attribute_lines", "tensor_lines", "value_text"]

_MAX_TENSORS = 200


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
