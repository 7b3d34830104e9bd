"""Text output of `explorer profile A B`: time differences by layer; those within noise are marked."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.base.units import many_text, percent_text, seconds_text
from explorer.facts.profile.comparison import LayerChange, ProfileComparison
from explorer.facts.profile.profile import Profile, Spread
from explorer.report.blocks import Block, Cell, Column, Field, Fields, Line, Paragraph, Span, Table, table_of
from explorer.report.present.figures import plain, seconds

_ROUNDING = 1e-12
"""Differences below this number of seconds come from floating-point rounding."""


def comparison(fact: ProfileComparison, limit: int | None) -> list[Block]:
    """Build the output of `explorer profile A B`, with the `limit` layers that differ most."""
    largest = sort_largest_first(fact)
    layers = largest[:limit]
    blocks: list[Block] = [build_wall_table(fact), Line(), build_change_table(layers)]
    if len(largest) > len(layers):
        blocks.append(
            Line(Span(f"{len(layers):,} of {len(largest):,} rows, those that differ most; --top", "quiet"))
        )
    return [*blocks, *notes(fact)]


def sort_largest_first(fact: ProfileComparison) -> list[LayerChange]:
    """Sort the rows by the size of their difference, largest first."""
    return sorted(fact.layers, key=lambda change: -abs(change.difference))


def notes(fact: ProfileComparison) -> list[Block]:
    """Return the notes of the comparison and of both profiles, without duplicates."""
    texts = dict.fromkeys((*fact.notes, *fact.before.notes, *fact.after.notes))
    return [Paragraph(note) for note in texts]


def build_wall_table(fact: ProfileComparison) -> Fields:
    """Build the fields with both wall times, their difference and its parts."""
    rows = [
        Field(name, seconds(profile.wall_seconds), _run_text(profile))
        for name, profile in zip(fact.names, (fact.before, fact.after), strict=True)
    ]
    before_seconds = fact.before.wall_seconds
    share = (
        f"{percent_text(abs(fact.difference), before_seconds)} {'more' if fact.difference > 0 else 'less'}"
    )
    rows.append(
        Field(
            "Difference",
            _format_difference(fact.difference, fact.significant),
            f"{share}{_format_noise(fact.significant)}",
        )
    )
    overhead = fact.after.overhead_seconds - fact.before.overhead_seconds
    rows.append(Field("  of which overhead", _format_difference(overhead, True), "no kernel runs"))
    if slowed := fact.before.slowed_seconds - fact.after.slowed_seconds:
        remark = "the profiler slows kernels by this time: compare shares instead"
        rows.append(Field("  less slowed kernels", _format_difference(slowed, True), remark))
    if uncertain := [change for change in fact.layers if change.significant is None]:
        counts = [
            side.count for change in uncertain for side in (change.before, change.after) if side is not None
        ]
        runs = many_text(min(counts, default=0), "run")
        remark = f"marked ?: {runs} under the profiler, but each needs six: pass a longer --time-limit"
        rows.append(Field("Uncertain layers", plain(len(uncertain)), remark))
    loaded = fact.before.load or fact.after.load
    if loaded:
        rows.append(Field(Span("Loaded machine", "warning"), Span("yes", "warning"), loaded, "loaded"))
    return Fields(rows)


def _run_text(profile: Profile) -> str:
    batch = "" if profile.batch is None else f"batch {profile.batch:,}; "
    low, high = seconds_text(profile.wall.low), seconds_text(profile.wall.high)
    sure = f"95 % of the median {low} to {high}; " if profile.wall.sure else ""
    threads = many_text(profile.threads, "thread")
    return f"{batch}{sure}{many_text(profile.runs, 'run')}, {profile.device}, {threads}"


def _format_noise(is_significant: bool | None) -> str:
    if is_significant is None:
        return "; to tell this from noise, each needs at least six runs"
    return "" if is_significant else "; within noise"


def _format_difference(value: float, is_significant: bool | None) -> Span:
    value = value if abs(value) > _ROUNDING else 0.0
    text = f"{'+' if value > 0 else '-' if value < 0 else ''}{seconds_text(abs(value))}"
    return Span(text, "figure" if is_significant else "quiet", value=value)


def build_change_table(layers: Sequence[LayerChange]) -> Table:
    """Build a table with a row for each pair of layers."""
    cell_by_certainty = {True: Span("yes"), False: Span("noise", "quiet"), None: Span("?", "quiet")}
    return table_of(
        layers,
        (
            (Column("layer", shrink=True), lambda change: change.path or "(unnamed)"),
            (Column("kind", shrink=True, drop=3), lambda change: Span(change.kind, "kind")),
            (Column("", drop=2), lambda change: change.status),
            (Column("before", "right"), lambda change: _format_time(change.before)),
            (Column("after", "right"), lambda change: _format_time(change.after)),
            (
                Column("difference", "right"),
                lambda change: _format_difference(change.difference, change.significant),
            ),
            (Column("sure", drop=1), lambda change: cell_by_certainty[change.significant]),
        ),
        what="layers, those that differ most first",
    )


def _format_time(times: Spread | None) -> Cell:
    return Span("-", "quiet", value=0) if times is None else seconds(times.median)
