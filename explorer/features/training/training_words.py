"""Text output of `explorer training`: work and memory of one training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import get_args

from explorer.base.units import bytes_text, exact_text
from explorer.facts import Info
from explorer.facts.training import (
    Holding,
    LayerTraining,
    Optimizer,
    StepMemory,
    Training,
    TrainingMemory,
    TrainingMoment,
)
from explorer.report.blocks import (
    Block,
    Cell,
    Chart,
    Column,
    Field,
    Fields,
    Heading,
    Line,
    Paragraph,
    Rows,
    Span,
    Table,
    table_of,
)
from explorer.report.present.figures import (
    bytes_field,
    count,
    count_field,
    dash_zero,
    plain,
    share_text,
    size,
)
from explorer.report.present.look.info import build_dimension_hint, title


def training(info: Info, fact: Training) -> list[Block]:
    """Build the output of `explorer training`."""
    hint = build_dimension_hint(info) if fact.coverage < 1 else []  # a batch may bind all open sizes
    return [*title(info.model), Line(), *training_blocks(info, fact), *hint]


def training_blocks(info: Info, fact: Training) -> list[Block]:
    """Build the work and memory of one step, in total and for each layer."""
    table = table_of(
        fact.layers,
        (
            (Column("layer", shrink=True), lambda row: row.path),
            (Column("kind", shrink=True, drop=1), lambda row: Span(row.kind, "quiet")),
            (Column("forward", "right"), lambda row: dash_zero(count(row.forward_macs))),
            (Column("grad of input", "right"), lambda row: dash_zero(count(row.backward_input_macs))),
            (Column("grad of weight", "right"), lambda row: dash_zero(count(row.backward_weight_macs))),
            (Column("outputs", "right", drop=2), lambda row: dash_zero(size(row.activation_bytes))),
            (Column("params", "right", drop=5), lambda row: dash_zero(size(row.param_bytes))),
            (Column("gradients", "right", drop=3), lambda row: dash_zero(size(row.gradient_bytes))),
            (Column("optimizer", "right", drop=4), lambda row: dash_zero(size(row.optimizer_bytes))),
            (
                Column("", shrink=True, role="warning", drop=6),
                lambda row: row.reason or (_SHARED if _has_only_shared(row) else ""),
            ),
        ),
        what="layers",
    )
    return [
        build_step_fields(info, fact),
        Line(),
        table,
        *([Line()] if fact.notes else []),
        *(Paragraph(note, "warning") for note in fact.notes),
        *(memory_blocks(fact.memory) if fact.memory is not None else []),
        *build_output_fields(info, fact),
    ]


_SHARED = "its parameters are shared: see an earlier row"


def _has_only_shared(row: LayerTraining) -> bool:
    """Whether a layer trains a weight whose bytes an earlier layer has."""
    return bool(row.backward_weight_macs) and not row.param_bytes


def memory_blocks(fact: TrainingMemory) -> list[Block]:
    """Build a table of all steps, then the memory of the first step over time.

    The blocks show the peak, the tensors that are live at the peak, and every module in each phase.
    """
    first, several = fact.steps[0], len(fact.steps) > 1
    method = {"autograd": "as torch's autograd keeps it", "outputs": "counted by the outputs of layers"}
    return [
        Line(),
        Heading("Memory over time", method[first.counted]),
        *build_memory_table(fact),
        Line(),
        Heading("live at the peak", f"of batch {first.batch}, as the phases below" if several else ""),
        Table(
            (Column("what"), Column("of", shrink=True), Column("bytes", "right"), Column("of peak", "right")),
            [
                (
                    holder.kind,
                    holder.path or _WHOLE_MODEL,
                    size(holder.bytes),
                    share_text(holder.bytes, first.peak_bytes),
                )
                for holder in first.holders
            ],
        ),
        Chart("memory-over-time", fact),
        Line(),
        _build_moment_table(first),
        Paragraph(f"A letter in 'parts' is 1/{_BAR_WIDTH} of the peak: {_PART_LETTERS}.", "quiet"),
        Paragraph("Here, parameters include buffers, such as running statistics.", "quiet"),
        Paragraph(_TEMPORARY_TEXT, "quiet"),
        *([Line()] if fact.notes else []),
        *(Paragraph(note, "warning") for note in fact.notes),
    ]


def build_memory_table(fact: TrainingMemory) -> list[Block]:
    """Build a table of kept and peak memory with a row for each batch; state the largest batch that fits."""
    columns = [
        Column("batch", "right"),
        Column("kept", "right"),
        Column("peak", "right"),
        Column("at", shrink=True),
    ]
    if fact.limit_bytes is not None:
        columns.append(Column("fits"))
    if any(step.measured for step in fact.steps):
        columns += [Column("measured peak", "right"), Column("measured / counted", "right"), Column("in")]
    if fact.checkpoint:
        columns += [
            Column("kept, saved", "right"),
            Column("peak, saved", "right"),
            Column("MACs again", "right"),
        ]
    blocks: list[Block] = [Table(columns, [_build_step_row(step) for step in fact.steps])]
    if any(step.measured for step in fact.steps):
        blocks.append(Paragraph(_MEASURED, "quiet"))
    if fact.largest_batch is not None:
        fit_text = f"up to batch {fact.largest_batch:,}" if fact.largest_batch else "no batch"
        fit = f"fits in {bytes_text(fact.limit_bytes or 0)}: ", Span(fit_text, "strong")
        cpu_note = f"   {_COUNTED_ON_CPU}" if fact.steps[0].counted == "autograd" else ""
        blocks.append(Line((*fit, Span(cpu_note, "warning"))))
    if fact.checkpoint:
        more_text = f" and {len(fact.checkpointed) - 1:,} more" if len(fact.checkpointed) > 1 else ""
        blocks.append(Line(Span(f"checkpointed: {fact.checkpointed[0]}{more_text}", "quiet")))
    return blocks


_COUNTED_ON_CPU = "counted as on a CPU: CUDA needs more, see the notes below"
_MEASURED = "Measured: one step on the CPU, as torch's allocator reports it, with workspaces inside kernels."


def _build_step_row(step: StepMemory) -> tuple[Cell, ...]:
    peak = step.moments[step.peak]
    figures = (size(value, _find_memory_sign(step)) for value in (step.kept_bytes, step.peak_bytes))
    row: list[Cell] = [plain(step.batch), *figures, _format_moment(peak)]
    if step.fits is not None:
        row.append(Span("yes", "good") if step.fits else Span("no", "warning"))
    if step.measured is not None:
        measured = step.measured
        ratio = f"{measured.peak_bytes / max(1, step.peak_bytes):.2f}"
        row += [size(measured.peak_bytes), ratio, measured.peak_phase]
    if step.plain_kept_bytes is not None and step.plain_peak_bytes is not None:
        saved = step.plain_kept_bytes - step.kept_bytes, step.plain_peak_bytes - step.peak_bytes
        row += [*map(_format_saved_bytes, saved), count(step.recomputed_macs)]
    return tuple(row)


def _find_memory_sign(step: StepMemory) -> str:
    return "~ " if step.assumption else ""


def _format_saved_bytes(value: int) -> Span:
    """Format the bytes that checkpointing saves; a negative number is an increase."""
    figure = size(abs(value))
    return figure if value >= 0 else Span(f"-{figure.text}", "warning", value=value)


def _format_moment(moment: TrainingMoment) -> str:
    phase = "the optimizer's step" if moment.phase == "step" else moment.phase
    return f"{phase}, {moment.path}" if moment.path else phase


def _build_moment_table(step: StepMemory) -> Table:
    """Build a table with a row for each module in each phase, and a bar of its live memory."""
    columns = (
        Column("phase"),
        Column("module", shrink=True),
        *(Column(kind, "right", drop=index + 1) for index, kind in enumerate(_KINDS)),
        Column("live", "right"),
        Column("parts"),
    )

    def row(moment: TrainingMoment) -> tuple[Cell, ...]:
        parts = [getattr(moment, kind) for kind in _KINDS]
        figures = (dash_zero(size(part)) for part in parts)
        stack = _draw_stack(parts, step.peak_bytes)
        return moment.phase, moment.path or _WHOLE_MODEL, *figures, size(moment.live_bytes), stack

    return Table(columns, Rows(row, step.moments), what="moments", around=step.peak, more="--json has all")


def _draw_stack(parts: Sequence[int], largest: int) -> str:
    """Draw a bar of several parts, in which the letter of a cell is the first letter of the part's kind."""
    ends = [round(_BAR_WIDTH * sum(parts[: index + 1]) / max(1, largest)) for index in range(len(parts))]
    pairs = zip(_KINDS, ends, [0, *ends[:-1]], strict=True)
    return "".join(kind[0] * (end - start) for kind, end, start in pairs)


