"""Shape provenance, as facts: the origin of a shape, its upper bound, and what contradicts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from explorer.engine.graph.model import Graph, Node
from explorer.engine.operators.call import Type
from explorer.engine.shapes.shape_table import ShapeTable
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim, Shape, TensorInfo

_KEPT = 1 << 14
"""Facts that are kept once they are made: in a large graph a value is read soon after it is made."""


class ShapeOrigins(Mapping[str, TensorInfo]):
    """Facts of values, each made on demand: origins, bounds in place of sizes that depend on data,
    conflicts.

    Args:
        graph: Whose values they are.
        table: The inferred types.
        declared: The types that the file declares.
        limits: Upper bounds of sizes that depend on data.
        trusted: Whether a declared type that differs from the inferred one is a conflict.

    Attributes:
        disputed: Names of values of which somebody else says something, too.
    """

    def __init__(
        self,
        graph: Graph,
        table: ShapeTable,
        declared: Mapping[str, Type],
        limits: Mapping[str, Dim],
        *,
        trusted: bool,
    ) -> None:
        self.disputed = frozenset((*declared, *table.overruled, *table.conflicts))
        self._table = table
        self._declared = declared
        self._limits = limits
        self._trusted = trusted
        node_outputs = {name for node in graph.nodes for name in node.outputs}
        self._uncomputed = {name for name in table.types if name not in node_outputs}
        self._doubtful = _dependents(graph.nodes, table.doubtful) if table.doubtful else frozenset()
        self._symbols = symbols_of(graph, declared)
        self._texts: dict[Shape, tuple[Shape, bool]] = {}
        self._facts: dict[str, TensorInfo] = {}

    def __len__(self) -> int:
        return len(self._table.types)

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.types)

    def __contains__(self, name: object) -> bool:
        return name in self._table.types

    def __getitem__(self, name: str) -> TensorInfo:
        info = self._facts.get(name)
        if info is None:
            dtype, shape = self._table.types[name]
            info = self._fact(name, dtype, shape)
            if len(self._facts) >= _KEPT:
                self._facts.clear()
            self._facts[name] = info
        return info

    def get(self, name: str, default: Any = None) -> Any:
        """As of any mapping; `Mapping.get` would raise and catch for every missing name."""
        info = self._facts.get(name)
        return info if info is not None else self[name] if name in self._table.types else default

    def _fact(self, name: str, dtype: str | None, shape: Shape | None) -> TensorInfo:
        if name in self._uncomputed:
            return TensorInfo(name, dtype, shown_shape(shape), "declared")
        origin = self._table.origins.get(name, "inferred")
        conflict = self._conflict(name, shape, origin) if name in self.disputed else ""
        is_bound = name in self._doubtful
        if shape is not None:
            finished_shape = self._texts.get(shape)
            if finished_shape is None:
                finished_shape = self._texts[shape] = _bounded_shape(shape, self._limits)
            shape, is_bound = finished_shape[0], finished_shape[1] or is_bound
        return TensorInfo(name, dtype, shape, "bound" if is_bound else origin, conflict)

    def overruled(self) -> frozenset[str]:
        """Values that have another shape than inference gives."""
        table = self._table
        return frozenset([name for name, shape in table.overruled.items() if shape is not None]) - {
            *table.conflicts
        }

    def _conflict(self, name: str, shape: Shape | None, origin: str) -> str:
        """Sources that contradict the shape of a value, in words."""
        parts: list[str] = []
        if name in self._table.overruled:
            inferred = self._table.overruled[name]
            text = f"inference gives {list(shown_shape(inferred) or ())}" if inferred is not None else ""
            parts.append(text)
        if name in self._declared and origin != "declared" and self._trusted:
            declared = self._declared[name][1]
            if contradicts(declared, shape, self._symbols):
                parts.append(f"the file declares {list(shown_shape(declared) or ())}")
        return self._table.conflicts.get(name, "; ".join(filter(None, parts)))


def symbols_of(graph: Graph, declared: Mapping[str, Type]) -> set[str]:
    """Names of sizes that a graph's inputs define, if the file declares any types."""
    inputs = graph.inputs if declared else ()
    return {n for v in inputs for n in dims.names(canonical_shape(v.shape) or ())}


def canonical_shape(shape: Shape | None) -> Shape | None:
    """A shape from a file or a fact with its names in canonical form."""
    return _renamed(shape, dims.canonical)


def shown_shape(shape: Shape | None) -> Shape | None:
    """A shape with its names as people write them."""
    return _renamed(shape, dims.display)


def _renamed(shape: Shape | None, rule: Callable[[str], Dim]) -> Shape | None:
    if shape is None or not any([isinstance(d, str) for d in shape]):  # noqa: C419 (half the time)
        return shape
    return tuple([rule(d) if isinstance(d, str) else d for d in shape])


def _bounded_shape(shape: Shape, limits: Mapping[str, Dim]) -> tuple[Shape, bool]:
    """The shape for people, and whether it is a bound."""
    is_bound = False
    result: list[Dim] = []
    for dim in shape:
        if isinstance(dim, str) and "'#" in dim:
            is_bound = True
            dim = dims.upper(dim, limits)
        result.append(dims.display(dim) if isinstance(dim, str) else dim)
    return tuple(result), is_bound


def _dependents(nodes: Sequence[Node], names: frozenset[str]) -> frozenset[str]:
    """All values that are computed from those in `names`, and these."""
    dependents = set(names)
    for node in nodes:
        if not dependents.isdisjoint(node.inputs):
            dependents.update(name for name in node.outputs if name)
    return frozenset(dependents)


def contradicts(other_shape: Shape | None, shape: Shape | None, symbols: set[str]) -> bool:
    """Whether two shapes of one value cannot both be right."""
    if other_shape is None or shape is None or other_shape == shape:
        return False
    return len(other_shape) != len(shape) or any(
        _apart(a, b, symbols) for a, b in zip(other_shape, shape, strict=True)
    )


def _apart(a: Dim, b: Dim, symbols: set[str]) -> bool:
    """Whether two dimensions cannot be the same."""
    if a == b or a is None or b is None:
        return False
    if isinstance(a, int) and isinstance(b, int):
        return True
    if any(isinstance(d, str) and ("'#" in d or not dims.names((d,)) <= symbols) for d in (a, b)):
        # exporters make up names for the sizes of outputs
        return False
    if isinstance(a, int) or isinstance(b, int):
        return False
    try:
        return not dims.equal(dims.expression(a), dims.expression(b))
    except dims.UndecidedSize:
        return False
