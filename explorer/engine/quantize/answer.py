"""Quantization results: costs, savings and errors of a choice of number formats, by operator and by layer.

BitOPs are MACs x bits of a weight x bits of an input (Uniq, arXiv:1804.10969). Bytes of weights are the bytes
that the hardware stores: the codes, the scales that the format's name does not give, and the zero points
unless all are 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence

from explorer.engine.graph.model import DTYPES, get_dtype_code
from explorer.engine.number_formats.microscaling import BLOCK, Microscaling
from explorer.engine.number_formats.number_format import NumberFormat
from explorer.engine.quantize.accumulator import WeightSums
from explorer.engine.quantize.choice import BIAS, LayerChoice
from explorer.engine.quantize.errors import (
    GetGrid,
    LayerErrors,
    describe_nonfinite_inputs,
    measure_weight_errors,
)
from explorer.engine.quantize.layers import Operand, Part, QuantizableLayer
from explorer.engine.values.agreement import Agreement
from explorer.facts import Layer
from explorer.facts.quantize import (
    BeforeAfter,
    Bits,
    OperatorCount,
    OutputAgreement,
    Quantization,
    QuantizedLayer,
    QuantizeTotals,
)


def build_answer(
    choices: Sequence[LayerChoice],
    get_grid: GetGrid,
    rows: Sequence[Layer],
    weight_bytes: int,
    layers: Mapping[str, LayerErrors] | None = None,
    outputs: Mapping[str, Agreement] | None = None,
    *,
    weights: bool = True,
    accumulator_bits: int = 0,
    float_bits: int = 32,
    unchanged: Collection[str] = (),
) -> Quantization:
    """Builds the record of a quantization: layers, totals and errors.

    Args:
        choices: Choices for all layers of the model.
        get_grid: Function that returns the grid of an operand.
        rows: Rows of the original's layer tree with MACs, analyzed at the sizes of the samples.
        weight_bytes: Bytes of all weights of the original.
        layers: Errors of layers from `run_errors`, or None if the model did not run.
        outputs: Agreement of outputs from `run_errors`, or None if the model did not run.
        weights: Whether to measure the errors of weights and the accumulator bits that their sums need.
        accumulator_bits: Width of the hardware's accumulator in bits. Layers that exceed it are listed. 0 for
            no limit.
        float_bits: Bits of an activation in products outside these layers.
        unchanged: Names of tensors also stored in their original format, because other nodes read them.
    """
    by_output = {out.name: row.macs for row in rows if not row.group for out in row.outputs}
    by_path = {row.path: row.macs for row in rows if not row.group}

    def find_macs(layer: QuantizableLayer) -> int | None:
        is_inner = layer.is_nested and layer.name in by_path
        return by_path[layer.name] if is_inner else by_output.get(layer.node.outputs[0])

    measured = layers or {}
    quantized_layers = [
        _build_layer(
            choice,
            get_grid,
            find_macs(choice.layer),
            measured.get(choice.layer.node.outputs[0]),
            weights=weights,
        )
        for choice in choices
    ]
    kinds = Counter(layer.op for layer in quantized_layers)
    changed = Counter(layer.op for layer in quantized_layers if not layer.reason)
    losses = [
        (loss, layer.name) for layer in quantized_layers if (loss := _compute_output_snr(layer)) is not None
    ]
    return Quantization(
        tuple(OperatorCount(op, n, changed[op], n - changed[op]) for op, n in kinds.items()),
        tuple(quantized_layers),
        QuantizeTotals(
            _sum_bytes(weight_bytes, choices, get_grid, unchanged),
            _sum_bitops(choices, quantized_layers, rows, float_bits),
        ),
        tuple(
            _build_output(name, agreement)
            for name, agreement in (outputs or {}).items()
            if agreement.elements or agreement.nonfinite
        ),
        worst=min(losses)[1] if losses else "",
        accumulator_bits=accumulator_bits,
        overflows=tuple(
            layer.name
            for layer in quantized_layers
            if layer.accumulator is not None and 0 < accumulator_bits < layer.accumulator.bits
        ),
        notes=describe_nonfinite_inputs(choices, measured),
    )


def _compute_output_snr(layer: QuantizedLayer) -> float | None:
    """Returns the signal-to-noise ratio of a layer's output, or of its weight if the model did not run."""
    return layer.weight_snr_db if layer.output_snr_db is None else layer.output_snr_db


