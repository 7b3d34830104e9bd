"""Reports the origin of each shape, its upper bound, and contradictions between its sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from explorer.engine.graph.model import Graph, Node
from explorer.engine.operators.call import Type
from explorer.engine.shapes.shape_table import ShapeTable
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim, Shape, TensorInfo

_MAX_CACHED = 1 << 14
"""Maximum number of cached objects. Callers read an object several times soon after it is created."""


class ShapeOrigins(Mapping[str, TensorInfo]):
    """Shapes of values with their origins and conflicts, created on demand.

    A size that depends on data is replaced by its upper bound.

    Args:
        graph: The graph of the values.
        table: Inferred types.
        declared: Types that the file declares.
        limits: Upper bounds of sizes that depend on data.
        trusted: Whether a declared type that contradicts the inferred one is reported as a conflict.

    Attributes:
        disputed: Names of values with a possible conflict: the file declares their type, a run contradicted
            their inferred shape, or their node cannot run.
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
        self._trusts_file = trusted
        node_outputs = {name for node in graph.nodes for name in node.outputs}
        self._uncomputed = {name for name in table.types if name not in node_outputs}
        self._bounded_names = (
            _find_dependents(graph.nodes, table.bounded_names) if table.bounded_names else frozenset()
        )
        self._symbols = collect_symbols(graph, declared)
        self._bound_shapes: dict[Shape, tuple[Shape, bool]] = {}
        self._infos: dict[str, TensorInfo] = {}

    def __len__(self) -> int:
        return len(self._table.types)

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.types)

    def __contains__(self, name: object) -> bool:
        return name in self._table.types

    def __getitem__(self, name: str) -> TensorInfo:
        info = self._infos.get(name)
        if info is None:
            dtype, shape = self._table.types[name]
            info = self._build_info(name, dtype, shape)
            if len(self._infos) >= _MAX_CACHED:
                self._infos.clear()
            self._infos[name] = info
        return info

    def get(self, name: str, default: Any = None) -> Any:
        """Does the same as `Mapping.get`, without its exception for every missing name."""
        info = self._infos.get(name)
        if info is not None:
            return info
        return self[name] if name in self._table.types else default

    def _build_info(self, name: str, dtype: str | None, shape: Shape | None) -> TensorInfo:
        if name in self._uncomputed:
            return TensorInfo(name, dtype, format_shape(shape), "declared")
        origin = self._table.origins.get(name, "inferred")
        conflict = self._describe_conflict(name, shape, origin) if name in self.disputed else ""
        is_bounded = name in self._bounded_names
        if shape is not None:
            shape_and_flag = self._bound_shapes.get(shape)
            if shape_and_flag is None:
                shape_and_flag = self._bound_shapes[shape] = _bound_shape(shape, self._limits)
            shape, is_bounded = shape_and_flag[0], shape_and_flag[1] or is_bounded
        return TensorInfo(name, dtype, shape, "bound" if is_bounded else origin, conflict)

    def list_overruled(self) -> frozenset[str]:
        """Returns the names of values whose inferred shape a run contradicted."""
        overruled = [name for name, shape in self._table.overruled.items() if shape is not None]
        return frozenset(overruled) - self._table.conflicts.keys()

    def _describe_conflict(self, name: str, shape: Shape | None, origin: str) -> str:
        """Describes the sources that contradict the shape of a value, or returns ''."""
        parts: list[str] = []
        if name in self._table.overruled:
            inferred = self._table.overruled[name]
            text = f"inference gives {list(format_shape(inferred) or ())}" if inferred is not None else ""
            parts.append(text)
        if name in self._declared and origin != "declared" and self._trusts_file:
            declared = self._declared[name][1]
            if contradicts(declared, shape, self._symbols):
                parts.append(f"the file declares {list(format_shape(declared) or ())}")
        return self._table.conflicts.get(name, "; ".join(filter(None, parts)))


def collect_symbols(graph: Graph, declared: Mapping[str, Type]) -> set[str]:
    """Returns the dimension names that a graph's inputs define, or none if the file declares no types."""
    inputs = graph.inputs if declared else ()
    return {n for v in inputs for n in dims.collect_names(canonicalize_shape(v.shape) or ())}


def canonicalize_shape(shape: Shape | None) -> Shape | None:
    """Returns a shape from a file or a fact with canonical dimension names; None stays None."""
    return _rename_dims(shape, dims.canonicalize_name)


def format_shape(shape: Shape | None) -> Shape | None:
    """Returns a shape with its dimension names in display form; None stays None."""
    return _rename_dims(shape, dims.format_for_display)


def _rename_dims(shape: Shape | None, rename: Callable[[str], Dim]) -> Shape | None:
    if shape is None or not any([isinstance(d, str) for d in shape]):  # noqa: C419 (twice as fast)
        return shape
    return tuple([rename(d) if isinstance(d, str) else d for d in shape])


def _bound_shape(shape: Shape, limits: Mapping[str, Dim]) -> tuple[Shape, bool]:
    """Replaces sizes that depend on data by their upper bounds.

    Returns:
        The shape in display form, and whether a size in it is an upper bound.
    """
    is_bounded = False
    bounded_dims: list[Dim] = []
    for dim in shape:
        if dims.is_data_dependent(dim):
            is_bounded = True
            dim = dims.find_upper_bound(dim, limits)
        bounded_dims.append(dims.format_for_display(dim) if isinstance(dim, str) else dim)
    return tuple(bounded_dims), is_bounded


def _find_dependents(nodes: Sequence[Node], names: frozenset[str]) -> frozenset[str]:
    """Returns `names` and all values that are computed from them."""
    dependents = set(names)
    for node in nodes:
        if not dependents.isdisjoint(node.inputs):
            dependents.update(name for name in node.outputs if name)
    return frozenset(dependents)


def contradicts(other_shape: Shape | None, shape: Shape | None, symbols: set[str]) -> bool:
    """Whether two shapes of one value cannot both be correct.

    Args:
        other_shape: Declared or observed shape, or None if unknown.
        shape: Inferred shape, or None if unknown.
        symbols: Dimension names that the graph's inputs define.
    """
    if other_shape is None or shape is None or other_shape == shape:
        return False
    return len(other_shape) != len(shape) or any(
        _dims_contradict(a, b, symbols) for a, b in zip(other_shape, shape, strict=True)
    )


def _dims_contradict(a: Dim, b: Dim, symbols: set[str]) -> bool:
    """Whether two dimensions certainly differ; False if this cannot be decided."""
    if a == b or a is None or b is None:
        return False
    if isinstance(a, int) and isinstance(b, int):
        return True
    if any(
        isinstance(d, str) and (dims.is_data_dependent(d) or dims.collect_names((d,)) - symbols)
        for d in (a, b)
    ):
        # exporters invent names for the sizes of outputs
        return False
    if isinstance(a, int) or isinstance(b, int):
        return False
    try:
        return not dims.are_equal(dims.expression(a), dims.expression(b))
    except dims.UndecidedSize:
        return False
