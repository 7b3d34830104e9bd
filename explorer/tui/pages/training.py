"""What one training step costs: a section of the Model tab, and lines of the Layer tab."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from explorer.base import units
from explorer.tui.text.lines import Line, Span, bytes_figure, count_figure, doubt, field, head, safe, wrap

if TYPE_CHECKING:
    from explorer.facts.training import LayerTraining, Training

__all__ = ["layer_training_lines", "model_training_lines"]


def model_training_lines(training: Training, width: int, exact: bool) -> list[Line]:
    """Totals of a training step, each figure by itself."""
    least = "≥ " if training.coverage < 1 else ""
    lines = [_title(training)]
    rows = (
        ("forward", training.forward_macs, count_figure),
        ("backward", training.backward_macs, count_figure),
        ("elemwise back", training.backward_elementwise_ops, count_figure),
        ("inputs", training.input_bytes, bytes_figure),
        ("kept outputs", training.activation_bytes, bytes_figure),
        ("params", training.param_bytes, bytes_figure),
        ("gradients", training.gradient_bytes, bytes_figure),
        ("optimizer", training.optimizer_bytes, bytes_figure),
        ("memory", training.sum_bytes, bytes_figure),
    )
    stored = ("inputs", "params", "gradients", "optimizer")
    for label, value, figure in rows:
        sign = least if label not in stored and value is not None else ""
        work = " operations" if label == "elemwise back" else " MACs"
        unit = work if figure is count_figure and value is not None else ""
        share = "" if figure is count_figure else units.percent_text(value, training.sum_bytes)
        tail = f"  {share}" if share not in ("", "?", "-") and label != "memory" else ""
        role = "warn" if value is None or sign else "number" if value else "dim"
        lines.extend(field(f" {label}", ((sign + figure(value, exact), role), (unit + tail, "dim")), width))
    for note in training.notes:
        lines.extend(wrap(((" ", "text"), (safe(note), "dim")), width, 1))
    return lines


def layer_training_lines(training: Training, first: int, last: int, width: int, exact: bool) -> list[Line]:
    """The part that the layers `first` to `last` have in a training step; nothing if they have none."""
    found = [x for x in training.layers if first <= x.layer <= last]
    if not found:
        return []
    lines = [_title(training)]
    weight, inward = _sum(found, "backward_weight_macs"), _sum(found, "backward_input_macs")
    for label, (value, least), figure, note in (
        ("forward", _sum(found, "forward_macs"), count_figure, " MACs"),
        ("weight grad", weight, count_figure, " MACs"),
        ("input grad", inward, count_figure, " MACs"),
        ("elemwise back", _sum(found, "backward_elementwise_ops"), count_figure, " operations"),
        ("kept outputs", _sum(found, "activation_bytes"), bytes_figure, ""),
        ("params", _sum(found, "param_bytes"), bytes_figure, ""),
        ("gradients", _sum(found, "gradient_bytes"), bytes_figure, ""),
        ("optimizer", _sum(found, "optimizer_bytes"), bytes_figure, ""),
    ):
        sign = "≥ " if least and value is not None else ""
        role = "warn" if value is None or sign else "number" if value else "dim"
        spans: list[Span] = [(sign + figure(value, exact), role), (note if value is not None else "", "dim")]
        lines.extend(field(f" {label}", spans, width))
    odd = next((x for x in found if x.status != "exact"), None)
    if odd is not None:
        said = f" {doubt(odd.status, odd.reason)}"
        lines.extend(wrap(((said, "warn"),), width, 1))
    return lines


def _title(training: Training) -> Line:
    batch = f"batch {training.batch:,}" if training.batch is not None else "batch as opened"
    return head(f" Training: {batch}, {training.optimizer}")


def _sum(layers: Sequence[LayerTraining], name: str) -> tuple[int | None, bool]:
    """A sum of what is known, and whether something is not."""
    values = [getattr(layer, name) for layer in layers]
    known = [value for value in values if value is not None]
    return (sum(known) if known else None), len(known) < len(values)
