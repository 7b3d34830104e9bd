"""Value flow, the edges between the rows of a layer tree: which row makes a tensor, which ones read it.

Kept per row and not per group: what goes into a group and comes out of it is what crosses its boundary, so
both kinds of model, whatever their groups are, get it in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial

from msgspec import Struct, field

from explorer.engine.costs.layer_rows import end_of
from explorer.facts import Layer, Shape, TensorInfo
from explorer.facts.graph.connections import (
    Connections,
    InputConnection,
    InputSource,
    LayerRef,
    OutputConnection,
)
from explorer.facts.graph.edges import RowEdges
from explorer.facts.graph.flow import FlowRecord, ValueRecord

SHOWN = 64
"""Tensors of one layer, and readers of one tensor, that are named; the others are counted."""

Described = Callable[[], TensorInfo]
"""Makes the description of a tensor: few are ever looked at."""


class FlowingValue(Struct, eq=False, gc=False):
    """A tensor from the moment it is made until something else is written in its place.

    Attributes:
        info: Its description.
        source: Who made it.
        maker: Row that made it; -1 for none.
        readers: Rows that read it, in execution order, each once.
        is_output: It is an output of the model.
    """

    info: Described
    source: InputSource
    maker: int
    readers: list[int] = field(default_factory=list)
    is_output: bool = False


class ValueFlow:
    """The edges of a model, put together in execution order.

    Attributes:
        made, read: Values by row.
        declared: Shapes with open sizes as the model's file declares them, by the names of tensors.
        constants: Rows in which are constants and shape arithmetic only; None until somebody has looked.
    """

    def __init__(self) -> None:
        self.declared: dict[str, Shape] = {}
        self.constants: frozenset[int] | None = None
        self.made: dict[int, list[FlowingValue]] = {}
        self.read: dict[int, list[FlowingValue]] = {}
        self._now: dict[Hashable, FlowingValue] = {}

    def make(self, row: int, key: Hashable, info: Described, source: InputSource = "layer") -> None:
        """A row makes a value (-1: no row does); what had its key before is not to be had any more."""
        value = self._now[key] = FlowingValue(info, source, row)
        if row >= 0:
            self.made.setdefault(row, []).append(value)

    def take(self, row: int, key: Hashable, info: Described, otherwise: InputSource = "unknown") -> None:
        """A row reads a value; one that nobody made comes from where `otherwise` says."""
        value = self._now.get(key)
        if value is None:
            value = self._now[key] = FlowingValue(info, otherwise, -1)
        if row < 0:
            return
        taken = self.read.setdefault(row, [])
        if value not in taken:
            taken.append(value)
            if not value.readers or value.readers[-1] != row:
                value.readers.append(row)

    def knows(self, key: Hashable) -> bool:
        """Whether there is a value of this key."""
        return key in self._now

    def is_stored(self, key: Hashable) -> bool:
        """Whether the value of this key is one that the model holds."""
        value = self._now.get(key)
        return value is not None and value.source == "stored"

    def put_out(self, key: Hashable) -> None:
        """A value is an output of the model."""
        if (value := self._now.get(key)) is not None:
            value.is_output = True


def record_of(flow: ValueFlow) -> FlowRecord:
    """The edges of a model as a fact."""
    values = {id(v): v for of_row in (*flow.made.values(), *flow.read.values()) for v in of_row}
    places = {key: place for place, key in enumerate(values)}
    made_places, read_places = (
        {row: tuple([places[id(value)] for value in row_values]) for row, row_values in of_rows.items()}
        for of_rows in (flow.made, flow.read)
    )
    records = [
        ValueRecord(v.info(), v.source, v.maker, tuple(v.readers), v.is_output) for v in values.values()
    ]
    return FlowRecord(tuple(records), made_places, read_places, flow.declared)


def flow_of(record: FlowRecord) -> ValueFlow:
    """The edges of a model that were made a fact."""
    values = [
        FlowingValue(partial(_itself, v.info), v.source, v.maker, list(v.readers), v.is_output)
        for v in record.values
    ]
    flow = ValueFlow()
    flow.declared = record.declared
    for of_rows, values_by_row in ((record.made, flow.made), (record.read, flow.read)):
        values_by_row.update({row: [values[place] for place in places] for row, places in of_rows.items()})
    return flow


def _itself(info: TensorInfo) -> TensorInfo:
    return info


def connections(flow: ValueFlow | None, layers: Sequence[Layer], at: int, unknown: str = "") -> Connections:
    """What goes into the row `at`, and where what comes out of it goes.

    Args:
        flow: The edges; None where the model does not say them.
        layers: The rows.
        at: A row.
        unknown: Why there are no edges.
    """
    layer = layers[at]
    if flow is None:
        return Connections(layer, unknown=unknown)
    end = end_of(layers, at)
    inputs = [*_entering(flow, at, end)]
    outputs: list[tuple[FlowingValue, Sequence[int]]] = [*_leaving(flow, at, end, layer.group)]
    fixed = flow.constants or frozenset()

    def constant(value: FlowingValue) -> bool:
        return value.source == "stored" or value.maker in fixed

    def for_sizes(out: tuple[FlowingValue, Sequence[int]]) -> bool:
        value, readers = out
        return bool(readers) and not value.is_output and all(reader in fixed for reader in readers)

    inputs.sort(key=constant)
    outputs = [(value, sorted(readers, key=fixed.__contains__)) for value, readers in outputs]
    outputs.sort(key=for_sizes)

    def ref(row: int) -> LayerRef:
        row_layer = layers[row]
        return LayerRef(row, row_layer.path, row_layer.kind)

    return Connections(
        layer,
        tuple(
            InputConnection(v.info(), v.source, ref(v.maker) if v.maker >= 0 else None, constant(v))
            for v in inputs[:SHOWN]
        ),
        tuple(
            OutputConnection(
                v.info(), tuple(map(ref, readers[:SHOWN])), len(readers), v.is_output, for_sizes((v, readers))
            )
            for v, readers in outputs[:SHOWN]
        ),
        len(inputs),
        len(outputs),
    )


def row_edges(flow: ValueFlow | None, unknown: str = "") -> RowEdges:
    """The edges between rows; what leads up the tree is left out, as `RowEdges` says."""
    if flow is None:
        return RowEdges(unknown=unknown)
    places = {row: place for place, row in enumerate(sorted({*flow.made, *flow.read}))}
    over: set[tuple[int, int]] = set()
    followers: set[int] = set()
    for maker, values in flow.made.items():
        place = places[maker]
        for reader in (reader for value in values for reader in value.readers):
            if places[reader] == place + 1:
                followers.add(reader)
            elif reader > maker:
                over.add((maker, reader))
    ordered = sorted(over)
    return RowEdges(
        tuple([maker for maker, _ in ordered]),
        tuple([reader for _, reader in ordered]),
        tuple(places),
        tuple(sorted(followers)),
    )


def _entering(flow: ValueFlow, at: int, end: int) -> Iterator[FlowingValue]:
    """Values that rows from `at` to before `end` read and none of them makes, in the order of reading."""
    yielded: set[int] = set()
    for row in range(at, end):
        for value in flow.read.get(row, ()):
            if not at <= value.maker < end and id(value) not in yielded:
                yielded.add(id(value))
                yield value


def _leaving(flow: ValueFlow, at: int, end: int, group: bool) -> Iterator[tuple[FlowingValue, Sequence[int]]]:
    """Values that rows from `at` to before `end` make, with their readers elsewhere.

    Of a group only those that leave it; of a layer also those that nobody reads.
    """
    for row in range(at, end):
        for value in flow.made.get(row, ()):
            readers = [reader for reader in value.readers if not at <= reader < end]
            if readers or value.is_output or not (group or value.readers):
                yield value, readers
