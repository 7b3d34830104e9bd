"""Decode step in text, beside the pass over its text: `explorer decode`, the page of decoding."""

from __future__ import annotations

from explorer.facts import Info
from explorer.facts.sizes.decode import Decode, DecodeTotals
from explorer.report.blocks import Block, Cell, Column, Field, Fields, Line, Paragraph, Span, Table, table_of
from explorer.report.present.figures import bytes_field, count, plain, quiet_zero, size
from explorer.report.present.look.info import title


def decode(about: Info, fact: Decode) -> list[Block]:
    """The answer of `explorer decode`."""
    return [*title(about.model), Line(), *decode_blocks(fact)]


def decode_blocks(fact: Decode) -> list[Block]:
    """The cache against the weights, both kinds of work in total, and layer by layer."""
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
    """From how many tokens on the cache takes more than the weights."""
    if fact.kv_passes_weights is None:
        return Line(Span("this model keeps no keys and values: it has no cache", "warning"))
    shown = f"KV cache passes the weights at {fact.kv_passes_weights:,} tokens"
    if fact.checked:
        return Line((Span(shown, "strong"), Span(", counted there and at one token less", "quiet")))
    return Line(
        (Span(shown, "strong"), Span(f", by division; not counted there: {fact.unchecked}", "warning"))
    )


def cache_figures(fact: Decode) -> Fields:
    """What the cache takes, beside the weights."""
    each = fact.kv_bytes_per_token
    rows = [
        Field("Tokens", plain(fact.tokens), "of the text, all in the cache at the step"),
        bytes_field(
            "KV cache, a token", each, "", "keys and values of all layers, the whole batch", "KV/token"
        ),
        bytes_field("KV cache", fact.kv_cache_bytes, "", f"of {fact.tokens:,} tokens", "KV cache"),
        bytes_field("Weight bytes", fact.weight_bytes, "", "", "weights"),
    ]
    return Fields(rows)


def totals_table(fact: Decode) -> Table:
    """Both kinds of work in total."""
    prefill = fact.prefill

    def row(label: str, what: str, kind: str) -> tuple[Cell, ...]:
        a = None if prefill is None else _of(prefill, what)
        b = _of(fact.decode, what)
        each = a / fact.tokens if a is not None else None
        times = "" if not each or b is None else f"{b / each:,.2f}"
        make = count if kind == "count" else size
        return label, make(a), make(b), times

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


def _of(totals: DecodeTotals, name: str) -> int | None:
    value: int | None = getattr(totals, name)
    return value


def layers_table(fact: Decode) -> Table:
    """A row a layer that multiplies in either, or reads the cache."""
    return table_of(
        fact.rows,
        (
            (Column("layer", shrink=True), lambda one: one.path or "(unnamed)"),
            (Column("kind", shrink=True, drop=3), lambda one: Span(one.kind, "kind")),
            (Column("MACs: prefill", "right", drop=2), lambda one: quiet_zero(count(one.prefill_macs))),
            (Column("decode", "right"), lambda one: quiet_zero(count(one.decode_macs))),
            (Column("bytes: prefill", "right", drop=1), lambda one: quiet_zero(size(one.prefill_bytes))),
            (Column("decode", "right"), lambda one: quiet_zero(size(one.decode_bytes))),
            (Column("KV read", "right"), lambda one: quiet_zero(size(one.kv_cache_bytes or 0))),
        ),
        what="layers",
    )
