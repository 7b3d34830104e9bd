"""Finds deciding numbers: limits, factors and table rows that only one of two graphs contains.

A graph may compare a size with 20, or have a table of 20 rows. Runs at smaller sizes then do not show its
behavior above 20. So runs close to such a number must show that it matters: another number in its place must
change the output. Open sizes are also tried below and above it.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.graph.constant_nodes import read_constant
from explorer.engine.graph.interpreter import list_reads
from explorer.engine.graph.model import (
    Function,
    Graph,
    Inline,
    Model,
    Node,
    Tensor,
    list_bodies,
    replace_bodies,
)
from explorer.engine.graph.random_operators import list_all_nodes
from explorer.engine.graph.repeated_nodes import combine_nodes, list_stored_nodes
from explorer.engine.graph.schema_defaults import get_default_attributes
from explorer.engine.proof.structure.inferred_types import TypeLookup
from explorer.facts import TensorInfo

_DECIDING: Mapping[str, str] = {
    **dict.fromkeys(("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"), "Less"),
    **dict.fromkeys(("Clip", "Max", "Min"), "Clip"),
    **dict.fromkeys(("Loop", "Mod", "Pow", "Range", "Slice", "TopK", "Trilu", "Where"), ""),
    **dict.fromkeys(("EyeLike", "HardSigmoid", "IsInf", "NonMaxSuppression", "OneHot", "Shrink"), ""),
    "ThresholdedRelu": "",
}
"""Operators whose number decides their behavior, each with a common name for related operators. An operator
without related operators has ''."""

_BITWISE = ("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor")
_ARITHMETIC = frozenset(
    ("Add", "Div", "Einsum", "Gemm", "MatMul", "Mean", "Mul", "PRelu", "Sub", "Sum", *_BITWISE)
)
"""Operators whose scalar constants may be limits of a later operator. Examples are a Relu of a difference of
sizes, and a Floor of a fraction of a size."""

_FILL_INPUTS: Mapping[str, Sequence[int] | None] = {
    "Concat": None,
    "Expand": (0,),
    "GRU": (5,),
    "LSTM": (5, 6),
    "Pad": (2,),
    "RNN": (5,),
    "Scan": None,
    "ScatterElements": (2,),
    "ScatterND": (2,),
}
"""Operators that place stored numbers beside computed ones, with the inputs that may hold them; None stands
for all. A later maximum shows such a number only if no computed number exceeds it. A ConstantOfShape has its
number in an attribute."""

_FILL = "Fill"
"""Common name of the operators in `_FILL_INPUTS`."""

_MAX_FILL_ELEMENTS, _MAX_FILL_NUMBERS = 1 << 20, 8
"""Largest number of elements of a tensor of fill numbers, and largest number of different elements."""

_FACTOR_OPERATORS = frozenset(("Div", "Einsum", "Gemm", "MatMul", "Mul", "PRelu"))
"""Operators whose number is a factor. Before an ArgMax, any factor may give the same result."""

_DECIDING_ATTRIBUTES = frozenset(
    ("alpha", "beta", "bias", "gamma", "lambd", "max", "min", "scale", "spatial_scale", "value")
)
"""Names of attributes that multiply, add or limit, in any operator."""

_TABLE_READERS = ("Gather", "GatherElements", "GatherND", "Slice")
"""Operators that read part of a stored table."""

_DATA_SIZED_OPERATORS = ("Compress", "Loop", "NonMaxSuppression", "NonZero", "Unique")
"""Operators whose output size depends on data."""

_SIZING_OPERATORS = tuple(str.split("ConstantOfShape Expand OneHot Pad Range Reshape Resize Slice Tile TopK"))
"""Operators that turn numbers into sizes."""

_SIZED_BY_FIRST_INPUT = ("ConstantOfShape", "Range")
"""Operators of `_SIZING_OPERATORS` whose first input decides a size. For the others it is data."""

_AXES_INPUT = 3
"""Index of the input of a Slice that holds its axes."""

_SHAPE_READERS = ("Shape", "Size", "ConstantOfShape")
"""Operators whose result contains no element of their inputs: sizes, or a constant of a given shape."""

_MAX_LIMIT_ELEMENTS = 64
"""Largest number of elements of a tensor of limits."""

_MIN_UNLIMITED_INTEGER, _MIN_UNLIMITED_FLOAT = float((1 << 31) - 1), 1e37
"""Smallest integer and float that are not limits but mean 'to the end' or 'unlimited'."""

_MAX_ALWAYS_TRIED = 1
"""Integers up to this value are not limits, because every open size is tried at and above it."""

_RELATIVE_STEP = 1 / 16
"""Relative change of a float in a near variant of a model."""

_FAR_POWER = 20
"""Power of two by which a factor is scaled to show that it has no effect."""

_MAX_TRIED_ROWS = 64
"""Largest number of rows of a table that are tried. A longer table is sampled evenly."""

Key = tuple[str, float]
"""Common name of the operator (see `_DECIDING` and `_FILL`), or its own name, and the number."""
Axis = tuple[str, int]
"""Name of a value and index of one of its axes."""


class DecidingNumber(Struct, frozen=True):
    """A number that decides how an operator computes.

    Attributes:
        op: Operator name.
        value: The number.
        axes: Axes of a Slice to which the number applies. None stands for an unknown axis, and for every
            other operator.
    """

    op: str
    value: float
    axes: frozenset[Axis | None] = frozenset()

    @property
    def limits(self) -> tuple[float, ...]:
        """Sizes near which the number may change the behavior, as a limit or as a factor of a size."""
        value = abs(self.value)
        return (value, 1 / value) if value < 1 else (value,)

    def __str__(self) -> str:
        return f"the number {self.value:.9g} of {self.op}"


class TableRow(Struct, frozen=True):
    """A row of a stored tensor from which an operator reads a part.

    Attributes:
        op: Operator name.
        name: Name of the tensor.
        axis: Axis along which rows are counted.
        row, rows: Index of the row, and number of rows.
    """

    op: str
    name: str
    axis: int
    row: int
    rows: int

    @property
    def limits(self) -> tuple[float, ...]:
        """The size at which a run reads the last row."""
        return (float(self.rows),)

    def __str__(self) -> str:
        return f"row {self.row} of the {self.rows} that {self.op} reads from a table"


Deciding = DecidingNumber | TableRow


KeyedNumber = tuple[Key, DecidingNumber, Axis | None]
"""Key of a number, its record, and the axis of a Slice that it applies to; None as in `DecidingNumber`."""


class Variation:
    """The values of a model that may differ from run to run.

    Args:
        model: Model to analyze.

    Attributes:
        values: Names of the values that may differ from run to run, including sizes that are not fixed.
    """

    def __init__(self, model: Model) -> None:
        self.values = _find_varying_values(model)
        self._types = TypeLookup(model)

    def is_fixed(self, axis: Axis) -> bool:
        """Whether an axis always has the same length, so that a Slice reads the same part in every run."""
        name, index = axis
        for info in self._sliced.get(name, [None]):
            if info is None or info.shape is None or info.origin == "bound":
                return False
            rank = len(info.shape)
            if not (-rank <= index < rank and isinstance(info.shape[index], int)):
                return False
        return True

    @cached_property
    def fixed_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes, by name, of the values with a fixed size that a Shape or Size reads."""
        shapes: dict[str, tuple[int, ...]] = {}
        for op in ("Shape", "Size"):
            for name, types in self._types.list_first_input_types(op).items():
                choices = {None if t is None or t.origin == "bound" else t.shape for t in types}
                shape = choices.pop()
                if not choices and shape is not None and all(isinstance(size, int) for size in shape):
                    shapes[name] = tuple(size for size in shape if isinstance(size, int))
        return shapes

    @cached_property
    def _sliced(self) -> Mapping[str, list[TensorInfo | None]]:
        return self._types.list_first_input_types("Slice")


