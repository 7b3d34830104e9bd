"""Text output of `explorer quantize` and `explorer settings --formats`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from explorer.base.units import exact_text, printable, seconds_text
from explorer.facts import Info
from explorer.facts.quantize import (
    PARTS,
    Accumulator,
    BeforeAfter,
    OutputAgreement,
    Quantization,
    QuantizedLayer,
    RuntimeKernels,
    RunTimes,
)
from explorer.facts.settings import LayerSettings, QuantizeSettings
from explorer.features.quantize.quantization_record import QuantizationRecord
from explorer.report.blocks import (
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
    table_of,
)
from explorer.report.present.accumulator import overflows
from explorer.report.present.effective_settings import origin_text, warn_unused_rules
from explorer.report.present.figures import (
    count,
    dash_zero,
    plain,
    report_written,
    seconds,
    share_text,
    size,
    snr_text,
)
from explorer.report.present.look.info import title
from explorer.report.present.row_groups import group_rows, list_first_names


def quantize(info: Info, fact: Quantization) -> list[Block]:
    """Build the output of `explorer quantize`."""
    return [*title(info.model), Line(), *quantize_blocks(fact)]


def quantize_blocks(fact: Quantization) -> list[Block]:
    """Build the tables of operators, layers, totals and outputs."""
    changed = [layer for layer in fact.layers if not layer.reason]
    blocks: list[Block] = [count_by_operator(fact), Line()]
    if changed:
        blocks += [layers(changed), *_name_worst(fact, changed), *_build_overflow_table(fact), Line()]
    if len(changed) < len(fact.layers):
        blocks += [_build_unchanged(fact), Line()]
    blocks += [
        totals(fact),
        *_build_comparison(fact),
        *report_integer_kernels(fact),
        Line(),
        *_note_source(fact),
    ]
    return [*blocks, *([Line(), *report_written(fact.output)] if fact.output else [])]


def build_without_layers(fact: Quantization) -> list[Block]:
    """Build the figures, kernels, operators and notes, for the screen, which lists the layers itself."""
    return [
        totals(fact),
        *_build_comparison(fact),
        *report_integer_kernels(fact),
        Line(),
        count_by_operator(fact),
        *_build_overflow_table(fact),
        Line(),
        *_note_source(fact),
    ]


def report_integer_kernels(fact: Quantization) -> list[Block]:
    """Report how many layers onnxruntime runs with integer kernels, and the run times of both models."""
    if fact.kernels is None:
        return []
    blocks: list[Block] = [Line(), Heading("in onnxruntime", _format_machine(fact.kernels))]
    blocks.append(
        Paragraph(_format_kernels(fact.kernels, fact.layers), "warning" if fact.kernels.problem else "")
    )
    byte_layers_with_float_bias = [
        layer
        for layer in fact.layers
        if not layer.reason and {layer.weight, layer.input} <= {"int8", "uint8"} and layer.bias == "float32"
    ]
    if fact.kernels.integer_layers == 0 and byte_layers_with_float_bias:
        blocks.append(Paragraph("a float32 bias keeps these layers on float kernels; add bias=int32 to --to"))
    if fact.times is not None:
        blocks += [run_times(fact.times), Line((Span(_format_rounds(fact.times), "quiet"),), 2)]
    elif fact.untimed:
        blocks.append(Paragraph(f"no run was timed: {printable(fact.untimed)}", "warning"))
    return blocks


def _format_machine(kernels: RuntimeKernels) -> str:
    return ", ".join(word for word in (kernels.runtime, kernels.instructions) if word)


def _format_kernels(kernels: RuntimeKernels, layers: Sequence[QuantizedLayer]) -> str:
    """Summarize the kernels: '20 of 21 layers run on integer kernels: 19 QLinearConv, 1 QGemm'."""
    if kernels.integer_layers is None:
        return f"? of {kernels.layers:,} layers run on integer kernels: {printable(kernels.problem)}"
    text = f"{kernels.integer_layers:,} of {kernels.layers:,} layers run on integer kernels"
    names = ", ".join(f"{kernel.layers:,} {kernel.op}" for kernel in kernels.kernels if kernel.integer)
    texts = [f"{text}: {names}" if names else text]
    texts += [
        f"{kernel.layers:,} {kernel.op} read integer weights and multiply floats"
        for kernel in kernels.kernels
        if not kernel.integer
    ]
    listed = {kernel.op for kernel in kernels.kernels}
    float_kernels = Counter(layer.kernel for layer in layers if layer.kernel and layer.kernel not in listed)
    if float_kernels:
        names = ", ".join(f"{count:,} {kernel}" for kernel, count in float_kernels.items())
        texts.append(f"on float kernels: {names}")
    return "; ".join(texts)


def run_times(times: RunTimes) -> Table:
    """Build a table of the shortest and median run times of both models."""
    columns = (Column("run"), Column("shortest", "right"), Column("median", "right"), Column("time", "right"))
    rows: list[tuple[Cell, ...]] = [
        ("original", *map(seconds, (times.before_min, times.before_median)), "1.00 x"),
        ("quantized", *map(seconds, (times.after_min, times.after_median)), _format_ratio(times.ratio)),
    ]
    return Table(columns, rows)


def _format_ratio(ratio: float) -> str:
    """Format a time relative to the original's, such as '1.57 x'; '?' for an unknown ratio."""
    return f"{ratio:.2f} x" if ratio > 0 else "?"


