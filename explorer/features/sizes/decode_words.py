"""Text output of `explorer decode` and of the decode screen: a decode step compared with the prefill pass."""

from __future__ import annotations

from explorer.facts import Info
from explorer.facts.sizes.decode import Decode
from explorer.report.blocks import Block, Cell, Column, Field, Fields, Line, Paragraph, Span, Table, table_of
from explorer.report.present.figures import bytes_field, count, dash_zero, plain, size
from explorer.report.present.look.info import title


def decode(info: Info, fact: Decode) -> list[Block]:
    """Build the output of `explorer decode`."""
    return [*title(info.model), Line(), *decode_blocks(fact)]


def decode_blocks(fact: Decode) -> list[Block]:
    """Compare the cache with the weights, then prefill with decode step: totals and each layer."""
    return [
        passes_line(fact),
        Line(),
        cache_figures(fact),
        Line(),
        totals_table(fact),
        Line(),
        layers_table(fact),
        Line(),
        Paragraph(f"The step: {fact.how}.", "quiet"),
        *([Paragraph(f"No pass over the text: {fact.reason}", "warning")] if fact.reason else []),
    ]


def passes_line(fact: Decode) -> Line:
    """State the number of tokens at which the cache becomes larger than the weights."""
    if fact.kv_passes_weights is None:
        return Line(Span("this model keeps no keys and values: it has no cache", "warning"))
    crossing = f"KV cache passes the weights at {fact.kv_passes_weights:,} tokens"
    if fact.checked:
        return Line((Span(crossing, "strong"), Span(", counted there and with one token less", "quiet")))
    return Line(
        (Span(crossing, "strong"), Span(f", by division, not by a count: {fact.unchecked}", "warning"))
    )


def cache_figures(fact: Decode) -> Fields:
    """Build the fields for the bytes of the cache and of the weights."""
    rows = [
        Field("Tokens", plain(fact.tokens), "of the text, all in the cache at the step"),
        bytes_field(
            "KV cache, a token",
            fact.kv_bytes_per_token,
            "",
            "keys and values of all layers, for the full batch",
            "KV/token",
        ),
        bytes_field("KV cache", fact.kv_cache_bytes, "", f"of {fact.tokens:,} tokens", "KV cache"),
        bytes_field("Weight bytes", fact.weight_bytes, "", "", "weights"),
    ]
    return Fields(rows)


def totals_table(fact: Decode) -> Table:
    """Build a table of the totals of prefill and decode step."""
    prefill = fact.prefill

    def row(label: str, name: str, kind: str) -> tuple[Cell, ...]:
        prefill_total: int | None = None if prefill is None else getattr(prefill, name)
        step_total: int | None = getattr(fact.decode, name)
        per_token = prefill_total / fact.tokens if prefill_total is not None else None
        times = "" if not per_token or step_total is None else f"{step_total / per_token:,.2f}"
        text = count if kind == "count" else size
        return label, text(prefill_total), text(step_total), times

    rows = [
        row("MACs", "macs", "count"),
        row("Bytes read", "bytes_read", "bytes"),
        row("  of weights", "weight_bytes_read", "bytes"),
        row("Bytes written", "bytes_written", "bytes"),
        row("Activations, peak", "activation_bytes_peak", "bytes"),
    ]
    columns = (
        Column(""),
        Column(f"prefill, {fact.tokens:,} tokens", "right"),
        Column("decode, 1 token", "right"),
        Column("times a token of prefill", "right", drop=1),
    )
    return Table(columns, rows)


def layers_table(fact: Decode) -> Table:
    """Build a table with a row for each layer that has MACs in either pass, or reads the cache."""
    return table_of(
        fact.rows,
        (
            (Column("layer", shrink=True), lambda row: row.path or "(unnamed)"),
            (Column("kind", shrink=True, drop=3), lambda row: Span(row.kind, "kind")),
            (Column("MACs: prefill", "right", drop=2), lambda row: dash_zero(count(row.prefill_macs))),
            (Column("decode", "right"), lambda row: dash_zero(count(row.decode_macs))),
            (Column("bytes: prefill", "right", drop=1), lambda row: dash_zero(size(row.prefill_bytes))),
            (Column("decode", "right"), lambda row: dash_zero(size(row.decode_bytes))),
            (Column("KV read", "right"), lambda row: dash_zero(size(row.kv_cache_bytes or 0))),
        ),
        what="layers",
    )
