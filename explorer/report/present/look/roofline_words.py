"""Text output of `explorer roofline`, also used by the Roofline tab: the bound of each layer on a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from explorer.base.units import many_text, rate_text
from explorer.facts import Info
from explorer.facts.profile.profile import LayerTime, Profile
from explorer.facts.roofline import Machine, Roofline, RooflinePoint
from explorer.report.blocks import Block, Cell, Chart, Column, Field, Fields, Line, Role, Rows, Span, Table
from explorer.report.present.figures import (
    bar_text,
    count,
    dash_zero,
    plain,
    seconds,
    share,
    share_text,
    size,
)
from explorer.report.present.look.info import answer
from explorer.settings.machines import find_other_peak_type

LIMITS: Mapping[str, Role] = {"compute": "good", "memory": "bar", "unknown": "warning"}
"""Role of each kind of bound."""

_UNCOUNTED = "a layer without MACs and bytes, such as a view, is in neither"
"""Remark on the numbers of bound layers, whose sum may be below the number of nodes."""


def format_machine(machine: Machine) -> str:
    """Describe a machine in one line: 'npu: 4.00 TMAC/s, 100.00 GB/s'."""
    name = f"{machine.name}: " if machine.name else ""
    return f"{name}{rate_text(machine.peak_macs, 'MAC/s')}, {rate_text(machine.bandwidth, 'B/s')}"


def roofline(info: Info, fact: Roofline) -> list[Block]:
    """Return the answer of `explorer roofline`."""
    return answer(info, build_roofline_blocks(fact))


def build_roofline_blocks(fact: Roofline) -> list[Block]:
    """Return the minimum time, its bounds, and each layer's share of it."""
    return [figures(fact), Chart("roofline", fact), Line(), build_layer_table(fact, sort_by_time(fact))]


def sort_by_time(fact: Roofline) -> list[RooflinePoint]:
    """Sort the layers by time, slowest first; layers of unknown time come last."""
    return sorted(fact.points, key=lambda p: -1.0 if p.seconds is None else -p.seconds - 1)


def figures(
    fact: Roofline, *, brief: bool = False, separate: bool = False, profile: Profile | None = None
) -> Fields:
    """Return the machine, the minimum time, and the number of layers per bound.

    Args:
        fact: The roofline.
        brief: Whether to leave out the bounds of the minimum time.
        separate: Whether name and rates of the machine are separate fields, for narrow panes.
        profile: Profile with measured times, or None.
    """
    sign = ">= " if fact.coverage < 1 else ""
    bounds = [
        Field("  all MACs at full rate", seconds(fact.compute_seconds, sign)),
        Field(
            *("  all bytes at full bandwidth", seconds(fact.memory_seconds, sign)),
            "each layer's reads and writes",
        ),
    ]
    rows = [
        *_build_machine_fields(fact, separate=separate),
        build_ridge_field(fact.ridge),
        Field("Least time", seconds(fact.seconds, sign), "layer after layer, each at its limit", "time"),
        *([] if profile is None else [build_measured_field(profile)]),
        *([] if brief else bounds),
        Field("Compute-bound layers", plain(fact.compute_bound), short="compute-bound"),
        Field("Memory-bound layers", plain(fact.memory_bound), "" if brief else _UNCOUNTED, "memory-bound"),
    ]
    if fact.unknown:
        rows.append(Field(Span("Unknown", "warning"), plain(fact.unknown), "not in the figures above"))
    return Fields(rows)


def _build_machine_fields(fact: Roofline, *, separate: bool) -> list[Field]:
    """Return the machine, with a warning if its peak is not that of the multiplied number type."""
    machine = fact.machine
    other_type = find_other_peak_type(machine, fact.multiplied)
    type_field = Field(
        "Peak's number type",
        Span(f"{other_type}, not {fact.multiplied}", "warning"),
        f"the model multiplies {fact.multiplied}; --peak-macs sets its peak",
        "peak of",
    )
    type_fields = [type_field] if other_type else []
    if not separate:
        return [Field("Machine", format_machine(machine), machine.origin, "machine"), *type_fields]
    return [
        Field("Machine", machine.name or "as typed", short="machine"),
        Field("Peak", rate_text(machine.peak_macs, "MAC/s"), short="peak"),
        *type_fields,
        Field("Bandwidth", rate_text(machine.bandwidth, "B/s"), short="bandwidth"),
    ]


def build_ridge_field(ridge: float) -> Field:
    """Return the ridge: the intensity at which compute and memory take equally long."""
    return Field(
        "Ridge", f"{ridge:,.1f} FLOPs/byte", "below it memory-bound, above it compute-bound", "ridge"
    )


def describe_total(fact: Roofline, points: Sequence[RooflinePoint]) -> Line:
    """Return the total time of several layers."""
    known_seconds = [point.seconds for point in points if point.seconds is not None]
    is_complete = len(known_seconds) == len(points)
    total_seconds = sum(known_seconds) if is_complete or any(known_seconds) else None
    time = seconds(total_seconds, "" if is_complete else ">= ")
    return Line(
        (f"{many_text(len(points), 'layer')} chosen: ", time, ", ", share(total_seconds, fact.seconds))
    )


def build_layer_table(
    fact: Roofline, points: Sequence[RooflinePoint], profile: Profile | None = None
) -> Table:
    """Return a table with one row per point, with measured times if there is a profile.

    The points are sorted, see `sort_by_time`.
    """
    largest = max((point.share for point in points), default=0.0)
    timed = {time.layer: time for time in profile.layers} if profile is not None else {}

    def row(point: RooflinePoint) -> tuple[Cell, ...]:
        is_unknown = point.intensity is None and point.bytes is None
        is_idle = point.seconds == 0
        return (
            point.path or "(unnamed)",
            Span(point.kind, "kind"),
            dash_zero(count(point.macs)),
            dash_zero(size(point.bytes)),
            Span("?", "warning")
            if is_unknown
            else Span(f"{point.intensity or 0:.2f}", value=point.intensity),
            Span("-" if is_idle else point.limit, "quiet" if is_idle else LIMITS[point.limit]),
            seconds(point.seconds),
            share(point.seconds, fact.seconds),
            *(_build_time_cells(timed.get(point.layer)) if timed else ()),
            bar_text(point.share, largest),
        )

    columns = (
        Column("layer", shrink=True),
        Column("kind", shrink=True, drop=3),
        Column("MACs", "right", drop=5),
        Column("bytes", "right", drop=6),
        Column("FLOPs/byte", "right", drop=4),
        Column("limit", drop=1),
        Column("least time", "right"),
        Column("of total", "right", drop=2),
        *((Column("measured", "right"), Column("of roof", "right", drop=2)) if timed else ()),
        Column("", role="bar", drop=7),
    )
    return Table(columns, Rows(row, points), what="layers, slowest first")


def _build_time_cells(layer_time: LayerTime | None) -> tuple[Cell, Cell]:
    """Return the measured time of a layer, and its efficiency on the profiled machine."""
    if layer_time is None or layer_time.seconds is None:
        return Span("in another" if layer_time is not None and layer_time.within else "", "quiet"), ""
    efficiency = (
        ""
        if layer_time.efficiency is None
        else Span(share_text(layer_time.efficiency, 1), value=layer_time.efficiency)
    )
    return seconds(layer_time.seconds.median), efficiency


def build_measured_field(profile: Profile) -> Field:
    """Return the wall time of a run."""
    batch = "" if profile.batch is None else f"batch {profile.batch:,}, "
    return Field("Wall time", seconds(profile.wall_seconds), f"{batch}{profile.device}, one run", "wall")
