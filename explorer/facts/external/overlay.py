"""Facts about an overlay: figures of a profiler or a spreadsheet on the rows of the layer tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from explorer.base.fact import Fact

Over = Literal["sum", "mean", "max", "min"]
"""How a group combines the figures of its layers. A mean is over the layers that have a figure."""
OutsideUnit = Literal["seconds", "bytes", "share", "number"]
"""Unit of the figures after conversion. 'number' is any other unit, with the values of the file."""


class OverlayColumn(Fact, frozen=True):
    """A column of figures from outside the program.

    Attributes:
        name: Name of the column in options and filters: 'latency'.
        head: Header of the column.
        unit: Unit of the figures.
        over: How a group combines the figures of its layers.
    """

    name: str
    head: str
    unit: OutsideUnit
    over: Over = "sum"


class OutsideFigure(Fact, frozen=True):
    """A figure from outside the program, with the header and the unit of its column."""

    value: float
    head: str
    unit: OutsideUnit


class Overlay(Fact, frozen=True):
    """Figures from outside the program, matched to layers.

    Attributes:
        sources: Paths of the files.
        columns: Columns from left to right.
        figures: Figures by column name and row id, of layers and groups. The id -1 is the full model.
        rows: Number of rows in the files.
        matched: Number of those rows that match a layer of this model.
        layers: Number of layers and groups that have figures of their own.
        unmatched: Names and globs of the files that match no layer.
        ambiguous: Names that several layers have. Their figures are not used.
        notes: Further remarks, in words: columns without numbers, layers that several globs match.
    """

    sources: tuple[str, ...]
    columns: tuple[OverlayColumn, ...]
    figures: Mapping[str, Mapping[int, float]]
    rows: int
    matched: int
    layers: int
    unmatched: tuple[str, ...] = ()
    ambiguous: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
