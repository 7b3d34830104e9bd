"""Settings in text, what is asked of every site, and who said so: `explorer settings`."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.base.units import edges_text, exact_text, sizes_text
from explorer.facts import Info
from explorer.facts.settings import Settings, SiteSettings, UnusedRule
from explorer.report.blocks import Block, Cell, Column, Line, Paragraph, Span, Table

_DEFAULT = "default"


def settings(about: Info, fact: Settings) -> list[Block]:
    """The answer of `explorer settings`: a row for every site, and behind every value where it was said."""
    on = sum(site.on for site in fact.sites)
    grouped = f"{fact.grouped}{origin_text(fact.grouped_origin)}"
    head = f"   {on:,} of {len(fact.sites):,} matmuls are tiled; grouped convolutions: {grouped}"
    blocks: list[Block] = [Line((Span(about.model.source, "strong"), Span(head, "quiet"))), Line()]
    columns = (
        Column("matmul", shrink=True),
        Column("operator", drop=2, role="quiet"),
        Column("M", "right", drop=1),
        Column("K", "right", drop=1),
        Column("N", "right", drop=1),
        *(Column(name) for name in ("tiled", "tile", "edges", "form")),
    )
    if fact.sites:
        blocks.append(Table(columns, [_row(site) for site in fact.sites]))
        blocks.append(Line())
    blocks.append(
        Paragraph(
            "In brackets where a value was said; one without was said nowhere and is the default."
            " Partial tiles are those of --edges ragged.",
            "quiet",
        )
    )
    return [*blocks, *unused_rules(fact.unused, "matmul")]


def unused_rules(rules: Sequence[UnusedRule], what: str) -> list[Block]:
    """Rules that mean nothing in this model."""
    near = [f"; did you mean '{rule.near}'?" if rule.near else "" for rule in rules]
    return [
        Paragraph(f"{rule.origin or 'a rule'} means no {what} here: {rule.says}{hint}", "warning")
        for rule, hint in zip(rules, near, strict=True)
    ]


def _row(site: SiteSettings) -> tuple[Cell, ...]:
    values = {
        "on": "yes" if site.on else "no",
        "tile": sizes_text(site.tile),
        "edges": edges_text(site.edges),
        "form": site.form,
    }
    said: list[Cell] = []
    for name, value in values.items():
        # how a site would be tiled that is not says nothing
        hidden = name != "on" and not site.on
        said.append(
            Span("", "quiet") if hidden else (Span(value), Span(origin_text(site.origins[name]), "quiet"))
        )
    return (site.name, site.op, exact_text(site.M), exact_text(site.K), exact_text(site.N), *said)


def origin_text(origin: str) -> str:
    """Who said a value, in brackets behind it; nothing of the default."""
    return "" if origin == _DEFAULT else f" ({origin})"