def find_one_sided(
    first: Model, second: Model, varying: tuple[Variation, Variation] | None = None
) -> tuple[list[Deciding], list[Deciding]]:
    """Finds the deciding numbers and table rows that only one of two models contains.

    Args:
        first: Model, or a region as a model.
        second: Model or region to compare with it.
        varying: Variation of the models that contain the regions, or None to compute it from the arguments.

    Returns:
        The numbers and rows of the first model alone, and the numbers and rows of the second model alone.
    """
    numbers = [list(_list_model_numbers(model)) for model in (first, second)]
    variations = varying or (Variation(first), Variation(second))
    tables = [list(_find_tables(m, v.values)) for m, v in zip((first, second), variations, strict=True)]
    sizes = [{(t.dtype, t.elements) for t in _list_stored_tensors(model)} for model in (first, second)]
    keys = [
        {*(key for key, _, _ in n), *_list_epsilons(m)} for n, m in zip(numbers, (first, second), strict=True)
    ]
    return (
        [
            *_find_missing_numbers(numbers[0], keys[1], variations[0]),
            *_list_unmatched_rows(tables[0], sizes[1]),
        ],
        [
            *_find_missing_numbers(numbers[1], keys[0], variations[1]),
            *_list_unmatched_rows(tables[1], sizes[0]),
        ],
    )


