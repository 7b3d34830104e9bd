"""Records of the values that flow between the rows of a layer tree, as the cache stores them."""

from __future__ import annotations

from msgspec import field

from explorer.base.fact import Fact
from explorer.facts import Shape, TensorInfo
from explorer.facts.graph.connections import InputSource


class ValueRecord(Fact, frozen=True):
    """A value that flows between rows of the layer tree.

    `maker` is the id of the row that produces it, or -1 for none. `readers` are the ids of the rows that read
    it.
    """

    info: TensorInfo
    source: InputSource
    maker: int
    readers: tuple[int, ...]
    is_output: bool


class FlowRecord(Fact, frozen=True):
    """All values of a model.

    `made` and `read` map a row id to the indices of the values that the row produces and reads. `declared`
    maps a value name to its shape in the file, if that shape has open sizes.
    """

    values: tuple[ValueRecord, ...]
    made: dict[int, tuple[int, ...]]
    read: dict[int, tuple[int, ...]]
    declared: dict[str, Shape] = field(default_factory=dict)