def _format_rounds(times: RunTimes) -> str:
    runs = f"{times.rounds:,} run{'s' * (times.rounds != 1)}"
    return f"{runs} of each in turn; the last column compares the shortest ones"


def _build_comparison(fact: Quantization) -> list[Block]:
    if not fact.outputs:
        return []
    return [Line(), Heading("outputs", "against the original's"), outputs(fact.outputs)]


def _note_source(fact: Quantization) -> list[Block]:
    """Build the notes on the source of the figures."""
    return [Paragraph(printable(note), "quiet") for note in (_format_source(fact), *fact.notes) if note]


def _format_source(fact: Quantization) -> str:
    """Describe the samples and the duration; for a prediction, tell how to write the model."""
    if not (fact.output or fact.seconds):
        if fact.by_shapes:
            return ""
        accumulator_text = " and the accumulator bits" if fact.accumulator_bits else ""
        if fact.modules:
            return (
                "This is a plan: nothing ran, and no file was written. -o FILE.pt2 quantizes the modules and"
                f" measures the errors{accumulator_text}. -o FILE.onnx or --form quantizes the ONNX export."
            )
        return (
            "This is a plan: nothing ran, and no file was written. -o FILE writes the model and measures"
            f" the errors{accumulator_text}."
        )
    figures = "ranges and errors" if fact.outputs else "ranges"
    ran = f"{figures} from {printable(fact.calibration)}; " if fact.calibration else ""
    return f"{ran}{seconds_text(fact.seconds)}"


def count_by_operator(fact: Quantization) -> Table:
    """Build a table of how many layers of each operator took a format."""
    rows: list[tuple[Cell, ...]] = [
        (Span(row.op, "kind"), plain(row.total), plain(row.changed), dash_zero(plain(row.unchanged)))
        for row in fact.by_op
    ]
    if len(rows) > 1:
        sums = (sum(getattr(row, name) for row in fact.by_op) for name in ("total", "changed", "unchanged"))
        rows.append((Span("all", "strong"), *(dash_zero(plain(total)) for total in sums)))
    columns = Column("operator"), *(Column(word, "right") for word in ("layers", "changed", "unchanged"))
    return Table(columns, rows)


_COLUMNS: Sequence[tuple[Column, Callable[[QuantizedLayer], Cell]]] = (
    (Column("layer", shrink=True), lambda layer: Span(printable(layer.name), "strong")),
    (Column("operator", drop=4, role="quiet"), lambda layer: layer.op),
    (Column("weight"), lambda layer: _format(layer.weight, layer.before)),
    (Column("input"), lambda layer: _format(layer.input, layer.before)),
    (Column("bias", drop=8), lambda layer: _format(layer.bias, layer.before)),
    (Column("runs as", drop=15, role="quiet"), lambda layer: layer.kernel),
    (Column("held as", drop=14, role="quiet"), lambda layer: layer.held),
    (Column("scales", drop=7, role="quiet"), lambda layer: layer.granularity),
    (Column("bits", "right", drop=10), lambda layer: _format_bits(layer)),
    (Column("weight max error", "right", drop=11), lambda layer: _format_error(layer.weight_max_error)),
    (Column("RMS", "right", drop=12), lambda layer: _format_error(layer.weight_rms_error)),
    (Column("weight dB", "right", drop=3), lambda layer: decibels(layer.weight_snr_db)),
    (Column("input dB", "right", drop=5), lambda layer: decibels(layer.input_snr_db)),
    (Column("saturated", "right", drop=6), lambda layer: _format_saturated(layer.saturated)),
    (Column("accumulator", "right", drop=13), lambda layer: _format_accumulator(layer.accumulator)),
    (Column("BitOPs", "right", drop=9), lambda layer: count(layer.bitops)),
    (
        Column("bytes", "right", drop=2),
        lambda layer: size(layer.weight_bytes) if layer.weight_bytes_before else "",
    ),
    (Column("output dB", "right", drop=1), lambda layer: decibels(layer.output_snr_db)),
)


