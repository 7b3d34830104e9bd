"""Records the value flow: which row of a layer tree produces a tensor, and which rows read it.

Edges are stored between rows of leaves. The inputs and outputs of a group follow from the edges that cross
its boundary. This works for modules and for graphs, whatever groups they have.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial

from msgspec import Struct, field

from explorer.engine.costs.layer_rows import find_subtree_end
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

MAX_LISTED = 64
"""Maximum number of tensors of a layer, and of readers of a tensor, that are listed."""

DescribeTensor = Callable[[], TensorInfo]
"""Builds the description of a tensor on demand, because few descriptions are read."""


class FlowingValue(Struct, eq=False, gc=False):
    """A tensor from its creation until another tensor replaces it under the same key.

    Attributes:
        info: Function that builds its description.
        source: Kind of its origin: a layer, an input, a stored parameter, ...
        maker: Row that produces it, or -1 if no row does.
        readers: Rows that read it, in execution order, without duplicates.
        is_output: Whether it is an output of the model.
    """

    info: DescribeTensor
    source: InputSource
    maker: int
    readers: list[int] = field(default_factory=list)
    is_output: bool = False


class ValueFlow:
    """The edges of a model, collected in execution order.

    Attributes:
        made, read: Tensors that each row produces and reads, by row.
        declared: Shapes with symbolic sizes that the model file declares, by tensor name.
        constants: Rows that contain constants and shape arithmetic only, or None if not computed yet.
    """

    def __init__(self) -> None:
        self.declared: dict[str, Shape] = {}
        self.constants: frozenset[int] | None = None
        self.made: dict[int, list[FlowingValue]] = {}
        self.read: dict[int, list[FlowingValue]] = {}
        self._current: dict[Hashable, FlowingValue] = {}

    def add_producer(
        self, row: int, key: Hashable, info: DescribeTensor, source: InputSource = "layer"
    ) -> None:
        """Records that a row (-1 for none) produces a tensor; it replaces the previous one with this key."""
        value = self._current[key] = FlowingValue(info, source, row)
        if row >= 0:
            self.made.setdefault(row, []).append(value)

    def add_reader(
        self, row: int, key: Hashable, info: DescribeTensor, otherwise: InputSource = "unknown"
    ) -> None:
        """Records that a row (-1 for none) reads a tensor.

        A key without a tensor gets a new one, with `otherwise` as its source.
        """
        value = self._current.get(key)
        if value is None:
            value = self._current[key] = FlowingValue(info, otherwise, -1)
        if row < 0:
            return
        row_values = self.read.setdefault(row, [])
        if value not in row_values:
            row_values.append(value)
            if not value.readers or value.readers[-1] != row:
                value.readers.append(row)

    def has_value(self, key: Hashable) -> bool:
        """Whether a tensor with this key exists."""
        return key in self._current

    def is_stored(self, key: Hashable) -> bool:
        """Whether the tensor with this key is stored in the model."""
        value = self._current.get(key)
        return value is not None and value.source == "stored"

    def mark_output(self, key: Hashable) -> None:
        """Marks a tensor as an output of the model."""
        if (value := self._current.get(key)) is not None:
            value.is_output = True


def build_record(flow: ValueFlow) -> FlowRecord:
    """Converts the edges of a model to a `FlowRecord`, which can be stored."""
    values = {id(v): v for row_values in (*flow.made.values(), *flow.read.values()) for v in row_values}
    numbers = {key: number for number, key in enumerate(values)}
    made_numbers, read_numbers = (
        {
            row: tuple([numbers[id(value)] for value in row_values])
            for row, row_values in values_by_row.items()
        }
        for values_by_row in (flow.made, flow.read)
    )
    records = [
        ValueRecord(v.info(), v.source, v.maker, tuple(v.readers), v.is_output) for v in values.values()
    ]
    return FlowRecord(tuple(records), made_numbers, read_numbers, flow.declared)


def build_flow(record: FlowRecord) -> ValueFlow:
    """Converts a `FlowRecord` back to the edges of a model."""
    values = [
        FlowingValue(partial(_keep_info, v.info), v.source, v.maker, list(v.readers), v.is_output)
        for v in record.values
    ]
    flow = ValueFlow()
    flow.declared = record.declared
    for numbers_by_row, values_by_row in ((record.made, flow.made), (record.read, flow.read)):
        values_by_row.update({row: [values[n] for n in numbers] for row, numbers in numbers_by_row.items()})
    return flow


def _keep_info(info: TensorInfo) -> TensorInfo:
    return info


def list_connections(
    flow: ValueFlow | None, layers: Sequence[Layer], row_id: int, unknown: str = ""
) -> Connections:
    """Returns the tensors that enter a row with their producers, and those that leave it with their readers.

    At most `MAX_LISTED` tensors of each kind are listed; constants come last.

    Args:
        flow: Edges of the model, or None if the format does not record them.
        layers: All rows of the tree.
        row_id: Id of a layer or group.
        unknown: Reason why there are no edges.
    """
    layer = layers[row_id]
    if flow is None:
        return Connections(layer, unknown=unknown)
    end = find_subtree_end(layers, row_id)
    inputs = [*_find_entering_values(flow, row_id, end)]
    outputs: list[tuple[FlowingValue, Sequence[int]]] = [
        *_find_leaving_values(flow, row_id, end, layer.group)
    ]
    constant_rows = flow.constants or frozenset()

    def is_constant(value: FlowingValue) -> bool:
        return value.source == "stored" or value.maker in constant_rows

    def is_for_constants_only(output: tuple[FlowingValue, Sequence[int]]) -> bool:
        value, readers = output
        return bool(readers) and not value.is_output and all(reader in constant_rows for reader in readers)

    inputs.sort(key=is_constant)
    outputs = [(value, sorted(readers, key=constant_rows.__contains__)) for value, readers in outputs]
    outputs.sort(key=is_for_constants_only)

    def make_ref(row: int) -> LayerRef:
        row_layer = layers[row]
        return LayerRef(row, row_layer.path, row_layer.kind)

    return Connections(
        layer,
        tuple(
            InputConnection(v.info(), v.source, make_ref(v.maker) if v.maker >= 0 else None, is_constant(v))
            for v in inputs[:MAX_LISTED]
        ),
        tuple(
            OutputConnection(
                v.info(),
                tuple(map(make_ref, readers[:MAX_LISTED])),
                len(readers),
                v.is_output,
                is_for_constants_only((v, readers)),
            )
            for v, readers in outputs[:MAX_LISTED]
        ),
        len(inputs),
        len(outputs),
    )


def list_row_edges(flow: ValueFlow | None, unknown: str = "") -> RowEdges:
    """Returns the edges between rows, as `RowEdges`. Edges that lead backwards in the tree are left out."""
    if flow is None:
        return RowEdges(unknown=unknown)
    positions = {row: position for position, row in enumerate(sorted({*flow.made, *flow.read}))}
    skipping_edges: set[tuple[int, int]] = set()
    followers: set[int] = set()  # rows that read a tensor of the row just before them in `positions`
    for maker, values in flow.made.items():
        position = positions[maker]
        for reader in (reader for value in values for reader in value.readers):
            if positions[reader] == position + 1:
                followers.add(reader)
            elif reader > maker:
                skipping_edges.add((maker, reader))
    ordered = sorted(skipping_edges)
    return RowEdges(
        tuple([maker for maker, _ in ordered]),
        tuple([reader for _, reader in ordered]),
        tuple(positions),
        tuple(sorted(followers)),
    )


def _find_entering_values(flow: ValueFlow, start: int, end: int) -> Iterator[FlowingValue]:
    """Yields the tensors that rows in the range `[start, end)` read and other rows produce, in order."""
    yielded: set[int] = set()
    for row in range(start, end):
        for value in flow.read.get(row, ()):
            if not start <= value.maker < end and id(value) not in yielded:
                yielded.add(id(value))
                yield value


def _find_leaving_values(
    flow: ValueFlow, start: int, end: int, is_group: bool
) -> Iterator[tuple[FlowingValue, Sequence[int]]]:
    """Yields the tensors that rows in the range `[start, end)` produce, with their readers outside the range.

    A tensor of a group is included if it leaves the group. A tensor of a layer is also included if no row
    reads it.
    """
    for row in range(start, end):
        for value in flow.made.get(row, ()):
            readers = [reader for reader in value.readers if not start <= reader < end]
            if readers or value.is_output or not (is_group or value.readers):
                yield value, readers
