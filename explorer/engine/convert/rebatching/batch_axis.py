"""Batch axis: where in a tensor the examples of a batch stand, and what is known while it is followed.

An axis may hold the batch among others that were merged into it: of size `outer` x batch x `inner`, the last
changing fastest. So a Reshape can be followed in and out of (batch x heads) without a guess at its meaning.
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
    """Where the batch stands: axis `axis` is of size `outer` x batch x `inner`."""

    axis: int
    outer: int = 1
    inner: int = 1

    @property
    def whole(self) -> bool:
        """The axis is the batch, and nothing else."""
        return self.outer == 1 == self.inner

    def at(self, axis: int) -> BatchAxis:
        """The same as another axis."""
        return BatchAxis(axis, self.outer, self.inner)


class RewriteError(Exception):
    """What cannot be rewritten, and why; `place` is that of the node."""

    def __init__(self, why: str, place: int = 0) -> None:
        super().__init__(why)
        self.why = why
        self.place = place


class Rewriting(Struct):
    """A graph while its batch is followed, in the order of its nodes.

    Attributes:
        old: The batch that the file has.
        new: The batch to be, or the name of an open one.
        shapes: Of the model as it is.
        batched: Where the batch stands in each value that holds one; what is not here holds none.
        initializers: Stored tensors, with those that are new.
        nodes: What was written so far.
        ambiguous: Which of several ways is taken at each Reshape that leaves more than one; the first where
            nothing is said.
        ways: How many there were, at each that was met.
        changed: What carried the batch and was rewritten.
        sized: Numbers that are computed from the batch's size.
        source: An input with the batch, from which an open one is read.
        opset: Version of ONNX's operators.
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
        """Gives up."""
        raise RewriteError(why)

    def shape(self, name: str) -> Shape:
        """The shape that a value has in the file."""
        if name in self.initializers:
            return self.initializers[name].shape
        inferred = self.shapes.values.get(name)
        if inferred is None or inferred.shape is None:
            self.refuse(f"the shape of '{name}' is not known")
        return inferred.shape

    def product(self, sizes: Sequence[Dim]) -> int:
        """Of sizes that have to be numbers."""
        if not all(isinstance(size, int) for size in sizes):
            self.refuse("a size beside the batch is open (--dim binds it)")
        return math.prod(size for size in sizes if isinstance(size, int))

    def contents(self, name: str) -> Array | None:
        """What a small value holds; None if that is not known."""
        array = self.shapes.constants.get(name) if name else None
        if array is None and name in self.initializers:
            tensor = self.initializers[name]
            array = tensor.array() if tensor.elements <= 1024 and tensor.payload is not None else None
        return array

    def numbers(self, name: str) -> list[int] | None:
        """The whole numbers that a value holds; None for one that is left out.

        Raises:
            RewriteError: They are computed when the model runs.
        """
        if not name:
            return None
        array = self.contents(name)
        if array is None:
            self.refuse(f"'{name}' is computed when the model runs")
        return [int(v) for v in array.reshape(-1).tolist()]

    def fresh(self, base: str) -> str:
        """A name that nothing has yet."""
        return free_name(f"{base}_rebatched", self.taken)

    def store(self, values: Sequence[int], beside: str) -> str:
        """A new stored list of numbers."""
        name = self.fresh(beside)
        self.initializers[name] = int64_tensor(name, values)
        return name

    def sizes(self, values: Sequence[int | None], times: int, beside: str) -> str:
        """A list of sizes of which None is the batch, `times` as much; for an open one, found in the run."""
        if isinstance(self.new, int):
            return self.store([self.new * times if v is None else v for v in values], beside)
        batch = self._counted(times, beside)
        at = list(values).index(None)
        sides = ([v for v in side if v is not None] for side in (values[:at], values[at + 1 :]))
        before, behind = ([self.store(side, beside)] if side else [] for side in sides)
        parts = [*before, batch, *behind]
        if len(parts) == 1:
            return batch
        name = self.fresh(beside)
        self.nodes.append(Node("Concat", parts, [name], name=name, attributes={"axis": 0}))
        return name

    def _counted(self, times: int, beside: str) -> str:
        """The open batch as a list of one number, from the shape of an input."""
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
        """A value without a batch whose axis becomes one: its first row, for every example.

        Raises:
            RewriteError: It is stored, and its rows differ.
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
        """A value without a batch that is added to one, or the like: its first row, which meets all."""
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
            return  # it is computed: the proof sees whether its rows are alike
        rows = np.moveaxis(array, axis, 0)
        if rows.tobytes() != np.ascontiguousarray(np.broadcast_to(rows[:1], rows.shape)).tobytes():
            self.refuse(f"the rows of '{name}' differ: they may or may not be the examples of the batch")

    def declared(self, name: str, shape: Shape) -> Shape:
        """The shape that a value has from now on."""
        batch_axis = self.batched.get(name)
        if batch_axis is None or batch_axis.axis >= len(shape):
            return shape
        size: Dim = dims.multiply(batch_axis.outer * batch_axis.inner, self.new)
        return tuple(size if at == batch_axis.axis else d for at, d in enumerate(shape))


def first_axes(
    feeds: Mapping[str, Shape | None], named: Mapping[str, int]
) -> tuple[dict[str, BatchAxis], int]:
    """The batch axis of each input that has one, and the size that all have there.

    Args:
        feeds: Shapes of the inputs by name.
        named: Axes as the user says; of inputs that he does not name there is none. Empty: the first of all.

    Raises:
        Misuse: There is no such axis, it is open already or empty, or the inputs disagree.
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