def _find_missing_numbers(
    numbers: Iterable[KeyedNumber], other_keys: Container[Key], varying: Variation
) -> Iterable[Deciding]:
    """Finds numbers that the other model lacks, except those that slice an axis of fixed length."""
    by_key: dict[Key, DecidingNumber] = {}
    for key, number, axis in numbers:
        if key not in other_keys and (axis is None or not varying.is_fixed(axis)):
            earlier = by_key.get(key, number)
            by_key[key] = replace(earlier, axes=earlier.axes | {axis})
    return by_key.values()


def _find_varying_values(model: Model) -> frozenset[str]:
    """Finds the names of values that may differ from run to run, including sizes that are not fixed."""
    nodes = _list_ordered_nodes(model)
    bodies = [body for node in nodes for _, body in list_bodies(node)]
    inputs = {value.name for body in bodies for value in body.inputs}
    inputs.update(value.name for value in model.graph.required_inputs)
    inputs.update(name for function in model.functions.values() for name in function.inputs)
    dependent = _find_dependent_values(nodes, inputs, _SHAPE_READERS)
    if _has_open_sizes(model, nodes, dependent):
        return frozenset(_find_dependent_values(nodes, inputs, ()))
    return frozenset(dependent)


def _has_open_sizes(model: Model, nodes: Sequence[Node], dependent: Collection[str]) -> bool:
    """Whether a model has a size that is open or depends on data."""
    if any(
        v.shape is None or not all(isinstance(d, int) for d in v.shape) for v in model.graph.required_inputs
    ):
        return True
    return any(
        node.op in _DATA_SIZED_OPERATORS
        or (
            node.op in _SIZING_OPERATORS
            and any(name in dependent for name in node.inputs[node.op not in _SIZED_BY_FIRST_INPUT :])
        )
        for node in nodes
    )


def _list_ordered_nodes(model: Model) -> list[Node]:
    """Lists all nodes of a model, including bodies and functions, roughly in execution order."""
    return [*list_all_nodes(model, model.graph.nodes)][::-1]


def _find_dependent_values(
    nodes: Sequence[Node], names: set[str], blocking_operators: Collection[str]
) -> set[str]:
    """Finds the values that depend on `names`, except through the operators in `blocking_operators`."""
    reached = set(names)
    earlier = -1
    while earlier != len(reached):
        earlier = len(reached)
        for node in nodes:
            if node.op not in blocking_operators and not reached.isdisjoint(list_reads(node)):
                reached.update(filter(None, node.outputs))
    return reached


