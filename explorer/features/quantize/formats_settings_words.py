"""Quantization settings in text, of every layer, and who said so: `explorer settings --formats`."""

from __future__ import annotations

from explorer.base.units import exact_text, printable
from explorer.facts import Info
from explorer.facts.quantize import PARTS
from explorer.facts.settings import LayerSettings, QuantizeSettings
from explorer.features.tiling.tile_words import origin_text, unused_rules
from explorer.report.blocks import Block, Cell, Column, Line, Paragraph, Span, Table

_COLUMNS = (
    Column("layer", shrink=True),
    Column("operator", drop=2, role="quiet"),
    *(Column(axis, "right", drop=1) for axis in "MKN"),
    *(Column(name) for name in ("weight", "input", "bias", "scales")),
    Column("written", drop=3),
)


def quantize_settings(about: Info, fact: QuantizeSettings) -> list[Block]:
    """A row for every layer, and behind every value where it was said."""
    on = sum(not layer.reason for layer in fact.layers)
    head = f"   {on:,} of {len(fact.layers):,} layers take a number format"
    return [
        Line((Span(about.model.source, "strong"), Span(head, "quiet"))),
        Line(),
        Table(_COLUMNS, [_row(layer) for layer in fact.layers]),
        Line(),
        Paragraph(
            "In brackets where a value was said; one without was said nowhere and is the default.", "quiet"
        ),
        *unused_rules(fact.unused, "layer"),
    ]


def _row(layer: LayerSettings) -> tuple[Cell, ...]:
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
