"""Overlays and placement in text: figures from outside, and which provider of onnxruntime runs what."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.base.units import printable, shape_text
from explorer.facts.external.overlay import Overlay
from explorer.facts.external.placement import Placement
from explorer.report.blocks import Block, Column, Field, Fields, Heading, Line, Paragraph, Table
from explorer.report.present.figures import plain, size

_NAMED = 6
"""Names that are told; the others are counted, and stand in JSON."""
_ALL = "--json has all"


def overlay_blocks(fact: Overlay) -> list[Block]:
    """How many rows of a file are layers of the model, and which are none."""
    files = ", ".join(printable(source) for source in fact.sources)
    text = (
        f"{files}: {fact.matched:,} of {fact.rows:,} rows are of this model, and give figures to"
        f" {fact.layers:,} of its layers."
    )
    blocks: list[Block] = [Line(), Paragraph(text, "quiet")]
    if fact.unmatched:
        blocks.append(Paragraph(f"No layer is called {_some(fact.unmatched)}.", "warning"))
    if fact.ambiguous:
        blocks.append(
            Paragraph(f"Several layers are called {_some(fact.ambiguous)}: write the path.", "warning")
        )
    return [*blocks, *(Paragraph(f"{printable(note)}.", "warning") for note in fact.notes)]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{printable(name)[:60]}'" for name in names[:_NAMED])
    more = len(names) - _NAMED
    return f"{shown} and {more:,} more" if more > 0 else shown


def placement_blocks(fact: Placement) -> list[Block]:
    """Which providers run how many layers, in how many partitions, and what goes between them."""
    there = ", ".join(_short(name) for name in fact.available)
    rows = [
        Field(
            "Providers", f"{', '.join(_short(name) for name in fact.asked)}", f"{fact.runtime} has {there}"
        ),
        *(Field(f"  {_short(name)}", plain(count), "layers") for name, count in fact.layers.items()),
        Field("Partitions", plain(len(fact.partitions))),
        Field("Boundaries", plain(len(fact.boundaries)), "tensors that another provider reads"),
    ]
    if fact.boundaries:
        least = ">= " if fact.unknown else ""
        rows.append(
            Field("Bytes across", size(fact.bytes, least), "copied where a provider has memory of its own")
        )
    if fact.removed:
        rows.append(Field("Run nowhere", plain(len(fact.removed)), "computed when it is loaded, or left out"))
    blocks: list[Block] = [Line(), Heading("Execution providers"), Fields(rows)]
    if len(fact.partitions) > 1:
        blocks += [Line(), _partitions(fact), Line(), _boundaries(fact)]
    if fact.fused:
        blocks += [Line(), _fused(fact)]
    return [*blocks, *(Paragraph(f"{printable(note)}.", "quiet") for note in fact.notes)]


def _short(provider: str) -> str:
    """A provider as people call it: 'CPU'."""
    return printable(provider).removesuffix("ExecutionProvider") or "?"


def _partitions(fact: Placement) -> Table:
    columns = (
        Column("#", "right"),
        Column("provider"),
        Column("layers", "right"),
        Column("first", shrink=True),
        Column("last", shrink=True),
    )
    rows = [
        (str(at + 1), _short(part.provider), plain(len(part.layers)), part.layers[0], part.layers[-1])
        for at, part in enumerate(fact.partitions)
    ]
    return Table(columns, rows, what="partitions, as they run", more=_ALL)


def _boundaries(fact: Placement) -> Table:
    columns = (
        Column("tensor", shrink=True),
        Column("shape"),
        Column("from"),
        Column("to"),
        Column("bytes", "right"),
    )
    rows = [
        (
            boundary.tensor,
            shape_text(boundary.shape),
            _short(boundary.source),
            _short(boundary.target),
            size(boundary.bytes),
        )
        for boundary in fact.boundaries
    ]
    return Table(columns, rows, what="boundaries, as they are met", more=_ALL)


def _fused(fact: Placement) -> Table:
    columns = (Column("runs as"), Column("on"), Column("layers", shrink=True))
    rows = [(one.op, _short(one.provider), " + ".join(one.layers)) for one in fact.fused]
    return Table(columns, rows, what="operators made of several layers", more=_ALL)