def build_step_fields(info: Info, fact: Training) -> Fields:
    """Build the fields for work and memory of one step of the whole model."""
    forward_sign, backward_sign = _find_signs(info, fact, "macs")
    step_macs = None
    if fact.forward_macs is not None and fact.backward_macs is not None:
        step_macs = fact.forward_macs + fact.backward_macs
    elementwise_signs = _find_signs(info, fact, "elementwise_ops")
    gradients = "gradients of inputs and of weights"
    step = _find_shown_step(fact)
    if step is None:
        kept_field = _build_outputs_field(info, fact, "of every layer, for backward")
        memory_sign, _ = _find_signs(info, fact, "activation_bytes")
        total = bytes_field(
            "Memory, sum", fact.sum_bytes, memory_sign, "input, outputs, weights, gradients, optimizer"
        )
    else:
        by_autograd = step.counted == "autograd"
        memory_sign = (
            _find_memory_sign(step) if by_autograd else _find_signs(info, fact, "activation_bytes")[0]
        )
        name = "Kept by autograd" if by_autograd else "Kept outputs"
        kept_field = bytes_field(name, step.kept_bytes, memory_sign, "for backward")
        peak = step.moments[step.peak]
        total = bytes_field("Memory, peak", step.peak_bytes, memory_sign, f"at {_format_moment(peak)}")
    return Fields(
        [
            Field("Batch", plain(fact.batch)),
            kept_field,
            total,
            count_field("MACs, forward", fact.forward_macs, forward_sign),
            count_field("MACs, backward", fact.backward_macs, backward_sign, gradients),
            count_field("MACs, step", step_macs, _join_signs(forward_sign, backward_sign)),
            count_field(
                *("Elementwise operations, forward", fact.elementwise_ops, elementwise_signs[0]),
                *(_explain_other_kernels(info, fact), "elementwise"),
            ),
            count_field(
                *("Elementwise operations, backward", fact.backward_elementwise_ops, elementwise_signs[1]),
                *(gradients, "elem. backward"),
            ),
            bytes_field("Input", fact.input_bytes, ""),
            bytes_field("Weight bytes", fact.param_bytes, ""),
            bytes_field("Gradients", fact.gradient_bytes, "", "of trained parameters"),
            bytes_field("Optimizer", fact.optimizer_bytes, "", OPTIMIZERS[fact.optimizer]),
        ]
    )


