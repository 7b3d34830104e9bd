"""Repeated nodes: stores thousands of nodes or weights that differ only by name as one object.

Creating, reading and writing a tile product as a node and a weight takes 30 microseconds in Python, and a
tiled AlexNet has 14,336 tile products. Stored together, they take a few microseconds each. Code that reads
the graph still sees nodes and tensors, which are built at first access.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import overload

from msgspec import Struct

from explorer.engine.graph.model import Graph, Node, Tensor, list_bodies


class NodeRun(Node):
    """A run of nodes without attributes that differ only by name.

    Its own `inputs` and `outputs` are those of all its nodes.

    Args:
        op: Operator of the nodes.
        domain: Domain of the operator.
        wires: For each input, its value names, one per node.
        outputs: Value names of the outputs, one per node.
        names: Names of the nodes.
        metadata: Metadata common to all nodes.
        label_key: Key of the metadata entry that differs between nodes.
        labels: Values of that entry, one per node.
    """

    __slots__ = ("label_key", "labels", "names", "wires")

    def __init__(
        self,
        op: str,
        domain: str,
        wires: Sequence[Sequence[str]],
        outputs: Sequence[str],
        names: Sequence[str],
        metadata: Mapping[str, str],
        label_key: str,
        labels: Sequence[str],
    ) -> None:
        super().__init__(
            op, [name for wire in wires for name in wire], outputs, domain=domain, metadata=metadata
        )
        self.wires = wires
        self.names = names
        self.label_key = label_key
        self.labels = labels

    def build_nodes(self) -> Iterator[Node]:
        """Yields the individual nodes."""
        for inputs, output, name, label in zip(
            zip(*self.wires, strict=True), self.outputs, self.names, self.labels, strict=True
        ):
            metadata = {**self.metadata, self.label_key: label}
            yield Node(self.op, inputs, (output,), name=name, domain=self.domain, metadata=metadata)


class Nodes(Sequence[Node]):
    """The nodes of a graph, some of them stored as runs.

    Attributes:
        runs_and_nodes: Nodes and runs, as stored.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.runs_and_nodes = tuple(nodes)
        self._all: tuple[Node, ...] | None = None

    def _build_all(self) -> tuple[Node, ...]:
        if self._all is None:
            groups = (
                node.build_nodes() if isinstance(node, NodeRun) else (node,) for node in self.runs_and_nodes
            )
            self._all = tuple(node for nodes in groups for node in nodes)
        return self._all

    @overload
    def __getitem__(self, index: int) -> Node: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Node, ...]: ...

    def __getitem__(self, index: int | slice) -> Node | tuple[Node, ...]:
        return self._build_all()[index]

    def __len__(self) -> int:
        return len(self._build_all())

    def __iter__(self) -> Iterator[Node]:
        return iter(self._build_all())


def combine_nodes(nodes: Iterable[Node]) -> Sequence[Node]:
    """Combines nodes and runs into the node sequence of a graph."""
    sequence = tuple(nodes)
    return Nodes(sequence) if any(isinstance(node, NodeRun) for node in sequence) else sequence


def list_stored_nodes(nodes: Sequence[Node]) -> Sequence[Node]:
    """Returns the nodes and runs of a graph as stored. A run is a single element."""
    return nodes.runs_and_nodes if isinstance(nodes, Nodes) else nodes


def list_value_names(graph: Graph) -> Iterator[str]:
    """Yields every value name in a graph and in the graphs inside it."""
    yield from graph.initializers
    for value in (*graph.inputs, *graph.outputs, *graph.values):
        yield value.name
    for node in list_stored_nodes(graph.nodes):
        yield from node.outputs
        for _, inner in list_bodies(node):
            yield from list_value_names(inner)


def create_free_name(stem: str, used_names: set[str]) -> str:
    """Returns `stem`, with a number if `used_names` contains it, and adds the result to `used_names`."""
    name, number = stem, 2
    while name in used_names:
        name, number = f"{stem}_{number}", number + 1
    used_names.add(name)
    return name


class WeightBundle(Struct, frozen=True):
    """Tensors of one dtype that are written one after another.

    Attributes:
        dtype: Element type.
        names: Names of the tensors.
        shapes: Shapes of the tensors.
        build_tensor: Function that builds the tensor at an index.
        data: Function that yields the bytes, one tensor at a time.
        bands: The same bytes in parts that can be computed in parallel. Each part is a number of tensors, and
            a function that yields their bytes.
    """

    dtype: str
    names: Sequence[str]
    shapes: Sequence[tuple[int, ...]]
    build_tensor: Callable[[int], Tensor]
    data: Callable[[], Iterator[memoryview]]
    bands: Sequence[tuple[int, Callable[[], Iterator[memoryview]]]] = ()

    def build_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Builds the tensors, as pairs of a name and a tensor."""
        return ((name, self.build_tensor(index)) for index, name in enumerate(self.names))


class Tensors(Mapping[str, Tensor]):
    """Weights by name, some of them stored in bundles.

    Attributes:
        single: Tensors outside bundles.
        bundles: Bundles of tensors.
    """

    def __init__(self, single: Mapping[str, Tensor], bundles: Sequence[WeightBundle]) -> None:
        self.single = single
        self.bundles = bundles
        self._all: dict[str, Tensor] | None = None

    def _build_all(self) -> dict[str, Tensor]:
        if self._all is None:
            self._all = dict(self.single)
            for bundle in self.bundles:
                self._all.update(bundle.build_tensors())
        return self._all

    def __getitem__(self, name: str) -> Tensor:
        return self._build_all()[name]

    def __len__(self) -> int:
        return len(self._build_all())

    def __iter__(self) -> Iterator[str]:
        return iter(self._build_all())
