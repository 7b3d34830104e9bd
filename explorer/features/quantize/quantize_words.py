"""Answers of `explorer quantize` and `explorer settings --formats` in text."""

from __future__ import annotations

import math
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
from explorer.features.tiling.tile_words import origin_text, unused_rules
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
from explorer.report.present.figures import (
    count,
    plain,
    quiet_zero,
    seconds,
    share_text,
    size,
    snr_text,
    written,
)
from explorer.report.present.look.info import title
from explorer.report.present.row_groups import alike, and_more


def quantize(about: Info, fact: Quantization) -> list[Block]:
    """The answer of `explorer quantize`."""
    return [*title(about.model), Line(), *quantize_blocks(fact)]


def quantize_blocks(fact: Quantization) -> list[Block]:
    """Which operators and layers took a format, what they lose, and what is saved."""
    changed = [layer for layer in fact.layers if not layer.reason]
    blocks: list[Block] = [by_operator(fact), Line()]
    if changed:
        blocks += [layers(changed), *_worst(fact, changed), *_overflows(fact), Line()]
    if len(changed) < len(fact.layers):
        blocks += [_left(fact), Line()]
    blocks += [totals(fact), *_compared(fact), *in_runtime(fact), Line(), *_rests_on(fact)]
    return [*blocks, *([Line(), *written(fact.output)] if fact.output else [])]


def around_layers(fact: Quantization) -> list[Block]:
    """The same without the rows of layers, which the screen lists itself; totals come first."""
    narrow = _overflows(fact)
    ends = [Line(), by_operator(fact), *narrow, Line(), *_rests_on(fact)]
    return [totals(fact), *_compared(fact), *in_runtime(fact), *ends]


def in_runtime(fact: Quantization) -> list[Block]:
    """How many layers onnxruntime runs on integer kernels, and how long a run takes beside the original's."""
    if fact.kernels is None:
        return []
    blocks: list[Block] = [Line(), Heading("in onnxruntime", _machine(fact.kernels))]
    blocks.append(Paragraph(_kernels_text(fact.kernels), "warning" if fact.kernels.problem else ""))
    if fact.times is not None:
        blocks += [run_times(fact.times), Line((Span(_rounds_text(fact.times), "quiet"),), 2)]
    elif fact.untimed:
        blocks.append(Paragraph(f"no run was timed: {printable(fact.untimed)}", "warning"))
    return blocks


def _machine(kernels: RuntimeKernels) -> str:
    return ", ".join(word for word in (kernels.runtime, kernels.instructions) if word)


def _kernels_text(kernels: RuntimeKernels) -> str:
    """'20 of 21 layers run on integer kernels: 19 QLinearConv, 1 QGemm'."""
    if kernels.integer_layers is None:
        return f"? of {kernels.layers:,} layers run on integer kernels: {printable(kernels.problem)}"
    names = ", ".join(f"{kernel.layers:,} {kernel.op}" for kernel in kernels.kernels)
    text = f"{kernels.integer_layers:,} of {kernels.layers:,} layers run on integer kernels"
    return f"{text}: {names}" if names else text


def run_times(times: RunTimes) -> Table:
    """The shortest and the median run of both models."""
    columns = (
        Column("run"),
        Column("shortest", "right"),
        Column("median", "right"),
        Column("ratio", "right"),
    )
    rows: list[tuple[Cell, ...]] = [
        ("original", *map(seconds, (times.before_min, times.before_median)), ""),
        ("quantized", *map(seconds, (times.after_min, times.after_median)), f"{times.ratio:.2f} x"),
    ]
    return Table(columns, rows)


def _rounds_text(times: RunTimes) -> str:
    return (
        f"{times.rounds:,} run{'s' * (times.rounds != 1)} of each in turn; the ratio is of the shortest ones"
    )


def _compared(fact: Quantization) -> list[Block]:
    if not fact.outputs:
        return []
    return [Line(), Heading("outputs", "against the original's"), outputs(fact.outputs)]


def _rests_on(fact: Quantization) -> list[Block]:
    """Notes on the source of the figures."""
    return [Paragraph(printable(said), "quiet") for said in (_ran_on(fact), *fact.notes) if said]


def _ran_on(fact: Quantization) -> str:
    """What was run and how long it took; of a choice alone, how to write the model."""
    if not (fact.output or fact.seconds):
        if fact.by_shapes:
            return ""
        more = ", and tells what accumulators need" if fact.accumulator_bits else ""
        if fact.modules:
            return (
                "Only the choice, of an nn.Module by its modules: -o FILE.pt2 writes it and measures what it"
                f" loses{more}; -o FILE.onnx or --form quantizes its ONNX export."
            )
        return f"Only the choice, nothing was run: -o FILE writes the model and measures what it loses{more}."
    figures = "ranges and errors" if fact.outputs else "ranges"
    ran = f"{figures} from {printable(fact.calibration)}; " if fact.calibration else ""
    return f"{ran}{seconds_text(fact.seconds)}"