def _list_stored_tensors(model: Model) -> Iterator[Tensor]:
    """Yields all stored tensors of a model, including tensors of bodies."""
    yield from model.graph.initializers.values()
    for node in list_all_nodes(model, model.graph.nodes):
        if (tensor := read_constant(node)) is not None:
            yield tensor
        for _, body in list_bodies(node):
            yield from body.initializers.values()


def _find_tables(model: Model, varying: Collection[str]) -> Iterator[tuple[Tensor, str, str, int]]:
    """Yields stored tensors whose read part may differ from run to run, with operator, name and axis."""
    nodes = _list_ordered_nodes(model)
    constants = {node.outputs[0]: tensor for node in nodes if (tensor := read_constant(node)) is not None}
    bodies = [body for node in nodes for _, body in list_bodies(node)]
    for graph in (model.graph, *bodies):
        constants.update(graph.initializers)
    for node in nodes:
        table = constants.get(node.inputs[0]) if node.inputs and not node.domain else None
        if (
            node.op not in _TABLE_READERS
            or table is None
            or not any(name in varying for name in node.inputs[1:])
        ):
            continue
        for axis in _find_read_axes(node, constants, len(table.shape)):
            yield table, node.op, node.inputs[0], axis


def _find_read_axes(node: Node, constants: Mapping[str, Tensor], rank: int) -> set[int]:
    """Finds the axes along which an operator reads a part of a table."""
    if node.op == "Slice":
        axes = constants.get(node.inputs[_AXES_INPUT]) if len(node.inputs) > _AXES_INPUT else None
        values = _read_small_tensor(axes) if axes is not None else None
        return {int(v) % rank for v in values.reshape(-1)} if values is not None else set(range(rank))
    axis = node.attributes.get("axis", 0)
    return {axis % rank} if isinstance(axis, int) and rank else set()


def _list_unmatched_rows(
    tables: Sequence[tuple[Tensor, str, str, int]], other_sizes: Collection[tuple[str, int]]
) -> list[Deciding]:
    """Lists rows of the tables without a counterpart in the other model.

    A counterpart is a stored tensor of equal type and size. A table with a counterpart is compared in full
    elsewhere.
    """
    rows: list[Deciding] = []
    for table, op, name, axis in tables:
        count = table.shape[axis]
        if (table.dtype, table.elements) in other_sizes or not _is_numeric(table):
            continue
        row_indices = (
            sorted({round(row) for row in np.linspace(0, count - 1, min(count, _MAX_TRIED_ROWS))})
            if count > 1
            else []
        )
        # the last row first: a row that no run reads is most often above the largest size tried
        rows += [TableRow(op, name, axis, row, count) for row in reversed(row_indices)]
    return rows


def build_near_variants(model: Model, number: Deciding) -> Iterator[Model]:
    """Yields the model with a slightly smaller number or row, then with a slightly larger one."""
    yield from (_replace_number(model, number, power) for power in (-1, 1))


def build_far_variants(model: Model, number: Deciding) -> list[Model]:
    """Builds the model with a far smaller and a far larger factor, or nothing if it is not a factor."""
    if isinstance(number, TableRow) or number.op not in _FACTOR_OPERATORS:
        return []
    return [_replace_number(model, number, power) for power in (-_FAR_POWER, _FAR_POWER)]


def _replace_number(model: Model, number: Deciding, power: int) -> Model:
    """Replaces a number in all graphs and functions of a model; `power` is as in `_choose_nearby_value`."""
    functions = {
        key: _replace_in_function(function, number, power) for key, function in model.functions.items()
    }
    return replace(model, graph=_replace_in_graph(model.graph, number, power), functions=functions)


def _list_model_numbers(model: Model) -> Iterator[KeyedNumber]:
    """Yields the deciding numbers of a model, including bodies and functions."""
    inputs = {value.name for value in model.graph.required_inputs}
    yield from _list_node_numbers(model.graph.nodes, [model.graph.initializers], inputs)
    called_keys = {node.key for node in list_all_nodes(model, model.graph.nodes)} & model.functions.keys()
    for key in sorted(called_keys):
        function = model.functions[key]
        yield from _list_node_numbers(function.nodes, [], set(function.inputs))


