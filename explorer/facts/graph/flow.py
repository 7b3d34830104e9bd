"""The edges between the rows of a layer tree, value by value, as they are kept."""

from __future__ import annotations

from msgspec import Struct

from explorer.facts import Shape, TensorInfo
from explorer.facts.graph.connections import InputSource


class ValueRecord(Struct, frozen=True):
    """A value: what it is, who made it (row `maker`, -1 for none), and the rows that read it."""

    info: TensorInfo
    source: InputSource
    maker: int
    readers: tuple[int, ...]
    is_output: bool


class FlowRecord(Struct, frozen=True):
    """Values; by row the places of those that it makes and reads; open shapes as the file declares them."""

    values: tuple[ValueRecord, ...]
    made: dict[int, tuple[int, ...]]
    read: dict[int, tuple[int, ...]]
    declared: dict[str, Shape] = {}
