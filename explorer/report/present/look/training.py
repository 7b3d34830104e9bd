"""Work and memory of one training step: `explorer training`."""

from __future__ import annotations

from explorer.facts import Info
from explorer.facts.training import LayerTraining, Training
from explorer.report.blocks import Block, Cell, Column, Field, Fields, Line, Paragraph, Rows, Span, Table
from explorer.report.present.figures import bytes_field, count, count_field, plain, quiet_zero, size
from explorer.report.present.look.info import answer

__all__ = ["training", "training_blocks"]


def training(about: Info, fact: Training) -> list[Block]:
    """The answer of `explorer training`."""
    return answer(about, training_blocks(about, fact))


def training_blocks(about: Info, fact: Training) -> list[Block]:
    """Work and memory of one step, in total and layer by layer."""
    # the most of forward is the most of backward: both follow from the same sizes
    sign = ">= " if fact.coverage < 1 else about.totals.sign
    step = None
    if fact.forward_macs is not None and fact.backward_macs is not None:
        step = fact.forward_macs + fact.backward_macs
    figures = [
        Field("Batch", plain(fact.batch)),
        count_field("MACs, forward", fact.forward_macs, sign),
        count_field("MACs, backward", fact.backward_macs, sign, "gradients of inputs and of weights"),
        count_field("MACs, step", step, sign),
        count_field("Elementwise operations", fact.elementwise_ops, sign, "forward"),
        count_field(
            *("Elementwise, backward", fact.backward_elementwise_ops, sign),
            "as many for inputs, again for parameters",
        ),
        bytes_field("Input", fact.input_bytes, sign),
        bytes_field("Kept outputs", fact.activation_bytes, sign, "of every layer, for backward"),
        bytes_field("Weight bytes", fact.param_bytes, ""),
        bytes_field("Gradients", fact.gradient_bytes, "", "of what is trained"),
        bytes_field("Optimizer", fact.optimizer_bytes, "", _OPTIMIZERS[fact.optimizer]),
        bytes_field("Memory, sum", fact.sum_bytes, sign, "of the five above"),
    ]
    columns = (
        Column("layer", shrink=True),
        Column("kind", shrink=True, drop=1),
        Column("forward", "right"),
        Column("grad of input", "right"),
        Column("grad of weight", "right"),
        Column("kept", "right", drop=2),
        Column("params", "right", drop=5),
        Column("gradients", "right", drop=3),
        Column("optimizer", "right", drop=4),
        Column("", shrink=True, role="warning", drop=6),
    )
    return [
        Fields(figures),
        Line(),
        Table(columns, Rows(_training_row, fact.layers), what="layers"),
        *([Line()] if fact.notes else []),
        *(Paragraph(note, "warning") for note in fact.notes),
    ]


_OPTIMIZERS = {
    "sgd": "SGD keeps nothing",
    "momentum": "SGD with momentum keeps 1 number a parameter",
    "adam": "Adam keeps 2 numbers a parameter",
}


def _training_row(row: LayerTraining) -> tuple[Cell, ...]:
    counts = (row.forward_macs, row.backward_input_macs, row.backward_weight_macs)
    sizes = (row.activation_bytes, row.param_bytes, row.gradient_bytes, row.optimizer_bytes)
    return (
        row.path,
        Span(row.kind, "quiet"),
        *(quiet_zero(count(value)) for value in counts),
        *(quiet_zero(size(value)) for value in sizes),
        row.reason,
    )
