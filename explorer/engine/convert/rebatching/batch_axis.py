"""Batch axis: the axis of a tensor that indexes the examples of a batch, and the state while tracing it.

An axis can merge the batch with other axes. It then has size `outer` x batch x `inner`, where `inner` changes
fastest. With these two factors, a Reshape into (batch x heads) and back can be traced without guessing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from msgspec import Struct, field

from explorer.base.errors import Misuse, suggest_name
from explorer.engine.graph.model import Node, Tensor, build_int64_tensor
from explorer.engine.graph.repeated_nodes import create_free_name
from explorer.engine.shapes import Shapes
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim, Shape

Array = np.ndarray[Any, Any]


class BatchAxis(NamedTuple):
    """Position of the batch: axis `axis` has size `outer` x batch x `inner`."""

    axis: int
    outer: int = 1
    inner: int = 1

    @property
    def is_unmerged(self) -> bool:
        """Whether the axis contains only the batch."""
        return self.outer == 1 == self.inner

    def move_to(self, axis: int) -> BatchAxis:
        """Returns the same batch on another axis."""
        return BatchAxis(axis, self.outer, self.inner)


class RewriteError(Exception):
    """The reason why a graph cannot be rewritten, and the index of the node."""

    def __init__(self, reason: str, node_index: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.node_index = node_index


class Rewriting(Struct):
    """State of a graph while its batch is traced through its nodes.

    Attributes:
        old_batch: Batch size in the file.
        new_batch: New batch size, or the name of an open batch dimension.
        shapes: Shapes in the original model.
        batched: Batch axis of each value that has one.
        initializers: Stored tensors, including new ones.
        used_names: Names of values and nodes that a new value must not take.
        choices: Index of the chosen option at each ambiguous Reshape, in order; 0 beyond the end of the list.
        nodes: Nodes written so far.
        option_counts: Number of options at each ambiguous Reshape so far.
        changed: Names of the nodes and values that were rewritten.
        size_values: Names of values computed from the batch size.
        source: Name of an input with a batch. An open batch size is read from its shape.
        opset: Operator set version of the model.
    """

    old_batch: int
    new_batch: int | str
    shapes: Shapes
    batched: dict[str, BatchAxis]
    initializers: dict[str, Tensor]
    used_names: set[str]
    choices: Sequence[int] = ()
    nodes: list[Node] = field(default_factory=list)
    option_counts: list[int] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    size_values: set[str] = field(default_factory=set)
    source: str = ""
    opset: int = 0

    def refuse(self, reason: str) -> NoReturn:
        """Raises a `RewriteError`."""
        raise RewriteError(reason)

    def get_shape(self, name: str) -> Shape:
        """Returns the shape of a value in the original model.

        Raises:
            RewriteError: The shape is unknown.
        """
        if name in self.initializers:
            return self.initializers[name].shape
        inferred = self.shapes.values.get(name)
        if inferred is None or inferred.shape is None:
            self.refuse(f"the shape of '{name}' is not known")
        return inferred.shape

    def multiply_sizes(self, sizes: Sequence[Dim]) -> int:
        """Returns the product of sizes, all of which must be integers.

        Raises:
            RewriteError: A size is open.
        """
        if not all(isinstance(size, int) for size in sizes):
            self.refuse("a size other than the batch is open: bind it with --dim")
        return math.prod(size for size in sizes if isinstance(size, int))

    def read_array(self, name: str) -> Array | None:
        """Returns the array of a constant that shape inference knows or that has at most 1024 elements.

        Returns None for any other value.
        """
        array = self.shapes.constants.get(name) if name else None
        if array is None and name in self.initializers:
            tensor = self.initializers[name]
            array = tensor.array() if tensor.elements <= 1024 and tensor.payload is not None else None
        return array

    def read_integers(self, name: str) -> list[int] | None:
        """Returns the integers in a value, or None for an omitted input.

        Raises:
            RewriteError: The value is computed at run time, or is a large constant.
        """
        if not name:
            return None
        array = self.read_array(name)
        if array is None:
            self.refuse(f"'{name}' is computed when the model runs")
        return [int(v) for v in array.reshape(-1).tolist()]

    def create_name(self, base: str) -> str:
        """Returns an unused name that begins with `base`."""
        return create_free_name(f"{base}_rebatched", self.used_names)

    def add_constant(self, values: Sequence[int], base_name: str) -> str:
        """Stores a list of integers as a new initializer, and returns its name."""
        name = self.create_name(base_name)
        self.initializers[name] = build_int64_tensor(name, values)
        return name

    def add_sizes(self, values: Sequence[int | None], multiple: int, base_name: str) -> str:
        """Stores a list of sizes, and returns its name. One None stands for the batch times `multiple`.

        For an open batch, added nodes compute the list at run time.
        """
        if isinstance(self.new_batch, int):
            return self.add_constant(
                [self.new_batch * multiple if v is None else v for v in values], base_name
            )
        batch = self._add_open_size(multiple, base_name)
        open_position = list(values).index(None)
        halves = (
            [v for v in half if v is not None]
            for half in (values[:open_position], values[open_position + 1 :])
        )
        leading, trailing = ([self.add_constant(half, base_name)] if half else [] for half in halves)
        parts = [*leading, batch, *trailing]
        if len(parts) == 1:
            return batch
        name = self.create_name(base_name)
        self.nodes.append(Node("Concat", parts, [name], name=name, attributes={"axis": 0}))
        return name

    def _add_open_size(self, multiple: int, base_name: str) -> str:
        """Adds nodes that compute the open batch size from the shape of an input.

        Returns the name of the list.
        """
        input_axis = self.batched[self.source]
        shape, size = self.create_name(f"{self.source}_shape"), self.create_name(f"{self.source}_batch")
        self.nodes.append(Node("Shape", [self.source], [shape], name=shape))
        axis_index = self.add_constant([input_axis.axis], base_name)
        self.nodes.append(Node("Gather", [shape, axis_index], [size], name=size, attributes={"axis": 0}))
        if multiple == 1:
            return size
        scaled, factor = self.create_name(base_name), self.add_constant([multiple], base_name)
        self.nodes.append(Node("Mul", [size, factor], [scaled], name=scaled))
        return scaled

    def expand_to_batch(self, name: str, axis: int) -> str:
        """Adds nodes that repeat the first row of a value without a batch for every example of the batch.

        Raises:
            RewriteError: The rows of the value differ, or the axis does not have the batch size.
        """
        shape = self.get_shape(name)
        if axis >= len(shape) or shape[axis] != self.old_batch:
            self.refuse(f"'{name}' has no axis {axis} of {self.old_batch}")
        row = self.take_first_row(name, axis)
        expanded = self.create_name(name)
        target = self.add_sizes([None if position == axis else 1 for position in range(len(shape))], 1, name)
        self.nodes.append(Node("Expand", [row, target], [expanded], name=expanded))
        self.changed.append(name)
        return expanded

    def take_first_row(self, name: str, axis: int) -> str:
        """Adds a Slice that takes the first row of a value without a batch; returns the name of the row.

        The row broadcasts to batched values. For an original batch of 1, it is the value itself.

        Raises:
            RewriteError: The rows of the value differ.
        """
        if self.old_batch == 1:
            return name
        self._check_rows(name, axis)
        row = self.create_name(name)
        bounds = [self.add_constant([v], name) for v in (0, 1, axis)]
        self.nodes.append(Node("Slice", [name, *bounds], [row], name=row))
        self.changed.append(name)
        return row

    def _check_rows(self, name: str, axis: int) -> None:
        """Refuses a constant whose rows differ."""
        tensor = self.initializers.get(name)
        array = tensor.array() if tensor is not None and tensor.payload is not None else self.read_array(name)
        if array is None:
            return  # the value is computed at run time: the proof shows whether its rows are equal
        rows = np.moveaxis(array, axis, 0)
        if rows.tobytes() != np.ascontiguousarray(np.broadcast_to(rows[:1], rows.shape)).tobytes():
            self.refuse(f"the rows of '{name}' differ: they may or may not be the examples of the batch")

    def compute_new_shape(self, name: str, shape: Shape) -> Shape:
        """Returns the shape of a value in the new model."""
        batch_axis = self.batched.get(name)
        if batch_axis is None or batch_axis.axis >= len(shape):
            return shape
        size: Dim = dims.multiply(batch_axis.outer * batch_axis.inner, self.new_batch)
        return tuple(size if position == batch_axis.axis else d for position, d in enumerate(shape))


def find_input_batches(
    shapes: Mapping[str, Shape | None], user_axes: Mapping[str, int]
) -> tuple[dict[str, BatchAxis], int]:
    """Returns the batch axis of each input that has one, and the common batch size.

    Args:
        shapes: Shapes of the inputs by name.
        user_axes: Batch axes from the user; inputs without an entry have no batch. Empty for the first axis
            of all.

    Raises:
        Misuse: An axis does not exist, has an open size or size 0, or the inputs disagree.
    """
    axes = dict(user_axes) or {name: 0 for name, shape in shapes.items() if shape}
    sizes: dict[str, Dim] = {}
    for name, axis in axes.items():
        shape = shapes.get(name) or ()
        if name not in shapes:
            raise Misuse("there is no such input", where=f"--axis {name}", hint=suggest_name(name, shapes))
        if not -len(shape) <= axis < len(shape):
            raise Misuse(f"the input has no axis {axis}", where=f"--axis {name}", hint=f"it is {list(shape)}")
        axes[name] = axis % len(shape)
        sizes[name] = shape[axis]
    open_name = next((name for name, size in sizes.items() if not isinstance(size, int)), None)
    if open_name is not None:
        hint = "it takes any batch as it is"
        raise Misuse(
            f"the batch of '{open_name}' is open already ({sizes[open_name]})", where="rebatch", hint=hint
        )
    batches = {size for size in sizes.values() if isinstance(size, int)}
    if len(batches) != 1:
        sizes_text = ", ".join(f"{name} {size}" for name, size in sizes.items())
        message = (
            f"the first axes of the inputs disagree ({sizes_text})" if batches else "no input has an axis"
        )
        raise Misuse(message, where="rebatch", hint="name the batch axes: --axis INPUT:AXIS")
    if 0 in batches:
        raise Misuse("a batch of 0 holds no example to compare with", where="rebatch")
    return {name: BatchAxis(axis) for name, axis in axes.items()}, batches.pop()
