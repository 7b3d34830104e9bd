"""Text output for overlays (external figures) and for the execution providers of onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.base.units import printable, shape_text
from explorer.facts.external.overlay import Overlay
from explorer.facts.external.placement import Placement
from explorer.report.blocks import Block, Column, Field, Fields, Heading, Line, Paragraph, Table
from explorer.report.present.figures import plain, size

_MAX_NAMED = 6
"""Maximum number of names that are listed. JSON contains all."""
_JSON_HAS_ALL = "--json has all"


def overlay_blocks(fact: Overlay) -> list[Block]:
    """Return how many rows of the files matched layers, and the names that did not."""
    files = ", ".join(printable(source) for source in fact.sources)
    text = (
        f"{files}: {fact.matched:,} of {fact.rows:,} rows are of this model, and give figures to"
        f" {fact.layers:,} of its layers."
    )
    blocks: list[Block] = [Line(), Paragraph(text, "quiet")]
    if fact.unmatched:
        blocks.append(Paragraph(f"No layer is called {_list_names(fact.unmatched)}.", "warning"))
    if fact.ambiguous:
        blocks.append(
            Paragraph(f"Several layers are called {_list_names(fact.ambiguous)}: write the path.", "warning")
        )
    return [*blocks, *(Paragraph(f"{printable(note)}.", "warning") for note in fact.notes)]


def _list_names(names: Sequence[str]) -> str:
    listed = ", ".join(f"'{printable(name)[:60]}'" for name in names[:_MAX_NAMED])
    unlisted_count = len(names) - _MAX_NAMED
    return f"{listed} and {unlisted_count:,} more" if unlisted_count > 0 else listed


def build_placement_blocks(fact: Placement) -> list[Block]:
    """Return the number of layers per provider, the partitions, and the tensors between them."""
    available = ", ".join(_shorten_provider(name) for name in fact.available)
    rows = [
        Field(
            "Providers",
            f"{', '.join(_shorten_provider(name) for name in fact.asked)}",
            f"{fact.runtime} has {available}",
        ),
        *(
            Field(f"  {_shorten_provider(name)}", plain(count), "layers")
            for name, count in fact.layers.items()
        ),
        Field("Partitions", plain(len(fact.partitions))),
        Field("Boundaries", plain(len(fact.boundaries)), "tensors that another provider reads"),
    ]
    if fact.boundaries:
        sign = ">= " if fact.unknown else ""
        rows.append(
            Field("Bytes across", size(fact.bytes, sign), "copied where a provider has memory of its own")
        )
    if fact.removed:
        rows.append(Field("Run nowhere", plain(len(fact.removed)), "computed when it is loaded, or left out"))
    blocks: list[Block] = [Line(), Heading("Execution providers"), Fields(rows)]
    if len(fact.partitions) > 1:
        blocks += [Line(), _build_partition_table(fact), Line(), _build_boundary_table(fact)]
    if fact.fused:
        blocks += [Line(), _build_fusion_table(fact)]
    return [*blocks, *(Paragraph(f"{printable(note)}.", "quiet") for note in fact.notes)]


def _shorten_provider(provider: str) -> str:
    """Return the common name of a provider, such as 'CPU'."""
    return printable(provider).removesuffix("ExecutionProvider") or "?"


def _build_partition_table(fact: Placement) -> Table:
    columns = (
        Column("#", "right"),
        Column("provider"),
        Column("layers", "right"),
        Column("first", shrink=True),
        Column("last", shrink=True),
    )
    rows = [
        (
            str(index + 1),
            _shorten_provider(part.provider),
            plain(len(part.layers)),
            part.layers[0],
            part.layers[-1],
        )
        for index, part in enumerate(fact.partitions)
    ]
    return Table(columns, rows, what="partitions, as they run", more=_JSON_HAS_ALL)


def _build_boundary_table(fact: Placement) -> Table:
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
            _shorten_provider(boundary.source),
            _shorten_provider(boundary.target),
            size(boundary.bytes),
        )
        for boundary in fact.boundaries
    ]
    return Table(columns, rows, what="boundaries, in execution order", more=_JSON_HAS_ALL)


def _build_fusion_table(fact: Placement) -> Table:
    columns = (Column("runs as"), Column("on"), Column("layers", shrink=True))
    rows = [
        (operator.op, _shorten_provider(operator.provider), " + ".join(operator.layers))
        for operator in fact.fused
    ]
    return Table(columns, rows, what="operators that run several layers", more=_JSON_HAS_ALL)