def _list_epsilons(model: Model) -> Iterator[Key]:
    """Yields the keys of the epsilons of normalizations, in the form of an equivalent Add."""
    for node in list_all_nodes(model, model.graph.nodes):
        values = {**get_default_attributes(node.domain, node.op, model.opset), **node.attributes}
        if isinstance(epsilon := values.get("epsilon"), float):
            yield "Add", epsilon


def _list_node_numbers(
    nodes: Sequence[Node], outer_scopes: Sequence[Mapping[str, Tensor]], varying: Collection[str]
) -> Iterator[KeyedNumber]:
    """Yields the deciding numbers of nodes.

    Args:
        nodes: Nodes of a graph or a function.
        outer_scopes: Constants of the graph and of the graphs that contain it.
        varying: Names of values that differ from run to run.
    """
    dependent = set(varying)
    ordered = list_stored_nodes(nodes)
    node_constants = {
        node.outputs[0]: tensor for node in ordered if (tensor := read_constant(node)) is not None
    }
    scopes = [*outer_scopes, node_constants]
    for node in ordered:
        if node.op not in _SHAPE_READERS and not dependent.isdisjoint(list_reads(node)):
            dependent.update(node.outputs)
        for _, body in list_bodies(node):
            body_varying = {*dependent, *(value.name for value in body.inputs)}
            yield from _list_node_numbers(body.nodes, [*scopes, body.initializers], body_varying)
        if node.op == "Slice" and not dependent.intersection(node.inputs[:1]):
            continue  # the limits of a Slice of constants or of a shape do not matter
        kind = _DECIDING.get(node.op) or node.op
        for name, attribute in node.attributes.items():
            is_deciding = isinstance(attribute, float) and (
                name in _DECIDING_ATTRIBUTES or node.op in _DECIDING
            )
            if is_deciding and _is_limit(attribute, np.dtype(np.float32)):
                yield (kind, attribute), DecidingNumber(node.op, attribute), None
        if node.domain:
            continue
        for number in _list_fill_numbers(node, scopes):
            yield (_FILL, number), DecidingNumber(node.op, number), None
        if not (node.op in _DECIDING or node.op in _ARITHMETIC):
            continue
        read_values = [_read_small_values(name, scopes) for name in node.inputs]
        for index, values in enumerate(read_values):
            if values is None or (node.op not in _DECIDING and values.size != 1):
                continue
            if node.op == "Slice" and index == _AXES_INPUT:
                continue  # axes are not sizes
            axes = (
                _find_sliced_axes(node, read_values, values.size)
                if node.op == "Slice"
                else [None] * values.size
            )
            for value, axis in zip(values.reshape(-1).tolist(), axes, strict=True):
                if _is_limit(float(value), values.dtype):
                    yield (kind, float(value)), DecidingNumber(node.op, float(value)), axis


def _list_fill_numbers(node: Node, scopes: Sequence[Mapping[str, Tensor]]) -> list[float]:
    """Lists the stored floats that a node places beside computed numbers."""
    numbers = [
        (float(number), array.dtype)
        for index in range(len(node.inputs))
        if (array := _read_fill(node, index, scopes)) is not None
        for number in np.unique(array)
    ]
    if (filled := _read_fill_value(node)) is not None:
        numbers.append((filled, np.dtype(np.float32)))
    return [number for number, dtype in numbers if _is_limit(number, dtype)]


def _read_fill_value(node: Node) -> float | None:
    """Returns the float of a ConstantOfShape, or None for other nodes and types."""
    value = node.attributes.get("value")
    if node.op != "ConstantOfShape" or node.domain or not isinstance(value, Tensor) or value.elements != 1:
        return None
    if not value.dtype.startswith("float") or not _is_numeric(value):
        return None
    return float(value.array().reshape(-1)[0])