def by_operator(fact: Quantization) -> Table:
    """How many layers of an operator took a format."""
    rows: list[tuple[Cell, ...]] = [
        (Span(row.op, "kind"), plain(row.total), plain(row.changed), quiet_zero(plain(row.unchanged)))
        for row in fact.by_op
    ]
    if len(rows) > 1:
        sums = (sum(getattr(row, name) for row in fact.by_op) for name in ("total", "changed", "unchanged"))
        rows.append((Span("all", "strong"), *(quiet_zero(plain(many)) for many in sums)))
    columns = Column("operator"), *(Column(word, "right") for word in ("layers", "changed", "unchanged"))
    return Table(columns, rows)


_COLUMNS: Sequence[tuple[Column, Callable[[QuantizedLayer], Cell]]] = (
    (Column("layer", shrink=True), lambda one: Span(printable(one.name), "strong")),
    (Column("operator", drop=4, role="quiet"), lambda one: one.op),
    (Column("weight"), lambda one: _format(one.weight, one.before)),
    (Column("input"), lambda one: _format(one.input, one.before)),
    (Column("bias", drop=8), lambda one: _format(one.bias, one.before)),
    (Column("runs as", drop=15, role="quiet"), lambda one: one.kernel),
    (Column("held as", drop=14, role="quiet"), lambda one: one.held),
    (Column("scales", drop=7, role="quiet"), lambda one: one.granularity),
    (Column("bits", "right", drop=10), lambda one: _bits(one)),
    (Column("weight max error", "right", drop=11), lambda one: _error(one.weight_max_error)),
    (Column("RMS", "right", drop=12), lambda one: _error(one.weight_rms_error)),
    (Column("weight dB", "right", drop=3), lambda one: decibels(one.weight_snr_db)),
    (Column("input dB", "right", drop=5), lambda one: decibels(one.input_snr_db)),
    (Column("saturated", "right", drop=6), lambda one: _saturated(one.saturated)),
    (Column("accumulator", "right", drop=13), lambda one: _accumulator(one.accumulator)),
    (Column("BitOPs", "right", drop=9), lambda one: count(one.bitops)),
    (
        Column("bytes", "right", drop=2),
        lambda one: size(one.weight_bytes) if one.weight_bytes_before else "",
    ),
    (Column("output dB", "right", drop=1), lambda one: decibels(one.output_snr_db)),
)


def layers(rows: Sequence[QuantizedLayer]) -> Table:
    """A row for each layer that took a format, without columns that are empty for all of them."""

    def says(cell: Cell) -> bool:
        return (cell.text if isinstance(cell, Span) else cell) not in ("", "-")

    columns = [
        (column, cell)
        for column, cell in _COLUMNS
        if not column.drop or any(says(cell(layer)) for layer in rows)
    ]
    return table_of(rows, columns, what="layers")


def layer_summary(layer: QuantizedLayer) -> str:
    """One line: 'Gemm -> int8, per channel, 38.2 dB'."""
    snr = layer.output_snr_db if layer.output_snr_db is not None else layer.weight_snr_db
    said = f"{layer.op} -> {layer.described}"
    return said if snr is None else f"{said}, {snr_text(snr)}"


def _format(name: str, before: str) -> Span:
    return Span(name or "-", "" if name and name != before else "quiet")


def _bits(layer: QuantizedLayer) -> str:
    return " x ".join(f"{bits:g}" for bits in (layer.bits.weight, layer.bits.input) if bits is not None)


def _error(value: float | None) -> Cell:
    return Span("-", "quiet") if value is None else Span(f"{value:.1e}" if value else "0", value=value)


def decibels(value: float | None) -> Cell:
    """A ratio in dB; where nothing is lost, 'exact'."""
    if value is None:
        return Span("-", "quiet")
    if math.isinf(value):
        return Span("exact", "good", value=value) if value > 0 else Span("lost", "bad", value=value)
    return Span(f"{value:.1f}", "" if value >= _LOW else "warning", value=value)


_LOW = 10.0
"""Decibels below which noise is a third of the signal, by amplitude."""


def _saturated(share: float | None) -> Cell:
    if not share:
        return Span("-" if share is None else "0", "quiet", value=share)
    return Span(share_text(share, 1), "warning" if share > 0.01 else "", value=share)


def _accumulator(sums: Accumulator | None) -> Cell:
    """Bits that the stored weights need, of the bits that any weights could need."""
    if sums is None:
        return ""
    return Span(f"{sums.bits} of {sums.bits_any}", value=sums.bits)