def layers(rows: Sequence[QuantizedLayer]) -> Table:
    """Build a table with a row for each quantized layer; optional columns without values are left out."""

    def has_text(cell: Cell) -> bool:
        return (cell.text if isinstance(cell, Span) else cell) not in ("", "-")

    columns = [
        (column, cell)
        for column, cell in _COLUMNS
        if not column.drop or any(has_text(cell(layer)) for layer in rows)
    ]
    return table_of(rows, columns, what="layers")


def summarize_layer(layer: QuantizedLayer) -> str:
    """Summarize a layer in one line: 'Gemm -> int8, per channel, 38.2 dB'."""
    snr = layer.output_snr_db if layer.output_snr_db is not None else layer.weight_snr_db
    text = f"{layer.op} -> {layer.described}"
    return text if snr is None else f"{text}, {snr_text(snr)}"


def _format(name: str, old_name: str) -> Span:
    return Span(name or "-", "" if name and name != old_name else "quiet")


def _format_bits(layer: QuantizedLayer) -> str:
    return " x ".join(f"{bits:g}" for bits in (layer.bits.weight, layer.bits.input) if bits is not None)


def _format_error(value: float | None) -> Cell:
    return Span("-", "quiet") if value is None else Span(f"{value:.1e}" if value else "0", value=value)


def decibels(value: float | None) -> Cell:
    """Format an SNR in dB: '-' if unknown, 'exact' for infinity, 'lost' for minus infinity."""
    if value is None:
        return Span("-", "quiet")
    if math.isinf(value):
        return Span("exact", "good", value=value) if value > 0 else Span("lost", "bad", value=value)
    return Span(f"{value:.1f}", "" if value >= _LOW_SNR else "warning", value=value)


_LOW_SNR = 10.0
"""SNR in dB below which a value is marked: noise has a third of the signal's amplitude."""


def _format_saturated(share: float | None) -> Cell:
    if not share:
        return Span("-" if share is None else "0", "quiet", value=share)
    return Span(share_text(share, 1), "warning" if share > 0.01 else "", value=share)


def _format_accumulator(accumulator: Accumulator | None) -> Cell:
    """Format the accumulator bits that the stored weights need, and the bits that any weights could need."""
    if accumulator is None:
        return ""
    return Span(f"{accumulator.bits} of {accumulator.bits_any}", value=accumulator.bits)


def _build_overflow_table(fact: Quantization) -> list[Block]:
    accumulators = {layer.name: layer.accumulator for layer in fact.layers if layer.accumulator}
    return overflows(fact.accumulator_bits, accumulators)


def _name_worst(fact: Quantization, changed: Sequence[QuantizedLayer]) -> list[Block]:
    """Name the layer with the largest loss if more than one layer changed."""
    worst = next((layer for layer in changed if layer.name == fact.worst), None)
    if worst is None or len(changed) < 2:
        return []
    spans = (Span("worst  ", "quiet"), Span(printable(worst.name), "strong"), f"   {summarize_layer(worst)}")
    return [Line(), Line(spans, 2)]


def _build_unchanged(fact: Quantization) -> Table:
    """Build a table of the layers that took no format, with the reasons."""
    unchanged = [layer for layer in fact.layers if layer.reason]
    return table_of(
        group_rows(unchanged, lambda layer: (layer.op, layer.reason)),
        (
            (
                Column("left as it was", shrink=True),
                lambda rows: printable(list_first_names([layer.name for layer in rows])),
            ),
            (Column("operator", role="quiet"), lambda rows: rows[0].op),
            (Column("why"), lambda rows: Span(printable(rows[0].reason), "warning")),
        ),
    )