def _read_fill(node: Node, index: int, scopes: Sequence[Mapping[str, Tensor]]) -> np.ndarray[Any, Any] | None:
    """Returns the stored floats of an input in `_FILL_INPUTS`.

    The result is None for other inputs, and if there are too many floats or too many different ones.
    """
    positions = _FILL_INPUTS.get(node.op, ())
    if node.op == "Scan":  # what it scans is not placed beside computed numbers, but its initial states are
        positions = range(len(node.inputs) - int(node.attributes.get("num_scan_inputs", 1)))
    if node.domain or (positions is not None and index not in positions):
        return None
    tensor = next((scope[node.inputs[index]] for scope in scopes if node.inputs[index] in scope), None)
    if tensor is None or tensor.elements > _MAX_FILL_ELEMENTS or not tensor.dtype.startswith("float"):
        return None
    numbers = np.asarray(tensor.array()) if _is_numeric(tensor) else None
    return numbers if numbers is not None and len(np.unique(numbers)) <= _MAX_FILL_NUMBERS else None


def _read_small_values(name: str, scopes: Sequence[Mapping[str, Tensor]]) -> np.ndarray[Any, Any] | None:
    """Returns the numbers of a stored value if it is small, else None."""
    tensor = next((scope[name] for scope in scopes if name in scope), None)
    return _read_small_tensor(tensor) if tensor is not None else None


def _find_sliced_axes(
    node: Node, read_values: Sequence[np.ndarray[Any, Any] | None], count: int
) -> Sequence[Axis | None]:
    """Returns the axis for each number of a Slice, or None for each if its axes are not stored."""
    axes = (
        read_values[_AXES_INPUT]
        if len(read_values) > _AXES_INPUT and node.inputs[_AXES_INPUT]
        else np.arange(count)
    )
    if axes is None or axes.size != count:
        return [None] * count
    return [(node.inputs[0], int(axis)) for axis in axes.reshape(-1)]


def _is_limit(value: float, dtype: np.dtype[Any]) -> bool:
    """Whether a number is large enough to be a limit, and smaller than values that mean 'unlimited'."""
    if abs(value) <= (_MAX_ALWAYS_TRIED if dtype.kind in "iu" else 0.0):
        return False
    return abs(value) < (_MIN_UNLIMITED_INTEGER if dtype.kind in "iu" else _MIN_UNLIMITED_FLOAT)


def _read_small_tensor(tensor: Tensor) -> np.ndarray[Any, Any] | None:
    """Returns the numbers of a small stored tensor, or None for other tensors."""
    if tensor.dtype == "bool" or tensor.elements > _MAX_LIMIT_ELEMENTS or not _is_numeric(tensor):
        return None
    return np.asarray(tensor.array())


def _is_numeric(tensor: Tensor) -> bool:
    """Whether numpy can compute with the elements of a tensor."""
    if tensor.payload is None or tensor.stored_elements is not None:
        return False
    return not tensor.dtype.startswith(("string", "float4", "float6", "float8", "complex"))


def _replace_in_function(function: Function, number: Deciding, power: int) -> Function:
    """Replaces a number in a function, whose new tensors become Constant nodes."""
    nodes, added = _replace_in_nodes(function.nodes, {}, number, power)
    constants = [
        Node("Constant", (), (name,), attributes={"value": tensor}) for name, tensor in added.items()
    ]
    return replace(function, nodes=combine_nodes((*constants, *nodes)), record=None) if added else function


def _replace_in_graph(graph: Graph, number: Deciding, power: int) -> Graph:
    """Replaces a number in the nodes of a graph that have the operator of the number."""
    nodes, added = _replace_in_nodes(graph.nodes, graph.initializers, number, power)
    return replace(graph, nodes=combine_nodes(nodes), initializers={**graph.initializers, **added})


