"""Batch axis: which axis of a tensor holds the examples of a batch, and the state while tracing it.

An axis may hold the batch merged with others, with size `outer` x batch x `inner` (the last changes fastest).
So a Reshape can be traced into (batch x heads) and back without guessing its meaning.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from msgspec import Struct, field

from explorer.base.errors import Misuse
from explorer.engine.graph.model import Node, Tensor, int64_tensor
from explorer.engine.graph.repeated_nodes import free_name
from explorer.engine.shapes import Shapes
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim, Shape

Array = np.ndarray[Any, Any]


class BatchAxis(NamedTuple):
    """The position of the batch: axis `axis` has size `outer` x batch x `inner`."""

    axis: int
    outer: int = 1
    inner: int = 1

    @property
    def whole(self) -> bool:
        """Whether the axis is the batch and nothing else."""
        return self.outer == 1 == self.inner

    def at(self, axis: int) -> BatchAxis:
        """The same batch on another axis."""
        return BatchAxis(axis, self.outer, self.inner)


class RewriteError(Exception):
    """The reason why a graph cannot be rewritten; `place` is the place of the node."""

    def __init__(self, why: str, place: int = 0) -> None:
        super().__init__(why)
        self.why = why
        self.place = place


class Rewriting(Struct):
    """The state of a graph while its batch is traced through its nodes.

    Attributes:
        old: The batch size in the file.
        new: The new batch size, or the name of an open one.
        shapes: Shapes in the original model.
        batched: The batch axis of each value that has one.
        initializers: Stored tensors, including new ones.
        nodes: The nodes written so far.
        ambiguous: The option to take at each ambiguous Reshape, in order; the first option beyond the end
            of the list.
        ways: The number of options at each ambiguous Reshape so far.
        changed: Names of the nodes and values that were rewritten.
        sized: Values computed from the batch size.
        source: An input with the batch, from whose shape an open batch is read.
        opset: The model's operator set.
    """

    old: int
    new: int | str
    shapes: Shapes
    batched: dict[str, BatchAxis]
    initializers: dict[str, Tensor]
    taken: set[str]
    ambiguous: Sequence[int] = ()
    nodes: list[Node] = field(default_factory=list)
    ways: list[int] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    sized: set[str] = field(default_factory=set)
    source: str = ""
    opset: int = 0

    def refuse(self, why: str) -> NoReturn:
        """Raises a `RewriteError`."""
        raise RewriteError(why)

    def shape(self, name: str) -> Shape:
        """The shape of a value in the original model."""
        if name in self.initializers:
            return self.initializers[name].shape
        inferred = self.shapes.values.get(name)
        if inferred is None or inferred.shape is None:
            self.refuse(f"the shape of '{name}' is not known")
        return inferred.shape

    def product(self, sizes: Sequence[Dim]) -> int:
        """The product of sizes, which must be numbers."""
        if not all(isinstance(size, int) for size in sizes):
            self.refuse("a size beside the batch is open (--dim binds it)")
        return math.prod(size for size in sizes if isinstance(size, int))

    def contents(self, name: str) -> Array | None:
        """The contents of a small value; None if unknown."""
        array = self.shapes.constants.get(name) if name else None
        if array is None and name in self.initializers:
            tensor = self.initializers[name]
            array = tensor.array() if tensor.elements <= 1024 and tensor.payload is not None else None
        return array

    def numbers(self, name: str) -> list[int] | None:
        """The integers in a value; None for an omitted input.

        Raises:
            RewriteError: The value is computed at run time.
        """
        if not name:
            return None
        array = self.contents(name)
        if array is None:
            self.refuse(f"'{name}' is computed when the model runs")
        return [int(v) for v in array.reshape(-1).tolist()]

    def fresh(self, base: str) -> str:
        """An unused name."""
        return free_name(f"{base}_rebatched", self.taken)

    def store(self, values: Sequence[int], beside: str) -> str:
        """A new stored list of numbers."""
        name = self.fresh(beside)
        self.initializers[name] = int64_tensor(name, values)
        return name

    def sizes(self, values: Sequence[int | None], times: int, beside: str) -> str:
        """Stores a list of sizes, where None is `times` the batch; computed at run time if that is open."""
        if isinstance(self.new, int):
            return self.store([self.new * times if v is None else v for v in values], beside)
        batch = self._open_size(times, beside)
        at = list(values).index(None)
        sides = ([v for v in side if v is not None] for side in (values[:at], values[at + 1 :]))
        before, behind = ([self.store(side, beside)] if side else [] for side in sides)
        parts = [*before, batch, *behind]
        if len(parts) == 1:
            return batch
        name = self.fresh(beside)
        self.nodes.append(Node("Concat", parts, [name], name=name, attributes={"axis": 0}))
        return name

    def _open_size(self, times: int, beside: str) -> str:
        """The open batch, as a list of one number read from the shape of an input."""
        source = self.batched[self.source]
        shape, size = self.fresh(f"{self.source}_shape"), self.fresh(f"{self.source}_batch")
        self.nodes.append(Node("Shape", [self.source], [shape], name=shape))
        at = self.store([source.axis], beside)
        self.nodes.append(Node("Gather", [shape, at], [size], name=size, attributes={"axis": 0}))
        if times == 1:
            return size
        more, factor = self.fresh(beside), self.store([times], beside)
        self.nodes.append(Node("Mul", [size, factor], [more], name=more))
        return more

    def spread(self, name: str, axis: int) -> str:
        """Gives a value without a batch one on an axis: its first row, repeated for every example.

        Raises:
            RewriteError: The value is stored, and its rows differ.
        """
        shape = self.shape(name)
        if axis >= len(shape) or shape[axis] != self.old:
            self.refuse(f"'{name}' has no axis {axis} of {self.old}")
        row = self.one_row(name, axis)
        expanded = self.fresh(name)
        target = self.sizes([None if at == axis else 1 for at in range(len(shape))], 1, name)
        self.nodes.append(Node("Expand", [row, target], [expanded], name=expanded))
        self.changed.append(name)
        return expanded

    def one_row(self, name: str, axis: int) -> str:
        """The first row of a value without a batch, for use with a batched value by broadcasting."""
        if self.old == 1:
            return name
        self._check_rows(name, axis)
        row = self.fresh(name)
        bounds = [self.store([v], name) for v in (0, 1, axis)]
        self.nodes.append(Node("Slice", [name, *bounds], [row], name=row))
        self.changed.append(name)
        return row

    def _check_rows(self, name: str, axis: int) -> None:
        tensor = self.initializers.get(name)
        array = tensor.array() if tensor is not None and tensor.payload is not None else self.contents(name)
        if array is None:
            return  # a computed value: the proof shows whether its rows are equal
        rows = np.moveaxis(array, axis, 0)
        if rows.tobytes() != np.ascontiguousarray(np.broadcast_to(rows[:1], rows.shape)).tobytes():
            self.refuse(f"the rows of '{name}' differ: they may or may not be the examples of the batch")

    def declared(self, name: str, shape: Shape) -> Shape:
        """The shape of a value in the new model."""
        batch_axis = self.batched.get(name)
        if batch_axis is None or batch_axis.axis >= len(shape):
            return shape
        size: Dim = dims.multiply(batch_axis.outer * batch_axis.inner, self.new)
        return tuple(size if at == batch_axis.axis else d for at, d in enumerate(shape))


def first_axes(
    feeds: Mapping[str, Shape | None], named: Mapping[str, int]
) -> tuple[dict[str, BatchAxis], int]:
    """The batch axis of each input that has one, and the common batch size.

    Args:
        feeds: Shapes of the inputs by name.
        named: Batch axes from the user; other inputs then have no batch. Empty for the first axis of all.

    Raises:
        Misuse: There is no such axis, its size is open or 0, or the inputs disagree.
    """
    axes = dict(named) or {name: 0 for name, shape in feeds.items() if shape}
    sizes: dict[str, Dim] = {}
    for name, axis in axes.items():
        shape = feeds.get(name) or ()
        if name not in feeds:
            raise Misuse(
                "there is no such input", where=f"--axis {name}", hint=f"there is {', '.join(feeds)}"
            )
        if not -len(shape) <= axis < len(shape):
            raise Misuse(f"the input has no axis {axis}", where=f"--axis {name}", hint=f"it is {list(shape)}")
        axes[name] = axis % len(shape)
        sizes[name] = shape[axis]
    open_ = next((name for name, size in sizes.items() if not isinstance(size, int)), None)
    if open_ is not None:
        hint = "it takes any batch as it is"
        raise Misuse(f"the batch of '{open_}' is open already ({sizes[open_]})", where="rebatch", hint=hint)
    batches = {size for size in sizes.values() if isinstance(size, int)}
    if len(batches) != 1:
        sizes_text = ", ".join(f"{name} {size}" for name, size in sizes.items())
        message = (
            f"the first axes of the inputs disagree ({sizes_text})" if batches else "no input has an axis"
        )
        raise Misuse(message, where="rebatch", hint="say which are the batch: --axis INPUT:AXIS")
    if 0 in batches:
        raise Misuse("a batch of 0 holds no example to compare with", where="rebatch")
    return {name: BatchAxis(axis) for name, axis in axes.items()}, batches.pop()