def _explain_other_kernels(info: Info, fact: Training) -> str:
    """Return why `info` has other elementwise operations at the same sizes, or ''."""
    without_gradients = info.totals.elementwise_ops
    if fact.forward_macs != info.totals.macs or fact.elementwise_ops in (None, without_gradients):
        return ""
    return f"`info` has {exact_text(without_gradients)}: torch uses other kernels without gradients"


def _find_signs(info: Info, fact: Training, figure: str) -> tuple[str, str]:
    """Return the signs of a figure of the forward and of the backward pass: '>= ', '<= ', '~ ' or ''."""
    has_bounds = any(row.status == "bound" for row in fact.layers)
    if info.totals.coverage < 1 <= fact.coverage:  # the batch binds the open sizes
        forward = "<= " if has_bounds else ""
    else:
        forward = info.totals.sign_of(figure)
    # an upper bound of the forward figures also bounds the backward figures: both depend on the same sizes
    if fact.coverage >= 1:
        return forward, forward
    return forward, "~ " if has_bounds else ">= "


def _join_signs(first: str, second: str) -> str:
    """Return the sign of the sum of two figures."""
    return "~ " if first and second and first != second else first or second


def _build_outputs_field(info: Info, fact: Training, remark: str) -> Field:
    sign, _ = _find_signs(info, fact, "activation_bytes")
    return bytes_field("Kept outputs", fact.activation_bytes, sign, remark)


