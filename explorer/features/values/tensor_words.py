"""Text output of `explorer values`: the numbers of a tensor as a table or as a map."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

from explorer.base.units import exact_text, shape_text
from explorer.facts import TensorInfo, to_json
from explorer.facts.values import HeatMap, Outlier, TensorValues, ValuesBefore
from explorer.features.values.weights_words import figures
from explorer.report.blocks import Block, Cell, Column, Field, Fields, Heading, Line, Paragraph, Span, Table

LEVELS = " ░▒▓█"
"""Shades for magnitudes from 0 to the largest, for output without colors."""


def tensor_values(fact: TensorValues) -> list[Block]:
    """Build the output of `explorer values`: a slice, its stored codes, and the slice of another model."""
    blocks = [
        *tensor_head(fact.tensor, fact.layer, fact.role, fact.source, fact.notes),
        *(Paragraph(text, "quiet") for text in fact.inputs),
    ]
    if fact.calls > 1:
        blocks.append(Paragraph(f"the first of {fact.calls:,} outputs of its layer", "quiet"))
    if fact.slice:
        blocks.append(
            Line((Span("slice ", "quiet"), fact.slice, Span(f"  {shape_text(fact.shape)}", "quiet")), 2)
        )
    blocks += _build_common_scale(fact)
    codes = fact.codes
    blocks += _build_grids(
        fact.indices,
        lambda position: (
            number(fact.values[position])
            if codes is None
            else (f"{number(fact.values[position])} ", Span(str(codes[position]), "quiet"))
        ),
    )
    blocks += _build_scale_tables(fact)
    if fact.before is not None:
        blocks += _build_before_blocks(fact.before, fact.indices)
    if fact.output:
        blocks += [Line(), Line((Span("numbers written to  ", "quiet"), Span(fact.output, "strong")))]
    return blocks


def number_rows(fact: TensorValues) -> Iterator[dict[str, Any]]:
    """Yield the rows of `--csv`: each listed number with its indices."""
    columns: dict[str, Sequence[Any] | None] = {
        "value": fact.values,
        "code": fact.codes,
        "scale": fact.scales,
        "zero_point": fact.zero_points,
        "offset": fact.offsets,
    }
    if fact.before is not None:
        columns |= {"before": fact.before.values, "difference": fact.before.differences}
    for position, place in enumerate(product(*fact.indices)):
        row: dict[str, Any] = {f"axis_{axis}": index for axis, index in enumerate(place)}
        yield row | {
            name: to_json(numbers[position]) for name, numbers in columns.items() if numbers is not None
        }


def tensor_head(tensor: TensorInfo, layer: str, role: str, source: str, notes: Sequence[str]) -> list[Block]:
    """Describe a tensor by name, type, shape and owner, with notes on its numbers."""
    type_text = f"  {tensor.dtype or '?'} {shape_text(tensor.shape)}"
    owner = f", {role} of {layer}" if layer and layer != tensor.name else f", {role}"
    return [
        Line((Span(tensor.name, "strong"), Span(type_text, "kind"), Span(f"{owner}   {source}", "quiet"))),
        *(Paragraph(note, "warning") for note in notes if note),
    ]


def _build_scale_tables(fact: TensorValues) -> list[Block]:
    """Build a table of scales and zero points if they differ, and one of offsets unless all are 0."""
    blocks: list[Block] = []
    scales, zeros, offsets = fact.scales or (), fact.zero_points or (), fact.offsets or ()
    if len(set(zip(scales, zeros, strict=False))) > 1:
        blocks += [Line(), Heading("Scales", "each with its zero point")]
        blocks += _build_grids(
            fact.indices,
            lambda position: (f"{number(scales[position])} ", Span(str(zeros[position]), "quiet")),
        )
    if any(offsets):
        blocks += [Line(), Heading("Offsets", "number = scale x (integer - zero point) + offset")]
        blocks += _build_grids(fact.indices, lambda position: number(offsets[position]))
    return blocks


def _build_common_scale(fact: TensorValues) -> list[Block]:
    """Explain the codes of quantized numbers, with the scale and zero point if all numbers share them."""
    pairs = set(zip(fact.scales or (), fact.zero_points or (), strict=False))
    if fact.scales is None:
        return []
    codes = "codes" if fact.tensor.dtype == fact.dtype else f"{fact.tensor.dtype} codes that are stored"
    text = f"{fact.dtype} numbers, and in gray the {codes}"
    if len(pairs) == 1:
        scale, zero = pairs.pop()
        text += f": scale {scale:.9g}, zero point {zero}"
    return [Paragraph(text, "quiet")]


def number(value: float | None) -> str:
    """Format a number with six digits, or an integer with all; '-' for None."""
    if value is None:
        return "-"
    if isinstance(value, (bool, int)):
        return str(value)
    return f"{value:.6g}"


def _build_grids(indices: Sequence[Sequence[int]], cell: Callable[[int], Cell]) -> list[Block]:
    """Build a table for each index of the leading axes; `cell` builds the cell of a position."""
    if not all(indices):
        return [Line(), Paragraph("no numbers", "quiet")]
    *outer, rows, columns = ((0,), (0,), *indices)[min(len(indices), 2) :]
    page_size = len(rows) * len(columns)
    across = _insert_gaps(columns)
    has_row_labels = len(indices) > 1
    head = [Column("", "right", role="quiet")] if has_row_labels else []
    head += [Column("…" if position is None else str(columns[position]), "right") for position in across]
    blocks: list[Block] = []
    for page, place in enumerate(product(*outer)):
        blocks.append(Line())
        if place:
            blocks.append(Line(Span(f"[{', '.join(map(str, place))}, :, :]", "quiet"), 2))
        body: list[Sequence[Cell]] = []
        for row_position in _insert_gaps(rows):
            if row_position is None:
                body.append(["…"] * len(head))
                continue
            start = page * page_size + row_position * len(columns)
            line: list[Cell] = [str(rows[row_position])] if has_row_labels else []
            body.append(
                [*line, *("…" if position is None else cell(start + position) for position in across)]
            )
        blocks.append(Table(tuple(head), body, 2, more="--slice chooses"))
    return blocks


def _insert_gaps(indices: Sequence[int]) -> list[int | None]:
    """Return the positions of `indices`, with None between indices whose step differs from the first step."""
    positions: list[int | None] = []
    step = indices[1] - indices[0] if len(indices) > 1 else 1
    for position, index in enumerate(indices):
        if position and index - indices[position - 1] != step:
            positions.append(None)
        positions.append(position)
    return positions


def _build_before_blocks(fact: ValuesBefore, indices: Sequence[Sequence[int]]) -> list[Block]:
    rows = [
        Field("equal", f"{exact_text(fact.equal)} of {exact_text(fact.elements)}"),
        Field("largest difference", number(fact.largest)),
        Field("root mean square", number(fact.rms)),
    ]
    if fact.largest_ulps is not None:
        rows.append(Field("ULPs, at most", exact_text(fact.largest_ulps)))
    tensor_text = f"{fact.tensor.name}, {fact.tensor.dtype}, of {fact.source}"
    ulps = fact.ulps
    return [
        Line(),
        Heading("Before", tensor_text),
        *_build_grids(indices, lambda position: number(fact.values[position])),
        Line(),
        Heading(
            "Difference",
            "each followed by its size in ULPs, units in the last place" if ulps is not None else "",
        ),
        Fields(rows),
        *_build_grids(
            indices,
            lambda position: (
                number(fact.differences[position])
                if ulps is None
                else (
                    f"{number(fact.differences[position])} ",
                    Span("-" if ulps[position] is None else str(ulps[position]), "quiet"),
                )
            ),
        ),
    ]


def heat_map(fact: HeatMap) -> list[Block]:
    """Build the output of `explorer values --map`: the map in shades, and the figures of the whole tensor."""
    blocks = [
        *tensor_head(fact.tensor, fact.layer, fact.role, fact.source, fact.notes),
        *_build_shades(fact),
        *map_figures(fact),
    ]
    if fact.before is None:
        return blocks
    earlier = fact.before
    earlier_text = f"{earlier.tensor.name}, {earlier.tensor.dtype}, of {earlier.source}"
    return [*blocks, Line(), Heading("Before", earlier_text), *_build_shades(earlier), *map_figures(earlier)]


def _build_shades(fact: HeatMap) -> list[Block]:
    largest = scale_of(fact)
    lines = (fact.cells[row * fact.widths : (row + 1) * fact.widths] for row in range(fact.heights))
    shades = (Line(Span("".join(find_shade(cell, largest) for cell in line), "bar"), 2) for line in lines)
    return [*map_lines(fact), Line(), *shades]


def map_figures(fact: HeatMap) -> list[Block]:
    """Build the figures, outliers and widest channels of the whole tensor."""
    if fact.stats is None:
        return []
    return [Line(), *figures(fact.stats), *outlier_table(fact.outliers), *channel_table(fact)]


def map_lines(fact: HeatMap) -> list[Block]:
    """State the part of the tensor in the map, and the meaning of a shade."""
    place = ", ".join((*map(str, fact.place), *(f"{a}:{b}" for a, b in (fact.rows, fact.columns))))
    meaning = (
        f"[{place}] in {fact.heights} x {fact.widths} cells: each shows its number of the largest magnitude"
    )
    return [Paragraph(f"{meaning}; the darkest is {number(scale_of(fact))}", "quiet")]


def scale_of(fact: HeatMap) -> float:
    """Return the magnitude of the largest cell."""
    return max((abs(cell) for cell in fact.cells if cell is not None), default=0.0)


def find_level(cell: float, largest: float, levels: int) -> int:
    """Return the step of a magnitude among `levels`; only zero has step 0."""
    if not cell or not largest:
        return 0
    return max(1, math.ceil(abs(cell) / largest * (levels - 1)))


def find_shade(cell: float | None, largest: float) -> str:
    """Return the shade of a cell, darker for a larger magnitude; '?' for NaN or Inf."""
    return "?" if cell is None else LEVELS[find_level(cell, largest, len(LEVELS))]


def outlier_table(outliers: Sequence[Outlier]) -> list[Block]:
    """Build a table of the numbers that are farthest from the mean."""
    if not outliers:
        return []
    rows = [
        (
            f"[{', '.join(map(str, outlier.index))}]",
            number(outlier.value),
            "-" if outlier.deviations is None else f"{outlier.deviations:.1f} std",
        )
        for outlier in outliers
    ]
    columns = (Column("index"), Column("value", "right"), Column("from the mean", "right"))
    return [Line(), Heading("Farthest from the mean"), Table(columns, rows, 2)]


def channel_table(fact: HeatMap) -> list[Block]:
    """Build a table of the widest ranges among the indices of the first axis."""
    ranges = [
        (i, low, high) for i, (low, high) in enumerate(fact.channels) if low is not None and high is not None
    ]
    if len(ranges) < 2:
        return []
    widest = sorted(ranges, key=lambda entry: (-(entry[2] - entry[1]), entry[0]))[:10]
    rows = [(str(i), number(low), number(high), number(high - low)) for i, low, high in widest]
    note = (
        f"{len(widest)} of {len(fact.channels):,} indices of axis 0"
        if len(widest) < len(ranges)
        else "axis 0"
    )
    columns = tuple(Column(title, "right") for title in ("channel", "min", "max", "range"))
    return [Line(), Heading("Widest channels", note), Table(columns, rows, 2)]
