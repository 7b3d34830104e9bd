"""Text output of `explorer serving --sweep`."""

from __future__ import annotations

from collections.abc import Callable

from explorer.base.units import bytes_text, printable
from explorer.facts.serving.sweep import ServingRow, ServingSweep
from explorer.features.sizes.serving_words import LAYOUT, LAYOUT_AXES, LIMITS, format_layout, rate_cell
from explorer.report.blocks import Block, Cell, Column, Heading, Line, Role, Span, Table
from explorer.report.present.computed_rows import describe_computed_rows
from explorer.report.present.figures import dash_zero, plain, seconds, size

_SETTINGS: tuple[tuple[str, str, Callable[[ServingRow], str]], ...] = (
    ("model", "model", lambda row: printable(row.model)),
    ("opening", "opened with", lambda row: printable(row.opening)),
    ("machine", "machine", lambda row: printable(row.machine)),
    ("prompt", "prompt", lambda row: f"{row.prompt:,}"),
    ("dtype", "weights in", lambda row: row.dtype or "its own"),
    ("kv_dtype", "KV in", lambda row: row.kv_dtype or "its own"),
    ("card", "memory", lambda row: "?" if row.card is None else bytes_text(row.card)),
)
"""Settings of a row: field, title and text.

A setting that differs between rows gets a column; all further settings go into the heading.
"""


def serving_sweep(fact: ServingSweep) -> list[Block]:
    """Build the output of `explorer serving --sweep`, with a row for each layout."""
    rows = [row for row in fact.rows if row.model not in fact.failed]
    varying = [column for column in _SETTINGS if len({getattr(row, column[0]) for row in rows}) > 1]
    shared = [
        column for column in _SETTINGS if column not in varying and rows and getattr(rows[0], column[0])
    ]
    title = " · ".join(
        [f"{'' if name == 'model' else title_text + ' '}{text(rows[0])}" for name, title_text, text in shared]
    )
    table = Table(
        (*[Column(title_text, shrink=True) for _, title_text, _ in varying], *_COLUMNS),
        [(*[text(row) for *_, text in varying], *_build_row(row)) for row in rows],
        what="rows",
    )
    front = (
        "* Pareto front: no other layout that fits is as good in time and tokens a device, and better in one"
    )
    blocks: list[Block] = [Heading("Serving", title), Line(), table, Line()]
    blocks.append(Line(Span(f"{LAYOUT}: {LAYOUT_AXES}", "quiet"), 2))
    if any(row.pareto for row in rows):
        blocks.append(Line(Span(front, "quiet"), 2))
    return [*blocks, Line(tuple(describe_computed_rows(fact)), 2)]


_COLUMNS = (
    Column("context", "right"),
    Column("batch", "right"),
    Column("devices", "right"),
    Column(LAYOUT, "right"),
    Column("weights", "right", drop=5),
    Column("cache", "right", drop=4),
    Column("a device", "right"),
    Column("sent a step", "right", drop=2),
    Column("first token", "right", drop=3),
    Column("a token", "right"),
    Column("tokens/s", "right"),
    Column("bound by", drop=6),
    Column(""),
    Column("", role="warning"),
)


def _build_row(row: ServingRow) -> tuple[Cell, ...]:
    sizes: tuple[Cell, ...] = (plain(row.context), plain(row.batch), plain(row.devices))
    if row.weight_bytes is None or row.cache_bytes is None:
        return (*sizes, *[Span("-", "quiet")] * 8, "", printable(row.error))
    device_bytes = row.weight_bytes + row.cache_bytes
    role: Role = "bad" if row.fits is False else "figure"
    return (
        *sizes,
        format_layout(row),
        size(row.weight_bytes),
        size(row.cache_bytes),
        Span(bytes_text(device_bytes), role, f"{device_bytes:,}", device_bytes),
        dash_zero(size(row.link_bytes)),
        seconds(row.first_token),
        seconds(row.token),
        rate_cell(row.rate),
        Span(LIMITS[row.bound], "quiet"),
        Span("*" if row.pareto else "", "good"),
        "",
    )