def _overflows(fact: Quantization) -> list[Block]:
    sums = {layer.name: layer.accumulator for layer in fact.layers if layer.accumulator}
    return overflows(fact.accumulator_bits, sums)


def _worst(fact: Quantization, changed: Sequence[QuantizedLayer]) -> list[Block]:
    """The layer that lost most, where there are several."""
    worst = next((layer for layer in changed if layer.name == fact.worst), None)
    if worst is None or len(changed) < 2:
        return []
    spans = (Span("worst  ", "quiet"), Span(printable(worst.name), "strong"), f"   {layer_summary(worst)}")
    return [Line(), Line(spans, 2)]


def _left(fact: Quantization) -> Table:
    """The layers that took no format, and why."""
    unchanged = [layer for layer in fact.layers if layer.reason]
    return table_of(
        alike(unchanged, lambda layer: (layer.op, layer.reason)),
        (
            (
                Column("left as it was", shrink=True),
                lambda some: printable(and_more([layer.name for layer in some])),
            ),
            (Column("operator", role="quiet"), lambda some: some[0].op),
            (Column("why"), lambda some: Span(printable(some[0].reason), "warning")),
        ),
    )


def totals(fact: Quantization) -> Fields:
    """Bytes of weights and BitOPs, before and after."""
    both = (("weight bytes", fact.totals.weight_bytes, size), ("BitOPs", fact.totals.bitops, count))
    return Fields([Field(name, _change(pair, how), _share(pair)) for name, pair, how in both])


def _change(pair: BeforeAfter, how: Callable[[int | None], Span]) -> Cell:
    old, new = how(pair.before), how(pair.after)
    exact = f"{old.exact} -> {new.exact}" if old.exact and new.exact else ""
    return Span(f"{old.text} -> {new.text}", "figure", exact, pair.after)


def _share(pair: BeforeAfter) -> Cell:
    return share_text(pair.after, pair.before) if pair.before and pair.after is not None else ""


def outputs(agreements: Sequence[OutputAgreement]) -> Table:
    """How far the outputs of the model agree with the original's."""
    ranked, five = (
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
    if ranked:
        columns.append((Column("top-1 agrees", "right"), lambda output: _share_of(output.top1)))
    if five:
        columns.append((Column("top-5", "right"), lambda output: _share_of(output.top5)))
    if ranked:
        columns.append((Column("rows", "right", drop=2), lambda output: plain(output.samples)))
    return table_of(agreements, columns)


def _share_of(share: float | None) -> Cell:
    return Span("-", "quiet") if share is None else Span(share_text(share, 1), value=share)


def state_fields(record: QuantizationRecord) -> list[Field]:
    """Fields of a quantized state in the history: how many layers, and the worst of them."""
    return [Field("formats", Span(_formats_text(record.quantization)))]


def _formats_text(fact: Quantization) -> str:
    """One line: '5 of 5 layers; /conv1/Conv lost most, 40.6 dB'."""
    taken = [layer for layer in fact.layers if not layer.reason]
    text = f"{len(taken):,} of {len(fact.layers):,} layers"
    worst = next((layer for layer in taken if layer.name == fact.worst), None)
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


def quantize_settings(about: Info, fact: QuantizeSettings) -> list[Block]:
    """A row for every layer: each value, and where it was set."""
    on = sum(not layer.reason for layer in fact.layers)
    head = f"   {on:,} of {len(fact.layers):,} layers take a number format"
    return [
        Line((Span(about.model.source, "strong"), Span(head, "quiet"))),
        Line(),
        Table(_SETTINGS_COLUMNS, [_settings_row(layer) for layer in fact.layers]),
        Line(),
        Paragraph(
            "In brackets where a value was said; one without was said nowhere and is the default.", "quiet"
        ),
        *unused_rules(fact.unused, "layer"),
    ]


def _settings_row(layer: LayerSettings) -> tuple[Cell, ...]:
    sizes: tuple[Cell, ...] = ("", "", "") if layer.sizes is None else tuple(map(exact_text, layer.sizes))
    head: tuple[Cell, ...] = (Span(printable(layer.name), "strong"), layer.op, *sizes)
    if layer.reason:
        return (*head, Span(layer.reason, "quiet"), "", "", "", "")
    cells = (
        *(_value_cell(getattr(layer, part), layer.origins.get(part, "")) for part in PARTS),
        _value_cell(layer.scales, layer.scales_origin),
    )
    return (*head, *cells, layer.form)


def _value_cell(value: str, origin: str) -> Cell:
    return (Span(value), Span(origin_text(origin), "quiet")) if value else Span("-", "quiet")
