"""Text about machines: one line for a machine, and the output of `explorer machines --measure`."""

from __future__ import annotations

from explorer.base.units import bytes_text, many_text, printable, rate_text, seconds_text, sentence_text
from explorer.facts.cost import Hardware
from explorer.facts.profile.machine import CacheLevel, KernelTime, MeasuredCore, MeasuredMachine
from explorer.facts.profile.profile import Spread
from explorer.report.blocks import Block, Cell, Column, Field, Fields, Line, Paragraph, Span, Table


def hardware_text(machine: Hardware) -> str:
    """Describe a machine in one line: 'npu: 4,096 MACs and 64 B a cycle, 1.00 GHz, buffer 512.00 KiB'."""
    cycle = [
        f"{value:,.6g} {unit}"
        for value, unit in ((machine.macs_per_cycle, "MACs"), (machine.bytes_per_cycle, "B"))
        if value is not None
    ]
    parts = [" and ".join(cycle) + " a cycle"] if cycle else []
    if machine.clock is not None:
        parts.append(rate_text(machine.clock, "Hz"))
    elif machine.peak_macs is not None and machine.bandwidth is not None:
        parts += [rate_text(machine.peak_macs, "MAC/s"), rate_text(machine.bandwidth, "B/s")]
    if machine.buffer is not None:
        parts.append(f"buffer {bytes_text(machine.buffer)}")
    if machine.array is not None:
        parts.append(f"array {machine.array[0]} x {machine.array[1]}")
    if parts and not machine.double_buffered:
        parts.append("not double-buffered")
    return (f"{machine.name}: " if machine.name else "") + ", ".join(parts)


def build_measured_blocks(fact: MeasuredMachine) -> list[Block]:
    """Return peak rates by dtype, bandwidth, launch cost per node, matmul rates by size, and notes."""
    rows = [Field("processor", Span(printable(fact.processor), "strong"), many_text(fact.threads, "thread"))]
    for peak in fact.peaks:
        low, high = rate_text(peak.low, "MAC/s"), rate_text(peak.high, "MAC/s")
        best = " x ".join(map(str, peak.sizes))
        rows.append(
            Field(
                f"peak, {peak.dtype}",
                rate_text(peak.macs_per_second, "MAC/s"),
                f"{low} to {high}, of a matmul {best}",
            )
        )
    arrays = bytes_text(fact.bandwidth.bytes // 3)
    rows += [
        Field(
            "bandwidth",
            rate_text(fact.bandwidth.bytes_per_second, "B/s"),
            f"two arrays of {arrays} read, one written",
        ),
        Field("a node", seconds_text(fact.launch.median), f"{_format_spread(fact.launch)}, in a long chain"),
        Field(
            "a run", seconds_text(fact.call.median), f"{_format_spread(fact.call)}, of a model of one node"
        ),
        *(
            Field(
                f"cache, level {cache.level}",
                bytes_text(cache.bytes),
                _describe_cache(cache),
                f"L{cache.level}",
            )
            for cache in fact.caches
        ),
    ]
    if fact.core is not None:
        rows += _build_core_fields(fact.core)
    blocks: list[Block] = [Line(), Fields(rows), Line(), _build_matmul_table(fact)]
    if fact.refused:
        blocks.append(Paragraph(f"{fact.runtime} multiplies no {', '.join(fact.refused)} here.", "quiet"))
    blocks += [Paragraph(sentence_text(note), "quiet") for note in fact.notes]
    duration = seconds_text(fact.seconds)
    blocks.append(Paragraph(f"Measured {fact.date} in {duration}, with {fact.runtime}.", "quiet"))
    if fact.loaded:
        advice = "A measurement on an idle machine may be faster."
        blocks.append(Paragraph(f"The machine was loaded: {fact.load}. {advice}", "warning"))
    return blocks


def _build_core_fields(core: MeasuredCore) -> list[Field]:
    """Return the rate of a matmul on one thread, and of copies in each cache and in memory."""
    best = " x ".join(map(str, core.sizes))
    rate = rate_text(core.macs_per_second, "MAC/s")
    fields = [Field("a core, float32", rate, f"one thread, of a matmul {best}")]
    for copy in core.copies:
        place = f"L{copy.level}" if copy.level else "memory"
        arrays = f"one thread, of {bytes_text(copy.bytes // 2)}; the same is written"
        fields.append(
            Field(f"copy in {place}", rate_text(copy.bytes_per_second, "B/s"), arrays, f"copy {place}")
        )
    return fields


def _build_matmul_table(fact: MeasuredMachine) -> Table:
    """Return the rates of square matmuls, with a row for each size and a column for each dtype."""
    sizes = list(dict.fromkeys(kernel.sizes for kernel in fact.kernels))
    by_size = {(kernel.sizes, kernel.dtype): kernel for kernel in fact.kernels}
    columns = [Column("matmul, MAC/s", "right"), *(Column(peak.dtype, "right") for peak in fact.peaks)]
    table: list[list[Cell]] = [
        [
            " x ".join(map(str, size)),
            *(_format_rate(by_size.get((size, peak.dtype))) for peak in fact.peaks),
        ]
        for size in sorted(sizes)
    ]
    return Table(columns, table)


def _format_rate(kernel: KernelTime | None) -> Span:
    if kernel is None:
        return Span("-", "quiet")
    return Span(
        rate_text(kernel.macs_per_second, "MAC/s").removesuffix("MAC/s"), value=kernel.macs_per_second
    )


def _format_spread(times: Spread) -> str:
    return f"{seconds_text(times.low)} to {seconds_text(times.high)}"


def _describe_cache(cache: CacheLevel) -> str:
    sharing = {0: "", 1: "of a core's own"}.get(
        cache.processors, f"shared by {cache.processors:,} processors"
    )
    rate = cache.bytes_per_second
    speed = "not timed" if rate is None else f"{rate_text(rate, 'B/s')} of all threads"
    return f"{sharing}; {speed}" if sharing else speed