def _replace_in_nodes(
    nodes: Sequence[Node], initializers: Mapping[str, Tensor], number: Deciding, power: int
) -> tuple[list[Node], dict[str, Tensor]]:
    """Replaces a number in nodes, and returns the nodes with the new tensors that they read."""
    ordered = list_stored_nodes(nodes)
    constants = {name: tensor for node in ordered if (tensor := read_constant(node)) for name in node.outputs}
    constants.update(initializers)
    added: dict[str, Tensor] = {}
    new_nodes: list[Node] = []
    for node in ordered:
        bodies = {name: _replace_in_graph(body, number, power) for name, body in list_bodies(node)}
        if bodies:
            node = replace_bodies(node, bodies)
        if node.op == number.op:
            if isinstance(number, TableRow):
                node = _change_row(node, constants, added, number, power)
            else:
                node = _change_number(node, constants, added, number, power)
        new_nodes.append(node)
    return new_nodes, added


def _change_row(
    node: Node, constants: Mapping[str, Tensor], added: dict[str, Tensor], number: TableRow, power: int
) -> Node:
    """Changes the given row in a node's table."""
    if node.inputs[0] != number.name or number.name not in constants:
        return node
    table = constants[number.name]
    values = np.array(table.array())
    row = np.moveaxis(values, number.axis, 0)[number.row : number.row + 1]
    if values.dtype == bool:
        row[:] = ~row
    else:
        with np.errstate(all="ignore"):
            row[:] = row + power * (
                1 if values.dtype.kind in "iu" else np.abs(row) * _RELATIVE_STEP + _RELATIVE_STEP
            )
    name = f"{number.name}/changed"
    added[name] = Tensor(name, table.dtype, table.shape, Inline(values.tobytes()))
    return node.replace_values((name, *node.inputs[1:]), node.outputs)


def _change_number(
    node: Node, constants: Mapping[str, Tensor], added: dict[str, Tensor], number: DecidingNumber, power: int
) -> Node:
    """Changes a number of a node. New inputs are added to `added`."""
    inputs = list(node.inputs)
    read_values = [_read_small_values(name, [constants]) for name in inputs]
    for index, name in enumerate(node.inputs):
        fill = _read_fill(node, index, [constants])
        values = read_values[index] if fill is None else fill
        if values is None or (node.op == "Slice" and index == _AXES_INPUT):
            continue
        matches = values == number.value
        if node.op == "Slice":
            axes = _find_sliced_axes(node, read_values, values.size)
            matches &= np.reshape([axis is None or axis in number.axes for axis in axes], values.shape)
        if not matches.any():
            continue
        inputs[index] = f"{name}/changed"
        new_values = np.where(matches, _choose_nearby_value(number.value, power, values.dtype), values)
        changed_values = np.asarray(new_values).astype(values.dtype)
        added[inputs[index]] = Tensor(
            inputs[index],
            str(changed_values.dtype),
            tuple(changed_values.shape),
            Inline(changed_values.tobytes()),
        )
    attributes: dict[str, Any] = {
        name: _choose_nearby_value(number.value, power, np.dtype(np.float32))
        if value == number.value
        else value
        for name, value in node.attributes.items()
        if isinstance(value, float)
    }
    changed = node.replace_values(inputs, node.outputs)
    if _read_fill_value(node) == number.value:
        fill = node.attributes["value"]
        assert isinstance(fill, Tensor)
        near = np.full(fill.shape, _choose_nearby_value(number.value, power, np.dtype(np.float32)))
        attributes["value"] = replace(fill, payload=Inline(near.astype(fill.dtype).tobytes()), record=None)
    return changed.replace_attributes({**node.attributes, **attributes}) if attributes else changed


def _choose_nearby_value(value: float, power: int, dtype: np.dtype[Any]) -> float:
    """Moves a number slightly down (`power` -1) or up (1). For other powers, scales it by 2**power."""
    if abs(power) > 1:
        if dtype.kind in "iu":
            return float(np.clip(value * 2.0**power, -_MIN_UNLIMITED_INTEGER, _MIN_UNLIMITED_INTEGER))
        return value * 2.0**power
    if dtype.kind in "iu":
        return max(value + power, 0) if dtype.kind == "u" else value + power
    return value + power * (abs(value) * _RELATIVE_STEP or _RELATIVE_STEP)