def build_output_fields(info: Info, fact: Training) -> list[Block]:
    """Build the memory of a step that keeps every layer's output; empty if other fields already show it."""
    step = _find_shown_step(fact)
    if step is None or step.counted != "autograd":
        return []
    remark = (
        "A step that kept the output of every layer would keep this much. Torch keeps other values: see"
        " 'Kept by autograd'."
    )
    return [
        Line(),
        Heading("Outputs of all layers"),
        Paragraph(remark, "quiet"),
        Fields([_build_outputs_field(info, fact, "not what torch keeps")]),
    ]


def _find_shown_step(fact: Training) -> StepMemory | None:
    """Return the step whose memory is shown, or None if memory was not counted."""
    return fact.memory.steps[0] if fact.memory is not None and fact.memory.steps else None


def build_layer_fields(fact: Training, first: int, last: int) -> list[Block]:
    """Build the fields for layers `first` to `last` in a step; empty if the step has none of them."""
    layers = [row for row in fact.layers if first <= row.layer <= last]
    if not layers:
        return []
    inexact = next((row for row in layers if row.status != "exact"), None)

    def build_sum(label: str, name: str, build_field: Callable[..., Field], **options: str) -> Field:
        """Build the field for the sum of a figure over the layers, a lower bound if some are unknown."""
        values = [getattr(row, name) for row in layers]
        known_values = [value for value in values if value is not None]
        sign = ">= " if len(known_values) < len(values) else ""
        return build_field(label, sum(known_values) if known_values else None, sign, **options)

    rows = [
        build_sum("MACs, forward", "forward_macs", count_field),
        build_sum("MACs, weight grad", "backward_weight_macs", count_field),
        build_sum("MACs, input grad", "backward_input_macs", count_field),
        build_sum(
            "Elementwise operations, backward",
            "backward_elementwise_ops",
            count_field,
            short="elem. backward",
        ),
        build_sum("Kept outputs", "activation_bytes", bytes_field),
        build_sum("Weight bytes", "param_bytes", bytes_field),
        build_sum("Gradients", "gradient_bytes", bytes_field),
        build_sum("Optimizer", "optimizer_bytes", bytes_field),
    ]
    why = inexact.reason or inexact.status if inexact is not None else ""
    return [Fields(rows), *([Paragraph(why, "warning")] if why else [])]


_WHOLE_MODEL = "the model"
_TEMPORARY_TEXT = (
    "Temporary tensors are freed before the step ends: gradients of activations, workspaces, and at 'step'"
    " the optimizer's copies of one parameter at a time."
)
_KINDS = get_args(Holding)
_PART_LETTERS = ", ".join(f"{kind[0]} {kind}" for kind in _KINDS)
_BAR_WIDTH = 24
"""Width of the bar of live memory at the peak."""


def build_heading(fact: Training) -> Heading:
    """Build the heading of a step: 'Training: batch 8, adam'."""
    batch = f"batch {fact.batch:,}" if fact.batch is not None else "batch as opened"
    return Heading(f"Training: {batch}, {fact.optimizer}")


OPTIMIZERS: Mapping[Optimizer, str] = {
    "sgd": "SGD keeps no state",
    "momentum": "SGD with momentum keeps 1 number a parameter",
    "adam": "Adam and AdamW keep 2 numbers a parameter",
}
"""Numbers that each optimizer keeps per trained parameter, as text."""
