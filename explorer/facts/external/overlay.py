"""Overlay: figures from outside, of a profiler or a spreadsheet, on the rows of the layer tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

Over = Literal["sum", "mean", "max", "min"]
"""What a group has of the figures in it; a mean is over the layers that have a figure."""
OutsideUnit = Literal["seconds", "bytes", "share", "number"]
"""What the figures are, converted; 'number' is any other unit, as the file has it."""


class OverlayColumn(Struct, frozen=True):
    """A column of outside figures.

    Attributes:
        name: As it is typed: 'latency'.
        head: As it is printed.
        unit: Of the figures.
        over: What a group has.
    """

    name: str
    head: str
    unit: OutsideUnit
    over: Over = "sum"


class OutsideFigure(Struct, frozen=True):
    """A figure from outside, with the head and the unit of its column."""

    value: float
    head: str
    unit: OutsideUnit


class Overlay(Struct, frozen=True):
    """Outside figures, matched to layers.

    Attributes:
        sources: The files.
        columns: From left to right.
        figures: By the name of a column, by the id of a row that has one, groups too; -1: the whole model.
        rows: Rows of the files.
        matched: How many of them are of layers of this model.
        layers: How many layers and groups have figures of their own.
        unmatched: Names and globs of the files that are no layer.
        ambiguous: Names that several layers have, and are of none.
        notes: What else to know, in words: columns that hold no numbers, layers that several globs match.
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