def _build_output(name: str, agreement: Agreement) -> OutputAgreement:
    return OutputAgreement(
        name, agreement.snr_db, agreement.cosine, agreement.top1, agreement.top5, agreement.rows
    )


def _build_layer(
    choice: LayerChoice, get_grid: GetGrid, macs: int | None, errors: LayerErrors | None, *, weights: bool
) -> QuantizedLayer:
    """Returns the row of a layer; the errors of its weight are measured only with `weights`."""
    layer = choice.layer
    formats = _get_format(choice, "weight"), _get_format(choice, "input")
    original_bits = Bits(
        *(None if b is None else float(b) for b in (_get_bits(choice, "weight"), _get_bits(choice, "input")))
    )
    bits = Bits(
        *(
            f.stored_bits if f else b
            for f, b in zip(formats, (original_bits.weight, original_bits.input), strict=True)
        )
    )
    sums: WeightSums | None = None
    weight_agreement: Agreement | None = None
    if weights and not choice.reason:
        if WeightSums.is_supported(choice, get_grid):
            sums = WeightSums(choice, get_grid)
        weight_agreement = measure_weight_errors(choice, get_grid, sums.add if sums is not None else None)
    stored_weights = {
        operand.stored: operand for operand in layer.list_operands("weight") if operand.tensor is not None
    }
    return QuantizedLayer(
        layer.name,
        layer.op,
        weight=_format_part_name(choice, "weight"),
        input=_format_part_name(choice, "input"),
        bias=_format_part_name(choice, "bias"),
        before=next((_get_dtype(operand) for operand in layer.operands), "float32"),
        granularity=_describe_granularity(choice, get_grid),
        bits=bits,
        bits_before=original_bits,
        weight_max_error=None if weight_agreement is None else weight_agreement.largest_error,
        weight_rms_error=None if weight_agreement is None else weight_agreement.rms,
        weight_snr_db=None if weight_agreement is None else weight_agreement.snr_db,
        input_snr_db=None if errors is None else errors.input.snr_db,
        output_snr_db=None if errors is None else errors.output.snr_db,
        saturated=errors.saturated / errors.inputs if errors is not None and errors.inputs else None,
        macs=macs,
        bitops_before=_compute_bitops(choice, macs, (None, None)),
        bitops=_compute_bitops(choice, macs, formats),
        weight_bytes_before=sum(
            operand.tensor.nbytes for operand in stored_weights.values() if operand.tensor
        ),
        weight_bytes=sum(
            _count_stored_bytes(choice, operand, get_grid) for operand in stored_weights.values()
        ),
        accumulator=None if sums is None else sums.find_accumulator(),
        reason=choice.reason,
    )


def _get_format(choice: LayerChoice, part: Part) -> NumberFormat | None:
    return None if choice.reason else getattr(choice, part)


def _get_dtype(operand: Operand) -> str:
    """Returns the original element type of an operand."""
    return operand.dtype if operand.tensor is None else operand.tensor.dtype


def _format_part_name(choice: LayerChoice, part: Part) -> str:
    """Returns the name of a part's format, the element type of an unchanged part, or '' for no part."""
    operands, fmt = choice.layer.list_operands(part), _get_format(choice, part)
    return fmt.name if fmt is not None else _get_dtype(operands[0]) if operands else ""


def _get_bits(choice: LayerChoice, part: Part) -> int | None:
    """Returns the bits of an original number of a part, or None if the layer has no such part."""
    operands = choice.layer.list_operands(part)
    return DTYPES[get_dtype_code(_get_dtype(operands[0]))].bits if operands else None


def _compute_bitops(
    choice: LayerChoice, macs: int | None, formats: Sequence[NumberFormat | None]
) -> int | None:
    """Returns MACs x bits of a weight x bits of an input, or None if the MACs are unknown.

    Without a weight, the other input counts in its place.

    Bits are those reported for the format. For a block format they include each number's share of the
    exponent of its block of 32, although hardware adds that exponent only once for 32 products. States of a
    recurrent layer and rows of a table count as float32.
    """
    parts: tuple[Part, Part] = ("weight", "input")
    weight, inputs = (
        _get_bits(choice, part) if fmt is None else fmt.stored_bits
        for part, fmt in zip(parts, formats, strict=True)
    )
    inputs = inputs or 32
    activation_macs = min(choice.layer.activation_macs, macs or 0)
    if macs is None:
        return None
    # bits are multiples of 1/4, so the product is exact up to 2^49 MACs
    return round((macs - activation_macs) * ((weight or inputs) * inputs)) + activation_macs * 32 * 32


