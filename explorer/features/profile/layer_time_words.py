"""Measured time of one layer, beside what was predicted and the limit of the machine."""

from __future__ import annotations

from explorer.base.units import bytes_text, many_text, rate_text
from explorer.facts.profile.profile import LayerTime, ModuleTime, Profile
from explorer.features.profile.profile_words import spread_text
from explorer.report.blocks import Block, Field, Fields, Heading, Span
from explorer.report.present.figures import quiet_zero, seconds, share_text
from explorer.report.present.look.roofline import machine_text


def timed_blocks(fact: Profile, row: int) -> list[Block]:
    """What was measured of a row, each figure with how it was got; nothing where it is not in the profile."""
    group = next((one for one in fact.modules if one.layer == row), None)
    layer = next((one for one in fact.layers if one.layer == row), None)
    rows = _of_group(group) if group is not None else []
    if layer is not None and group is None:
        rows = _of_layer(fact, layer)
    batch = "" if fact.batch is None else f"batch {fact.batch:,}, "
    note = f"{batch}{many_text(fact.runs, 'run')}, {fact.device}, {many_text(fact.threads, 'thread')}"
    return [Heading("Time", note), Fields(rows)] if rows else []


def _of_group(one: ModuleTime) -> list[Field]:
    return [
        Field("Measured", seconds(one.seconds), f"{share_text(one.share, 1)} of a run, sum of its layers"),
        Field("  without them", quiet_zero(seconds(one.self_seconds)), many_text(one.calls, "call")),
    ]


def _of_layer(fact: Profile, one: LayerTime) -> list[Field]:
    if one.seconds is None:
        return [Field("Measured", Span("no time of its own", "quiet"), f"the kernel of {one.within} does it")]
    more = f", {one.op} for {many_text(1 + len(one.holds), 'layer')}" if one.holds else f", {one.op}"
    rows = [
        Field(
            "Measured",
            seconds(one.seconds.median),
            f"{share_text(one.share, 1)} of a run{more * bool(one.op)}",
        ),
        Field("  how far apart", "", f"{spread_text(one.seconds)}, {many_text(one.calls, 'call')}"),
    ]
    if one.backward_seconds is not None:
        rows.append(Field("  of it backward", seconds(one.backward_seconds)))
    if one.predicted_seconds is not None and one.error is not None:
        off = f"{one.error * 100:+.0f} %, from kernels timed alone on this machine"
        rows.append(Field("Predicted", seconds(one.predicted_seconds), off))
    if one.limit_seconds is not None and fact.machine is not None and one.efficiency is not None:
        reached = (
            f"{share_text(one.efficiency, 1)} of the roof: what is counted, on {machine_text(fact.machine)}"
        )
        rows.append(Field("At the least", seconds(one.limit_seconds), reached))
    for label, rate, unit in (
        ("MACs a second", one.macs_per_second, "MAC/s"),
        ("Bytes a second", one.bytes_per_second, "B/s"),
    ):
        if rate is not None:
            rows.append(
                Field(label, Span(rate_text(rate, unit), "figure", value=rate), "counted over measured")
            )
    if one.allocated_bytes is not None:
        peak = "" if one.peak_bytes is None else f"{bytes_text(one.peak_bytes)} at once"
        rows.append(Field("Allocated", Span(bytes_text(one.allocated_bytes), "figure"), peak))
    return rows