def totals(fact: Quantization) -> Fields:
    """Build the fields for weight bytes and BitOPs, before and after."""
    changes = (("weight bytes", fact.totals.weight_bytes, size), ("BitOPs", fact.totals.bitops, count))
    remarks = {"weight bytes": "as hardware needs them: zero points of 0 take no bytes"}
    return Fields(
        [
            Field(
                name,
                _format_change(pair, format_figure),
                "  ".join(filter(None, (_format_share(pair), remarks.get(name)))),
            )
            for name, pair, format_figure in changes
        ]
    )


def _format_change(pair: BeforeAfter, format_figure: Callable[[int | None], Span]) -> Cell:
    old, new = format_figure(pair.before), format_figure(pair.after)
    exact = f"{old.exact} -> {new.exact}" if old.exact and new.exact else ""
    return Span(f"{old.text} -> {new.text}", "figure", exact, pair.after)


def _format_share(pair: BeforeAfter) -> str:
    return share_text(pair.after, pair.before) if pair.before and pair.after is not None else ""


def outputs(agreements: Sequence[OutputAgreement]) -> Table:
    """Build a table that compares the outputs of both models."""
    has_top1, has_top5 = (
        any(getattr(output, name) is not None for output in agreements) for name in ("top1", "top5")
    )
    columns: list[tuple[Column, Callable[[OutputAgreement], Cell]]] = [
        (Column("output", shrink=True), lambda output: printable(output.name)),
        (Column("SNR dB", "right"), lambda output: decibels(output.snr_db)),
        (
            Column("cosine", "right", drop=3),
            lambda output: "?" if output.cosine is None else f"{output.cosine:.6f}",
        ),
    ]
    if has_top1:
        columns.append((Column("same choice", "right"), lambda output: _share_of(output.top1)))
    if has_top5:
        columns.append((Column("in its top 5", "right"), lambda output: _share_of(output.top5)))
    if has_top1:
        columns.append((Column("rows", "right", drop=2), lambda output: plain(output.samples)))
    return table_of(agreements, columns)


def _share_of(share: float | None) -> Cell:
    return Span("-", "quiet") if share is None else Span(share_text(share, 1), value=share)


def state_fields(record: QuantizationRecord) -> list[Field]:
    """Build the fields of a quantized state in the history."""
    return [Field("formats", Span(_format_summary(record.quantization)))]


def _format_summary(fact: Quantization) -> str:
    """Summarize a quantization: '5 of 5 layers; /conv1/Conv lost most, 40.6 dB'."""
    changed = [layer for layer in fact.layers if not layer.reason]
    text = f"{len(changed):,} of {len(fact.layers):,} layers"
    worst = next((layer for layer in changed if layer.name == fact.worst), None)
    if worst is None or worst.output_snr_db is None:
        return text
    return f"{text}; {printable(worst.name)} lost most, {snr_text(worst.output_snr_db)}"


_SETTINGS_COLUMNS = (
    Column("layer", shrink=True),
    Column("operator", drop=2, role="quiet"),
    *(Column(axis, "right", drop=1) for axis in "MKN"),
    *(Column(name) for name in ("weight", "input", "bias", "scales")),
    Column("written", drop=3),
)


def quantize_settings(info: Info, fact: QuantizeSettings) -> list[Block]:
    """Build a table with a row for every layer: each setting and its source."""
    quantized_count = sum(not layer.reason for layer in fact.layers)
    head = f"   {quantized_count:,} of {len(fact.layers):,} layers take a number format"
    return [
        Line((Span(info.model.source, "strong"), Span(head, "quiet"))),
        Line(),
        Table(_SETTINGS_COLUMNS, [_build_row(layer) for layer in fact.layers]),
        Line(),
        Paragraph("Brackets show where a value was set. A value without brackets is the default.", "quiet"),
        *warn_unused_rules(fact.unused, "layer"),
    ]


def _build_row(layer: LayerSettings) -> tuple[Cell, ...]:
    sizes: tuple[Cell, ...] = ("", "", "") if layer.sizes is None else tuple(map(exact_text, layer.sizes))
    head: tuple[Cell, ...] = (Span(printable(layer.name), "strong"), layer.op, *sizes)
    if layer.reason:
        return (*head, Span(layer.reason, "quiet"), "", "", "", "")
    cells = (
        *(_format_value(getattr(layer, part), layer.origins.get(part, "")) for part in PARTS),
        _format_value(layer.scales, layer.scales_origin),
    )
    return (*head, *cells, layer.form)


def _format_value(value: str, origin: str) -> Cell:
    return (Span(value), Span(origin_text(origin), "quiet")) if value else Span("-", "quiet")