def _describe_granularity(choice: LayerChoice, get_grid: GetGrid) -> str:
    """Returns the part of a weight that shares a scale ('channel', 'block 32'), or '' without scales."""
    weight = _get_format(choice, "weight")
    operands = choice.layer.list_operands("weight")
    if weight is None or not operands:
        return ""
    if isinstance(weight, Microscaling):
        return f"block {BLOCK}"
    if not weight.scaled:
        return ""
    grid = get_grid(choice, operands[0])
    if grid.block:
        return f"block {grid.block}"
    if grid.axis is None:
        return "tensor"
    shared = max(
        operand.count_channels_per_scale(get_grid(choice, operand).scale.size) for operand in operands
    )
    return "channel" if shared == 1 else f"{shared} channels"


def _count_stored_bytes(choice: LayerChoice, operand: Operand, get_grid: GetGrid) -> int:
    """Returns the bytes of a weight in its format, with its scales and, unless all are 0, its zero points.

    A scale takes no bytes if the format's name gives it, or if it is the product of two other scales (integer
    bias).
    """
    assert operand.tensor is not None
    fmt = _get_format(choice, operand.part)
    if fmt is None:
        return operand.tensor.nbytes
    code_bytes = math.ceil(operand.tensor.elements * fmt.bits / 8)
    if isinstance(fmt, Microscaling):
        depth = operand.shape[-1 if operand.depth is None else operand.depth] if operand.shape else 1
        return code_bytes + operand.tensor.elements // max(depth, 1) * -(-depth // BLOCK)
    if not fmt.scaled or fmt is BIAS:
        return code_bytes
    grid = get_grid(choice, operand)
    return (
        code_bytes
        + 4 * int(grid.scale.size)
        + (math.ceil(grid.zero.size * fmt.bits / 8) if grid.zero.any() else 0)
    )


def _sum_bytes(
    weight_bytes: int, choices: Sequence[LayerChoice], get_grid: GetGrid, unchanged: Collection[str]
) -> BeforeAfter:
    """Returns the bytes of all weights and biases, before and after; a shared tensor counts once."""
    bytes_of_copies: dict[str, dict[Hashable, int]] = {}
    original_bytes: dict[str, int] = {}
    for choice in choices:
        for operand in choice.layer.operands:
            if operand.tensor is not None:
                # a tensor shared by an embedding and a matrix product may be stored in two formats
                fmt = _get_format(choice, operand.part)
                copy = (fmt, operand.axes, operand.channel) if fmt is not None else None
                copies = bytes_of_copies.setdefault(operand.stored, {})
                copies[copy] = _count_stored_bytes(choice, operand, get_grid)
                if operand.stored in unchanged:
                    copies[None] = operand.tensor.nbytes
                original_bytes[operand.stored] = operand.tensor.nbytes
    return BeforeAfter(
        weight_bytes,
        weight_bytes
        - sum(original_bytes.values())
        + sum(sum(copies.values()) for copies in bytes_of_copies.values()),
    )


def _sum_bitops(
    choices: Sequence[LayerChoice],
    quantized_layers: Sequence[QuantizedLayer],
    rows: Sequence[Layer],
    float_bits: int,
) -> BeforeAfter:
    """Returns the BitOPs of the model before and after. Rows outside the layers keep their BitOPs."""
    saved = 0
    for layer in quantized_layers:
        if layer.bitops_before is not None and layer.bitops is not None:
            saved += layer.bitops_before - layer.bitops
    pairs = zip(choices, quantized_layers, strict=True)
    bitops_of_output = {
        c.layer.node.outputs[0]: layer.bitops_before for c, layer in pairs if not c.layer.is_nested
    }
    total = 0
    for row in rows:
        if row.group or not row.counted:
            continue
        if row.macs is None:
            return BeforeAfter(None, None)
        layer_bitops = next(
            (bitops_of_output[out.name] for out in row.outputs if out.name in bitops_of_output), None
        )
        total += row.macs * float_bits**2 if layer_bitops is None else layer_bitops
    return BeforeAfter(total, total - saved)
